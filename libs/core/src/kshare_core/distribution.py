"""A histogram of plain numbers, for code on the hot path.

An observation is a bisection and two additions. `kshare_servicekit.metric_families` reads the histogram at a scrape;
this module does not depend on metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

DURATION_BOUNDS_S = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Bounds for calls and writes, in seconds: from a call within the machine to one that timed out."""


def no_clock() -> float:
    """A clock for runs without metrics: always 0, so every duration is 0."""
    return 0.0


class Exemplar(NamedTuple):
    """A value that was observed in a recorded trace."""

    value: float
    trace_id: str


NO_EXEMPLARS: Mapping[int, Exemplar] = MappingProxyType({})


class Distribution:
    """A histogram: `counts[i]` values were above `bounds[i - 1]` and at most `bounds[i]`; the last count has the rest.

    `total` is the sum of all values. `bounds` ascend. `exemplars` has the newest exemplar of each count that has one.
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: Mapping[int, Exemplar] = NO_EXEMPLARS

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def exemplify(self, value: float, traceparent: str) -> None:
        """Keeps an observed value of a recorded trace as the exemplar of its count."""
        found = Exemplar(value, traceparent.split("-")[1])
        self.exemplars = {**self.exemplars, bisect_left(self.bounds, value): found}

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def numbers(self) -> list[float]:
        """The histogram as one row of numbers that never fall: the counts, then the total."""
        return [*self.counts, self.total]

    @classmethod
    def of_numbers(
        cls, bounds: Sequence[float], numbers: Sequence[float], exemplars: Mapping[int, Exemplar] = NO_EXEMPLARS
    ) -> Distribution:
        """The inverse of `numbers`, with exemplars, which are no numbers."""
        made = cls(bounds)
        made.counts = [int(number) for number in numbers[:-1]]
        made.total = numbers[-1]
        made.exemplars = exemplars
        return made
