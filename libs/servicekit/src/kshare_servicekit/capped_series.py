"""A cap on the series of a metric: the highest-ranked entries have their own row, all others share one.

At most `limit` entries have their own row at a scrape: those that rank highest then. All others share one row, under
labels that say so. An entry may change between the two from one scrape to the next, so each part of its counts is shown
in one place only: counts from the time of its own row are in its own row, the rest in the common one. Then neither row
ever falls, counters stay counters, and a rate over both is right.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

OTHERS = "(others)"
"""The label value of the common row, the sum of all entries without their own row."""

Key = TypeVar("Key", bound=Hashable)


class Entry(NamedTuple, Generic[Key]):
    """One entry: those with the highest rank have their own rows; `numbers` never fall while the entry exists."""

    key: Key
    rank: float
    numbers: Sequence[float]


class Shown(NamedTuple, Generic[Key]):
    """The rows of one scrape: the entries with their own row, and the sums of all others."""

    named: dict[Key, list[float]]
    others: list[float]
    has_others: bool
    """Whether any entry was ever in the common row."""


class CappedSeries(Generic[Key]):
    """See the module's text. Each entry has `width` numbers; `limit` may change at any time."""

    def __init__(self, limit: Callable[[], int], width: int) -> None:
        self._limit = limit
        self._own: dict[Key, list[float]] = {}
        """The part of each entry's numbers that was shown in its own row."""
        self._given: dict[Key, list[float]] = {}
        """The part of each entry's numbers that was shown in the common row."""
        self._newest: dict[Key, Sequence[float]] = {}
        """The numbers of each entry when it was last added to the common row: mostly they have not changed since."""
        self._others = [0.0] * width
        self._has_others = False

    def show(self, entries: Iterable[Entry[Key]]) -> Shown[Key]:
        """The rows of this scrape."""
        ranked = sorted(entries, key=lambda entry: -entry.rank)
        limit = self._limit()
        alive = {entry.key for entry in ranked}
        for table in (self._own, self._given, self._newest):
            for key in [key for key in table if key not in alive]:
                del table[key]
        named = {entry.key: self._show_own(entry) for entry in ranked[:limit]}
        for entry in ranked[limit:]:
            self._has_others = True
            self._give(entry)
        return Shown(named, list(self._others), self._has_others)

    def _show_own(self, entry: Entry[Key]) -> list[float]:
        self._newest.pop(entry.key, None)
        given = self._given.get(entry.key)
        own = list(entry.numbers) if given is None else _minus(entry.numbers, given)
        self._own[entry.key] = own
        return own

    def _give(self, entry: Entry[Key]) -> None:
        if self._newest.get(entry.key) == entry.numbers:
            return
        self._newest[entry.key] = entry.numbers
        own = self._own.get(entry.key)
        all_given = list(entry.numbers) if own is None else _minus(entry.numbers, own)
        before = self._given.get(entry.key)
        news = all_given if before is None else _minus(all_given, before)
        self._given[entry.key] = all_given
        self._others = [sum(pair) for pair in zip(self._others, news, strict=True)]


def _minus(numbers: Sequence[float], others: Sequence[float]) -> list[float]:
    return [number - other for number, other in zip(numbers, others, strict=True)]
