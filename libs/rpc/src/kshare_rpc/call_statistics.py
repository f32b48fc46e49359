"""Call statistics: the number, durations and failures of calls per method, at the caller and at the server.

They are plain numbers: two clock readings and one observation per call. The duration of a long poll (WatchCatalog, a
fetch) includes its wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from kshare_core.distribution import DURATION_BOUNDS_S, Distribution, no_clock

MALFORMED, STOPPED, HANDLER_FAILED, DENIED = "malformed", "stopped", "handler", "denied"
"""Why a served call failed: the request could not be decoded, the server stopped first, the handler raised, the
caller's certificate does not allow it."""


class MethodStatistics:
    """The statistics of one method on one side: durations in seconds, failed calls included, and failures by kind."""

    __slots__ = ("durations", "failures", "under_way")

    def __init__(self, kinds: Iterable[str] = ()) -> None:
        """`kinds` of failures are exported as 0 before the first one, so that a counter is seen to rise."""
        self.durations = Distribution(DURATION_BOUNDS_S)
        self.failures: dict[str, int] = dict.fromkeys(kinds, 0)
        self.under_way = 0

    def started(self, now: float) -> float:
        """Counts a call that begins at `now`, and returns `now`; `ended` must follow."""
        self.under_way += 1
        return now

    def ended(self, seconds: float, traceparent: str = "") -> None:
        """Counts a call's duration; `traceparent` is that of its recorded trace, empty: none."""
        self.under_way -= 1
        durations = self.durations  # its `observe`, without a call
        durations.counts[bisect_left(durations.bounds, seconds)] += 1
        durations.total += seconds
        if traceparent:
            durations.exemplify(seconds, traceparent)

    def failed(self, kind: str) -> None:
        """Counts a failure; at the caller, `kind` is the name of the exception."""
        self.failures[kind] = self.failures.get(kind, 0) + 1


class CallStatistics:
    """The calls of one network. `now` gives seconds of any steady clock; without one, all durations are 0."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self.now = now or no_clock
        self.made: dict[str, MethodStatistics] = {}
        """Calls to other roles, by the method's path."""
        self.served: dict[str, MethodStatistics] = {}
        self.unread_answer_bytes = 0
        """Bytes of answers that callers have not read yet."""

    def of_made(self, path: str) -> MethodStatistics:
        """The statistics of a method that this process calls."""
        return self.made.get(path) or self.made.setdefault(path, MethodStatistics())

    def of_served(self, path: str) -> MethodStatistics:
        """The statistics of a method that this process serves; only for existing ones: callers could invent names."""
        return self.served.get(path) or self.served.setdefault(path, MethodStatistics((HANDLER_FAILED,)))
