"""The failure of a command: one line on stderr and an exit code."""

from __future__ import annotations

FAILED = 1
BAD_USE = 2
"""The command line, the configuration or the target is wrong: a retry without a change will fail again."""

INTERRUPTED = 130
"""Ctrl-C, as a shell says it: 128 and the signal's number."""


class CommandFailed(Exception):
    """Ends the command; the text is the line that the user sees."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code
