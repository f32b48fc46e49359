"""Regular expressions that clients send, in RE2's syntax, with a bounded cost.

RE2 matches in time linear in the text: for each character of it, at most one step for each instruction of the compiled
program, and some for a state of the automaton that is built anew. So the size of the program is limited, and `cost`
tells what a match may take. Callers do a bounded number of steps in one turn of the event loop: 10,000,000 steps take
at most about 15 ms.

The expressions that most users write cost much less than that bound, and `cost` knows their forms:
- names, or alternatives of them: each instruction is reached at one position of the text only;
- a name with one `.*` in it: the automaton has about as many states as the expression has characters, and they fit.
"""

from __future__ import annotations

import re
from typing import Protocol

import re2

EXPRESSION_MEMORY_BYTES = 128 * 1024
"""What RE2 may use for one expression: enough for an alternative of 200 names of 30 characters."""
EXPRESSION_CHARACTERS = 10_000
"""RE2 parses the text before it knows the size of the program."""
STEPS_OF_CALL = 2_000
"""The steps that take as long as the call for one text does."""
STEPS_OF_STATE = 300
"""To build a state of the automaton for one character; with many of them RE2 forgets and rebuilds them all the time."""
STEPS_OF_SHARED_STATE = 100
"""The same for alternatives of names, whose states are smaller."""
STEPS_OF_KNOWN_STATE = 15
"""For one character, where all states fit in RE2's memory."""

_NAME = r"(?:[A-Za-z0-9_-]|\\?\.)+"
_ALTERNATIVES = rf"{_NAME}(?:\|{_NAME})*"
_NAMES = re.compile(rf"\^?(?:({_ALTERNATIVES})|\((?:\?:)?({_ALTERNATIVES})\))\$?")
_PATTERN = re.compile(r"\^?(?:[A-Za-z0-9_-]|\\?\.){0,60}?\.\*(?:[A-Za-z0-9_-]|\\\.){0,60}\$?")
_DOTS = re.compile(r"(?<!\\)\.")
_PATTERN_DOTS = 5
"""Each stands for any character, which takes many instructions."""


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
        names = _NAMES.fullmatch(text)
        self._longest_name = max(map(len, (names[1] or names[2]).split("|"))) if names else None
        self._is_plain = _PATTERN.fullmatch(text) is not None and len(_DOTS.findall(text)) <= _PATTERN_DOTS

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._compiled.fullmatch(text) is not None

    def cost(self, text: str) -> int:
        """The steps that a match of this text may take."""
        size = self._compiled.programsize
        if self._is_plain:
            return STEPS_OF_CALL + STEPS_OF_KNOWN_STATE * len(text)
        if self._longest_name is not None:
            return STEPS_OF_CALL + size + STEPS_OF_SHARED_STATE * min(len(text), self._longest_name)
        return STEPS_OF_CALL + (size + STEPS_OF_STATE) * len(text)
