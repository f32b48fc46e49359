"""The acknowledgements that are still to be sent; a rejected one is split to find the records that are not held. Pure.

A leader accepts all acknowledgements of a partition in a request, or none. If it rejects them because one record's lock
is gone, the runs are halved until those that are held are confirmed. After SPLITS halvings a piece counts as lost as a
whole: its records are already accepted, or they are delivered again.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_spark.share_source.runs import Place, Run, RunMap

RUNS_PER_REQUEST = 2_000
SPLITS = 14
RUN_SPLITS = 3
"""Maximum halvings of one run. Locks expire per acquisition, and one run may consist of several acquisitions."""


class _Unit(NamedTuple):
    place: Place
    runs: list[Run]
    splits: int
    run_splits: int


class Acknowledging:
    """The acknowledgement of some runs; see the module's docstring."""

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
        """At most one piece per place, about RUNS_PER_REQUEST runs in total; the same until its outcome is reported."""
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
        """Reports that a record of the place's piece is not held."""
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
        """Counts all open runs as lost."""
        for unit in self._units:
            self.lost.add(unit.place, unit.runs)
        self._units = []

    def _take(self, place: Place) -> _Unit:
        index = next(index for index, unit in enumerate(self._units) if unit.place == place)
        return self._units.pop(index)
