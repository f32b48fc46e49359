"""Regular expressions that clients send, in RE2's syntax, with a bounded cost.

RE2 matches in time linear in the text: for each character of it, at most one step for each instruction of the compiled
program. So the size of the program is limited, and `cost` tells what a match may take. Callers do a bounded number
of steps in one turn of the event loop: 10,000,000 steps take at most about 15 ms.
"""

from __future__ import annotations

from typing import Protocol

import re2

EXPRESSION_MEMORY_BYTES = 128 * 1024
"""What RE2 may use for one expression: enough for an alternative of 200 names of 30 characters."""
EXPRESSION_CHARACTERS = 10_000
"""RE2 parses the text before it knows the size of the program."""
STEPS_OF_CALL = 2_000
"""The steps that take as long as the call for one text does."""


class InvalidExpression(Exception):
    """The text is not in RE2's syntax, or too large."""


class _Compiled(Protocol):
    programsize: int

    def fullmatch(self, text: str) -> object | None: ...


class RegularExpression:
    """A compiled expression, which is compared with whole texts. InvalidExpression if it is invalid or too large."""

    def __init__(self, text: str) -> None:
        if len(text) > EXPRESSION_CHARACTERS:
            raise InvalidExpression(f"it has {len(text)} characters, {EXPRESSION_CHARACTERS} are allowed")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = EXPRESSION_MEMORY_BYTES
        # With groups, RE2 copies the positions of all of them in each step, which is quadratic in their number.
        options.never_capture = True
        try:
            self._compiled: _Compiled = re2.compile(text, options)
        except re2.error as error:
            (reason,) = error.args
            raise InvalidExpression(reason.decode() if isinstance(reason, bytes) else str(reason)) from error

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._compiled.fullmatch(text) is not None

    def cost(self, text: str) -> int:
        """The steps that a match of this text may take."""
        return STEPS_OF_CALL + self._compiled.programsize * len(text)
