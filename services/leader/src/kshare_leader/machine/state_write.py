"""What a share-partition asks the share coordinator to store (WriteShareGroupState; KIP-932, the worked table).

The share coordinator keeps a start offset and the states of offsets from there to its own end, which may lie before the
leader's end offset: records that are acquired for the first time need not be stored. So a write is made like this,
with S the start offset and S' the start offset after the change:

- Where S' reaches the stored end and all that changed lies below S', the start offset S' says it all.
- Otherwise the changed runs are written in their new state. Where one begins beyond the stored end, the runs between
  are written too, for the stored offsets must have no hole: an Acquired run as Available with the delivery under way
  not counted. The start offset is S where it differs from the stored one, else -1 (unchanged).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kshare_core.states import RecordState
from kshare_leader.machine.interval_map import Run

UNCHANGED = -1


class StateBatch(NamedTuple):
    """`StateBatch` of the state RPCs: offsets first..last in one persisted state."""

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int


class StateWrite(NamedTuple):
    """One write of a share-partition's state. Writing it a second time changes nothing."""

    write_id: int
    start_offset: int
    """-1: unchanged."""
    delivery_complete_count: int
    """Records in a terminal state at or after the start offset that is stored then (KIP-1226)."""
    state_batches: list[StateBatch]


class StoredOffsets(NamedTuple):
    """The part of the share coordinator's state that decides what a write must say; `end` is behind the last offset."""

    start: int
    end: int

    def after(self, write: StateWrite) -> StoredOffsets:
        end = max(self.end, write.start_offset)
        if write.state_batches:
            end = max(end, write.state_batches[-1].last_offset + 1)
        return StoredOffsets(self.start if write.start_offset == UNCHANGED else write.start_offset, end)


def batches_to_write(runs: Sequence[Run], write_id: int, stored_end: int) -> list[StateBatch]:
    """The batches of a write: of `runs`, those that it changes, and those from `stored_end` to the last of them."""
    last_changed = max((index for index, run in enumerate(runs) if run.write_id == write_id), default=-1)
    batches: list[StateBatch] = []
    for run in runs[: last_changed + 1]:
        if run.write_id == write_id:
            _add(batches, StateBatch(run.first_offset, run.last_offset, run.target, run.delivery_count))
        elif run.last_offset >= stored_end:
            _add(batches, _unchanged(run, max(run.first_offset, stored_end)))
    return batches


def _unchanged(run: Run, first_offset: int) -> StateBatch:
    if run.state is RecordState.ACQUIRED:
        return StateBatch(first_offset, run.last_offset, RecordState.AVAILABLE, max(run.delivery_count - 1, 0))
    return StateBatch(first_offset, run.last_offset, run.state, run.delivery_count)


def _add(batches: list[StateBatch], batch: StateBatch) -> None:
    if batches:
        first, last, state, count = batches[-1]
        if last + 1 == batch.first_offset and state == batch.state and count == batch.delivery_count:
            batches[-1] = StateBatch(first, batch.last_offset, state, count)
            return
    batches.append(batch)
