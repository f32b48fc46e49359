"""A limit on log lines that a client can cause, so that it can neither fill a disk nor hide other lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES_PER_SECOND = 10
LINES_OF_ALL_KINDS_PER_SECOND = 50
KINDS_LIMIT = 1_000
"""Kinds are given by the code, not by clients; beyond so many they share one limit."""
OTHER_KINDS = "other"


class BoundedLines:
    """At most LINES_PER_SECOND; `now_s` returns seconds."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._second = 0.0
        self._lines = 0
        self._left_out = 0

    def take(self, *, has_room: bool = True) -> int | None:
        """How many lines were left out before this one; None if this one is to be left out, as without `has_room`."""
        second = self._now_s() // 1
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > LINES_PER_SECOND or not has_room:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        return left_out


class BoundedLog:
    """A logger of lines that clients cause: each kind of line is bounded for itself, and all of them together.

    So a client that causes one kind does not hide the other kinds. A line says how many of its kind were left out
    before it. Kinds are few: names of APIs, of reasons.
    """

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._kinds: dict[str, BoundedLines] = {}
        self._second = 0.0
        self._lines = 0

    def info(self, kind: str, text: str, *arguments: object) -> None:
        self._line(logging.INFO, kind, text, arguments)

    def warning(self, kind: str, text: str, *arguments: object) -> None:
        self._line(logging.WARNING, kind, text, arguments)

    def _line(self, level: int, kind: str, text: str, arguments: tuple[object, ...]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        lines = self._kinds.get(kind)
        if lines is None:
            kind = kind if len(self._kinds) < KINDS_LIMIT else OTHER_KINDS
            lines = self._kinds.setdefault(kind, BoundedLines(self._now_s))
        left_out = lines.take(has_room=self._has_room())
        if left_out is None:
            return
        self._lines += 1
        if left_out:
            text, arguments = f"{text} (%d such lines were left out before)", (*arguments, left_out)
        self._logger.log(level, text, *arguments)

    def _has_room(self) -> bool:
        second = self._now_s() // 1
        if second != self._second:
            self._second, self._lines = second, 0
        return self._lines < LINES_OF_ALL_KINDS_PER_SECOND
