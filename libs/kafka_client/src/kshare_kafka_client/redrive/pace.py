"""A rate limit with an injected clock."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """At most `rate` records per second; None: no limit. `now_s` is a steady clock, `sleep` waits on it."""

    def __init__(self, rate: float | None, now_s: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._rate = rate
        self._now_s = now_s
        self._sleep = sleep
        self._free_at_s = 0.0

    def batch_limit(self, largest: int) -> int:
        """The largest burst of records: those of one second."""
        return largest if self._rate is None else max(1, min(largest, int(self._rate)))

    def wait(self, count: int) -> None:
        """Waits until the rate allows `count` more records."""
        if self._rate is None:
            return
        now_s = self._now_s()
        if self._free_at_s > now_s:
            self._sleep(self._free_at_s - now_s)
        self._free_at_s = max(self._free_at_s, now_s) + count / self._rate
