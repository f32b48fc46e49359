"""Which acknowledgements are still to be sent: a refusal is narrowed down to the runs that it is about. Pure.

A leader takes all acknowledgements of a partition in a request or none. When it refuses because one record of them is
not held any more, the runs are halved until the ones that are held are confirmed. Below SPLITS halvings a piece counts
as lost as a whole: its records are either accepted already or come again.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_spark.share_source.runs import Place, Run, RunMap

RUNS_PER_REQUEST = 2_000
SPLITS = 14
RUN_SPLITS = 3
"""Halvings of a single run: locks are lost by acquisition, and a run may be of several."""


class _Unit(NamedTuple):
    place: Place
    runs: list[Run]
    splits: int
    run_splits: int


class Acknowledging:
    """The work of acknowledging some runs; see the module's text."""

    def __init__(self, runs: RunMap) -> None:
        self.confirmed = RunMap()
        self.lost = RunMap()
        self._units = [
            _Unit(place, found[start : start + RUNS_PER_REQUEST], 0, 0)
            for place, found in runs.items()
            for start in range(0, len(found), RUNS_PER_REQUEST)
        ]

    @property
    def is_done(self) -> bool:
        return not self._units

    def next_request(self) -> dict[Place, list[Run]]:
        """At most one piece of each place, together about RUNS_PER_REQUEST runs; the same until its outcome is told."""
        found: dict[Place, list[Run]] = {}
        count = 0
        for unit in self._units:
            if unit.place in found or (found and count + len(unit.runs) > RUNS_PER_REQUEST):
                continue
            found[unit.place] = unit.runs
            count += len(unit.runs)
        return found

    def confirm(self, place: Place) -> None:
        self.confirmed.add(place, self._take(place).runs)

    def lose(self, place: Place) -> None:
        self.lost.add(place, self._take(place).runs)

    def refuse(self, place: Place) -> None:
        """A record of the place's piece is not held."""
        unit = self._take(place)
        if len(unit.runs) > 1 and unit.splits < SPLITS:
            middle = len(unit.runs) // 2
            halves = [unit.runs[:middle], unit.runs[middle:]]
            self._units += [_Unit(place, half, unit.splits + 1, unit.run_splits) for half in halves]
        elif len(unit.runs) == 1 and unit.runs[0].length > 1 and unit.run_splits < RUN_SPLITS:
            run = unit.runs[0]
            middle = (run.first + run.last) // 2
            parts = [run._replace(last=middle), run._replace(first=middle + 1)]
            self._units += [_Unit(place, [part], unit.splits, unit.run_splits + 1) for part in parts]
        else:
            self.lost.add(place, unit.runs)

    def give_up(self) -> None:
        """What is open counts as lost."""
        for unit in self._units:
            self.lost.add(unit.place, unit.runs)
        self._units = []

    def _take(self, place: Place) -> _Unit:
        index = next(index for index, unit in enumerate(self._units) if unit.place == place)
        return self._units.pop(index)
