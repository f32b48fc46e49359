"""A limit on log lines that a client can cause, so that it can neither fill a disk nor hide other lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

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

    def forget_one(self) -> None:
        """The line that was left out last was counted before, so it counts once."""
        self._left_out -= 1


@dataclass(slots=True)
class _Kind:
    bounded: BoundedLines
    left_out: tuple[int, str] | None = None
    """Level and text of the newest line that was left out since the last line of the kind."""


class BoundedLog:
    """A logger of lines that clients cause: each kind of line is bounded for itself, and all of them together.

    So a client that causes one kind does not hide the other kinds. A line says how many of its kind were left out
    before it. With `call_later` (seconds, callback) the newest of the lines that were left out follows a second later,
    so that a burst hides its number, but not its end. Kinds are few: names of APIs, of reasons.
    """

    def __init__(
        self,
        logger: logging.Logger,
        now_s: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._logger = logger
        self._now_s = now_s
        self._call_later = call_later
        self._kinds: dict[str, _Kind] = {}
        self._second = 0.0
        self._lines = 0
        self._tells_later = False

    def info(self, kind: str, text: str, *arguments: object) -> None:
        self._line(logging.INFO, kind, text, arguments)

    def warning(self, kind: str, text: str, *arguments: object) -> None:
        self._line(logging.WARNING, kind, text, arguments)

    def _line(self, level: int, kind_name: str, text: str, arguments: tuple[object, ...]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        kind = self._kinds.get(kind_name)
        if kind is None:
            kind_name = kind_name if len(self._kinds) < KINDS_LIMIT else OTHER_KINDS
            kind = self._kinds.setdefault(kind_name, _Kind(BoundedLines(self._now_s)))
        left_out = kind.bounded.take(has_room=self._has_room())
        if left_out is not None:
            kind.left_out = None
            self._log(level, text, arguments, left_out)
        elif self._call_later is not None:
            kind.left_out = (level, text % arguments)
            self._tell_later(self._call_later)

    def _log(self, level: int, text: str, arguments: tuple[object, ...], left_out: int) -> None:
        self._lines += 1
        if left_out:
            text, arguments = f"{text} (%d such lines were left out before)", (*arguments, left_out)
        self._logger.log(level, text, *arguments)

    def _tell_later(self, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        if not self._tells_later:
            self._tells_later = True
            call_later(1.0, self._tell_left_out)

    def _tell_left_out(self) -> None:
        """Logs the newest line of each kind that was left out; it was counted as such, which the line makes good."""
        self._tells_later = False
        for kind in self._kinds.values():
            if kind.left_out is None:
                continue
            left_out = kind.bounded.take(has_room=self._has_room())
            if left_out is None:
                kind.bounded.forget_one()
                assert self._call_later is not None
                self._tell_later(self._call_later)
                continue
            (level, text), kind.left_out = kind.left_out, None
            self._log(level, "%s", (text,), left_out - 1)

    def _has_room(self) -> bool:
        second = self._now_s() // 1
        if second != self._second:
            self._second, self._lines = second, 0
        return self._lines < LINES_OF_ALL_KINDS_PER_SECOND
