"""A limit on how many things have samples of their own; the others are summed up, and counters stay counters.

A scrape names what ranks highest now, at most `limit` of them. All others share one row, under labels that say so. What
is in that row changes from one scrape to the next, so of what a thing counted, each part is shown in one place only:
what was counted while it had its own row is in its own row, and the rest in the common one. Then neither ever falls,
and a rate over both is right.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

OTHERS = "(others)"
"""The label value of the row that sums up what has no row of its own."""

Key = TypeVar("Key", bound=Hashable)


class Entry(NamedTuple, Generic[Key]):
    """One thing: the higher it ranks, the sooner it has a row of its own; `numbers` never fall while it lives."""

    key: Key
    rank: float
    numbers: Sequence[float]


class Shown(NamedTuple, Generic[Key]):
    """Which things have a row of their own, with their numbers, and the numbers of all others together."""

    named: dict[Key, list[float]]
    others: list[float]
    has_others: bool
    """Whether anything was ever counted among the others, or is now."""


class CappedSeries(Generic[Key]):
    """See the module's text. Each entry has `width` numbers; `limit` may change at any time."""

    def __init__(self, limit: Callable[[], int], width: int) -> None:
        self._limit = limit
        self._own: dict[Key, list[float]] = {}
        """What was shown of each thing in its own row."""
        self._given: dict[Key, list[float]] = {}
        """What was shown of each thing in the common row."""
        self._newest: dict[Key, Sequence[float]] = {}
        """The numbers with which a thing was last added to the common row: mostly nothing has come since."""
        self._others = [0.0] * width
        self._has_others = False

    def show(self, entries: Iterable[Entry[Key]]) -> Shown[Key]:
        """Decides who is named in this scrape."""
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
