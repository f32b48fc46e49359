"""Which runs are held, which of them are done, and what may be accepted: the source's rules, without network. Pure.

- `acquired`: what the share group gave us is held. What this query has done already (`unaccepted`) is to be accepted at
  once and is not delivered to Spark again; the rest waits for the next batch.
- `begin`: everything that waits becomes the batch.
- `finished(offset)`: the batch is done. What is held of it is to be accepted, what is not held is `unaccepted`.
- `confirmed` and `lost`: what came of an acknowledgement or a renewal.
"""

from __future__ import annotations

from collections.abc import Mapping

from kshare_spark.share_source.runs import Place, RunMap

UNACCEPTED_RUNS_LIMIT = 10_000
"""Runs that are remembered as done and not accepted; beyond it some are forgotten and may be delivered again."""


class Ledger:
    """The account of one query's source; see the module's text."""

    def __init__(self) -> None:
        self.held = RunMap()
        """Locks that we believe to have."""
        self.waiting = RunMap()
        """Held, and in no batch yet."""
        self.unaccepted = RunMap()
        """Done by this query, and not accepted as far as we know."""

    def acquired(self, runs: RunMap) -> RunMap:
        """Runs that the share group gave us; those that are to be accepted at once."""
        self.held.update(runs)
        again = runs.within(self.unaccepted)
        # What was in a batch that is not done and comes again was lost meanwhile; it is delivered again.
        self.waiting.update(runs.minus(again))
        return again

    def hold_back(self, ends: Mapping[tuple[str, int], int]) -> list[Place]:
        """Takes what is at or beyond these offsets out of what waits, it stays held; the places where there was any.

        `ends` is by (topic, partition); a partition that is not in it is beyond as a whole.
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
        """The batch with these runs is done; those that are to be accepted now."""
        self.unaccepted.update(runs)
        if self.unaccepted.number_of_runs > UNACCEPTED_RUNS_LIMIT:
            self.unaccepted = self.unaccepted.last_runs(UNACCEPTED_RUNS_LIMIT)
        # A run of it that came again and waits for another batch is done as well.
        self.waiting.remove(runs)
        return self.held.within(runs)

    def remember(self, unaccepted: RunMap) -> None:
        """What the checkpoint says was done and not accepted."""
        self.unaccepted.update(unaccepted)

    def accepted(self, runs: RunMap) -> None:
        self.held.remove(runs)
        self.unaccepted.remove(runs)

    def released(self, runs: RunMap) -> None:
        self.held.remove(runs)
        self.waiting.remove(runs)

    def lost(self, runs: RunMap) -> None:
        """Their locks are gone. What waits is not delivered: it comes again, to us or to others."""
        self.held.remove(runs)
        self.waiting.remove(runs)
