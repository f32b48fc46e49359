"""Runs of offsets of topic partitions, and their union, intersection and difference. Pure.

A `Run` is first and last offset (both included) with the delivery count of its acquisition. A `RunMap` holds for each
`Place` (topic, topic id, partition) runs in order that do not overlap; runs that touch and have the same count are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic by the topic's id: a topic that is deleted and created again has another id."""

    topic: str
    topic_id: str
    partition: int


class Run(NamedTuple):
    """Offsets `first` to `last`, delivered for the `delivery_count`th time."""

    first: int
    last: int
    delivery_count: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


class RunMap:
    """Runs by place; `copy` returns an independent one."""

    def __init__(self, runs: Mapping[Place, Iterable[Run]] | None = None) -> None:
        self._runs: dict[Place, list[Run]] = {}
        for place, found in (runs or {}).items():
            self.add(place, found)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunMap) and self._runs == other._runs

    def __repr__(self) -> str:
        return f"RunMap({self._runs})"

    def items(self) -> Iterator[tuple[Place, list[Run]]]:
        return iter(list(self._runs.items()))

    def copy(self) -> RunMap:
        return RunMap(self._runs)

    @property
    def records(self) -> int:
        """The number of offsets; there are at most as many records, as compaction may have removed some."""
        return sum(run.length for runs in self._runs.values() for run in runs)

    @property
    def number_of_runs(self) -> int:
        return sum(len(runs) for runs in self._runs.values())

    def add(self, place: Place, runs: Iterable[Run]) -> None:
        """Adds a run, which replaces older runs of the same offsets."""
        new = list(runs)
        if not new:
            return
        kept = _difference(self._runs.get(place, []), sorted(new))
        self._runs[place] = _joined(sorted(kept + new))

    def update(self, other: RunMap) -> None:
        for place, runs in other.items():
            self.add(place, runs)

    def remove(self, other: RunMap) -> None:
        for place, runs in other.items():
            if place in self._runs:
                self._keep(place, _difference(self._runs[place], runs))

    def minus(self, other: RunMap) -> RunMap:
        found = self.copy()
        found.remove(other)
        return found

    def within(self, other: RunMap) -> RunMap:
        """The offsets of these runs that are also in the other map, with the counts of these."""
        return self.minus(self.minus(other))

    def last_runs(self, limit: int) -> RunMap:
        """At most `limit` runs: the newest of each place first."""
        found: dict[Place, list[Run]] = {}
        left = limit
        for place, runs in self._runs.items():
            if left > 0:
                found[place] = runs[-left:]
                left -= len(found[place])
        return RunMap(found)

    def _keep(self, place: Place, runs: list[Run]) -> None:
        if runs:
            self._runs[place] = runs
        else:
            self._runs.pop(place, None)


def _joined(runs: list[Run]) -> list[Run]:
    found: list[Run] = []
    for run in runs:
        if found and found[-1].last + 1 == run.first and found[-1].delivery_count == run.delivery_count:
            found[-1] = found[-1]._replace(last=run.last)
        else:
            found.append(run)
    return found


def _difference(runs: list[Run], others: list[Run]) -> list[Run]:
    """The offsets of `runs` that `others` lacks. Both are in order and without overlaps of their own."""
    found: list[Run] = []
    position = 0
    for run in runs:
        first = run.first
        while position < len(others) and others[position].last < first:
            position += 1
        index = position
        while index < len(others) and others[index].first <= run.last:
            if others[index].first > first:
                found.append(Run(first, others[index].first - 1, run.delivery_count))
            first = max(first, others[index].last + 1)
            index += 1
        if first <= run.last:
            found.append(Run(first, run.last, run.delivery_count))
    return found


def split(runs: Mapping[Place, list[Run]] | RunMap, parts: int | None) -> list[RunMap]:
    """The runs in about `parts` pieces of equal numbers of records; None: one for each place. No piece is empty."""
    pairs = list(runs.items())
    if parts is None:
        return [RunMap({place: found}) for place, found in pairs]
    total = sum(run.length for _, found in pairs for run in found)
    size = max(1, -(-total // parts))
    pieces: list[RunMap] = [RunMap()]
    left = size
    for place, found in pairs:
        for run in found:
            first = run.first
            while first <= run.last:
                last = min(run.last, first + left - 1)
                pieces[-1].add(place, [Run(first, last, run.delivery_count)])
                left -= last - first + 1
                first = last + 1
                if left == 0:
                    pieces.append(RunMap())
                    left = size
    return [piece for piece in pieces if piece]
