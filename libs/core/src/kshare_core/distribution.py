"""A histogram of plain numbers, for code on the hot path.

An observation is a bisection and two additions. `kshare_servicekit.metric_families` reads the histogram at a scrape;
this module does not depend on metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

DURATION_BOUNDS_S = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Bounds for calls and writes, in seconds: from a call within the machine to one that timed out."""


def no_clock() -> float:
    """A clock for runs without metrics: always 0, so every duration is 0."""
    return 0.0


class Distribution:
    """A histogram: `counts[i]` values were above `bounds[i - 1]` and at most `bounds[i]`; the last count has the rest.

    `total` is the sum of all values. `bounds` ascend.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def numbers(self) -> list[float]:
        """The histogram as one row of numbers that never fall: the counts, then the total."""
        return [*self.counts, self.total]

    @classmethod
    def of_numbers(cls, bounds: Sequence[float], numbers: Sequence[float]) -> Distribution:
        """The inverse of `numbers`."""
        made = cls(bounds)
        made.counts = [int(number) for number in numbers[:-1]]
        made.total = numbers[-1]
        return made
