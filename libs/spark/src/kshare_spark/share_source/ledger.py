"""The source's rules, without network: which runs are held, which are done, and which may be accepted. Pure.

- `acquired`: acquired runs are held. Those that this query has already processed (`unaccepted`) are accepted at once
  and not delivered to Spark again; the others wait for the next batch.
- `begin`: all waiting runs become the batch.
- `finished(offset)`: the batch is done. Its held runs are to be accepted; the others become `unaccepted`.
- `confirmed` and `lost`: the outcomes of an acknowledgement or a renewal.
"""

from __future__ import annotations

from collections.abc import Mapping

from kshare_spark.share_source.runs import Place, RunMap

UNACCEPTED_RUNS_LIMIT = 10_000
"""The limit of runs remembered as done but not accepted; beyond it some are dropped and may be delivered again."""


class Ledger:
    """The runs of one query's source; see the module's docstring."""

    def __init__(self) -> None:
        self.held = RunMap()
        """Runs whose locks this member holds, as far as it knows."""
        self.waiting = RunMap()
        """Held runs that are in no batch yet."""
        self.unaccepted = RunMap()
        """Runs that this query has done, without a confirmed accept."""

    def acquired(self, runs: RunMap) -> RunMap:
        """Adds acquired runs; returns those to accept at once."""
        self.held.update(runs)
        again = runs.within(self.unaccepted)
        # Records of an unfinished batch that are acquired again had lost their locks; they are delivered again.
        self.waiting.update(runs.minus(again))
        return again

    def hold_back(self, ends: Mapping[tuple[str, int], int]) -> list[Place]:
        """Removes runs at or beyond these offsets from the waiting ones; they stay held. Returns their places.

        `ends` is by (topic, partition); all offsets of a partition that it lacks are beyond.
        """
        beyond = RunMap()
        for place, runs in self.waiting.items():
            end = ends.get((place.topic, place.partition), 0)
            beyond.add(place, [run._replace(first=max(run.first, end)) for run in runs if run.last >= end])
        self.waiting.remove(beyond)
        return [place for place, _ in beyond.items()]

    def begin(self) -> RunMap:
        """The runs of the next batch."""
        batch, self.waiting = self.waiting, RunMap()
        return batch

    def finished(self, runs: RunMap) -> RunMap:
        """Marks a batch as done; returns the runs to accept now."""
        self.unaccepted.update(runs)
        if self.unaccepted.number_of_runs > UNACCEPTED_RUNS_LIMIT:
            self.unaccepted = self.unaccepted.last_runs(UNACCEPTED_RUNS_LIMIT)
        # A run of it that was acquired again and waits for another batch is done as well.
        self.waiting.remove(runs)
        return self.held.within(runs)

    def remember(self, unaccepted: RunMap) -> None:
        """Restores the runs of the checkpoint that are done but not accepted."""
        self.unaccepted.update(unaccepted)

    def accepted(self, runs: RunMap) -> None:
        self.held.remove(runs)
        self.unaccepted.remove(runs)

    def released(self, runs: RunMap) -> None:
        self.held.remove(runs)
        self.waiting.remove(runs)

    def lost(self, runs: RunMap) -> None:
        """Notes that the locks of these runs are gone. Waiting ones are not delivered: a member acquires them again."""
        self.held.remove(runs)
        self.waiting.remove(runs)
