"""State writes of a share-partition to the share coordinator (WriteShareGroupState; KIP-932, the worked table).

The share coordinator keeps a start offset and the states of offsets from there to its own end, which may lie before the
leader's end offset, because records that are acquired for the first time need not be stored. With S the start offset
and S' the start offset after the change, a write contains:

- only the start offset S', if S' reaches the stored end and all changes lie below S';
- otherwise the changed runs in their new state. If a run begins beyond the stored end, the runs between are written
  too, because the stored offsets must have no hole. An Acquired run is then written as Available, without counting the
  current delivery. The start offset is S if it differs from the stored one, else -1 (unchanged).

A write has a limited number of state batches. If there are more, it contains the first of them, in the order of
offsets, and the next write has the same id and continues behind them. The id ends with the last of these writes, or
with the first that fails.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from kshare_core.states import RecordState
from kshare_leader.machine.facts import DeliveryFact
from kshare_leader.machine.interval_map import Run

UNCHANGED = -1
_first_offset = itemgetter(0)


class StateBatch(NamedTuple):
    """`StateBatch` of the state RPCs: offsets first..last in one persisted state."""

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int


class StateWrite(NamedTuple):
    """One write of a share-partition's state; it is idempotent."""

    write_id: int
    start_offset: int
    """-1: unchanged."""
    delivery_complete_count: int
    """Records in a terminal state at or after the start offset that is stored then (KIP-1226)."""
    state_batches: list[StateBatch]
    has_more: bool = False
    """Another write continues it, because not all state batches fit."""


class StoredOffsets(NamedTuple):
    """The start and end (exclusive) of the share coordinator's state, which decide what a write must contain."""

    start: int
    end: int

    def after(self, write: StateWrite) -> StoredOffsets:
        end = max(self.end, write.start_offset)
        if write.state_batches:
            end = max(end, write.state_batches[-1].last_offset + 1)
        return StoredOffsets(self.start if write.start_offset == UNCHANGED else write.start_offset, end)


class EndedDeliveries(NamedTuple):
    """Counts of the records in a write whose delivery ended by timeout, by session end, or at the limit.

    `limit_exceeded` counts released, timed-out and session-ended records at the delivery count limit.
    """

    timed_out: int = 0
    session_ended: int = 0
    limit_exceeded: int = 0

    def and_also(self, *, timed_out: int = 0, session_ended: int = 0, limit_exceeded: int = 0) -> EndedDeliveries:
        return EndedDeliveries(
            self.timed_out + timed_out, self.session_ended + session_ended, self.limit_exceeded + limit_exceeded
        )


NONE_ENDED = EndedDeliveries()


class PendingChanges:
    """The changes that one write will carry, in the order in which they were made; none overlaps another."""

    __slots__ = ("_batches", "_is_sorted", "ended", "facts", "moves_start", "write_id")

    def __init__(self, write_id: int) -> None:
        self.write_id = write_id
        self.moves_start = False
        """Whether the start offset must be written even without other changes, because it moved without a write."""
        self.ended = NONE_ENDED
        self.facts: list[DeliveryFact] = []
        """Facts that take effect with the write, if facts are kept."""
        self._batches: list[StateBatch] = []
        self._is_sorted = True

    def __bool__(self) -> bool:
        return self.moves_start or bool(self._batches)

    def add(self, first_offset: int, last_offset: int, state: RecordState, delivery_count: int) -> None:
        batches = self._batches
        if batches:
            first, last, before, count = batches[-1]
            if before is state and count == delivery_count and last + 1 == first_offset:
                batches[-1] = StateBatch(first, last_offset, state, count)
                return
            if last > first_offset:
                self._is_sorted = False
        batches.append(StateBatch(first_offset, last_offset, state, delivery_count))

    def drop_outdated(self, runs: Iterable[Run]) -> None:
        """Keeps only changes still pending on a run; needed when the log lost records that wait for their write."""
        if not self._batches:
            return
        begin = min(batch.first_offset for batch in self._batches)  # a write in flight of the same id ends before it
        self._batches = []
        self._is_sorted = True
        for run in runs:
            if run.write_id == self.write_id and run.first_offset >= begin:
                self.add(run.first_offset, run.last_offset, run.target, run.delivery_count)

    def in_order(self) -> list[StateBatch]:
        """The changes in the order of offsets; adjacent equal ones are joined."""
        if self._is_sorted:
            return self._batches
        self._batches.sort()
        changes: list[StateBatch] = []
        for batch in self._batches:
            add_batch(changes, batch)
        return changes

    def cut_after(self, offset: int) -> PendingChanges:
        """Cuts the changes behind `offset`, which is inside none, and returns the second part.

        It has the same id, and the counts of both parts.
        """
        batches = self.in_order()
        rest = PendingChanges(self.write_id)
        kept = bisect_right(batches, offset, key=_first_offset)
        self._batches, rest._batches = batches[:kept], batches[kept:]
        self._is_sorted = True
        rest.facts = [fact for fact in self.facts if fact.first_offset > offset]
        self.facts = [fact for fact in self.facts if fact.first_offset <= offset]
        self.ended, rest.ended = NONE_ENDED, self.ended
        return rest


class WriteInFlight(NamedTuple):
    """A write that `next_write` returned and that has not ended."""

    write: StateWrite
    spans: list[tuple[int, int]]
    """First and last offsets of its changes."""
    changes: PendingChanges
    start_after: int
    """The start offset once the write is durable, unless the log lost more records meanwhile."""


def spans_of(batches: Sequence[StateBatch]) -> list[tuple[int, int]]:
    """First and last offsets that ascending batches cover; adjacent batches form one span."""
    spans: list[tuple[int, int]] = []
    if not batches:
        return spans
    first = batches[0].first_offset
    end = first
    for batch_first, batch_last, _, _ in batches:
        if batch_first != end:
            spans.append((first, end - 1))
            first = batch_first
        end = batch_last + 1
    spans.append((first, end - 1))
    return spans


def without_holes(
    changes: list[StateBatch], stored_end: int, runs_between: Callable[[int, int], Iterable[Run]]
) -> list[StateBatch]:
    """The changes and, from `stored_end` on, the unchanged runs between them, which `runs_between` returns."""
    if changes[-1].first_offset <= stored_end:
        return changes
    batches: list[StateBatch] = []
    for batch in changes:
        before = batch.first_offset - 1
        if before >= stored_end:
            for run in runs_between(stored_end, before):
                add_batch(batches, _unchanged(run, max(run.first_offset, stored_end), min(run.last_offset, before)))
        add_batch(batches, batch)
        stored_end = max(stored_end, batch.last_offset + 1)
    return batches


def _unchanged(run: Run, first_offset: int, last_offset: int) -> StateBatch:
    if run.state is RecordState.ACQUIRED:
        return StateBatch(first_offset, last_offset, RecordState.AVAILABLE, max(run.delivery_count - 1, 0))
    return StateBatch(first_offset, last_offset, run.state, run.delivery_count)


def add_batch(batches: list[StateBatch], batch: StateBatch) -> None:
    """Adds a batch, joined to the previous one if that is adjacent and equal."""
    if batches:
        first, last, state, count = batches[-1]
        if state is batch.state and count == batch.delivery_count and last + 1 == batch.first_offset:
            batches[-1] = StateBatch(first, batch.last_offset, state, count)
            return
    batches.append(batch)
