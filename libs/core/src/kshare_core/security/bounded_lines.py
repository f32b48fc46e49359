"""A limit on log lines that a client can cause, so that it can neither fill a disk nor hide other lines."""

from __future__ import annotations

import time
from collections.abc import Callable

LINES_PER_SECOND = 10


class BoundedLines:
    """At most LINES_PER_SECOND; `now_s` returns seconds."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._second = 0.0
        self._lines = 0
        self._left_out = 0

    def take(self) -> int | None:
        """How many lines were left out before this one; None if this one is to be left out."""
        second = self._now_s() // 1
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > LINES_PER_SECOND:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        return left_out
