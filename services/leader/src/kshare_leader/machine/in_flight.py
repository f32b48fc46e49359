"""The in-flight window of a share-partition: its runs, their offsets, and the number of records per state."""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.states import RecordState
from kshare_leader.machine.interval_map import NO_WRITE, IntervalMap, Run
from kshare_leader.machine.state_write import UNCHANGED, StateBatch, StateWrite, StoredOffsets, without_holes

_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ARCHIVING = RecordState.ARCHIVING


class InFlightWindow:
    """The runs from `start_offset` to `end_offset` (exclusive), without a hole. `counts` is indexed by record state."""

    __slots__ = ("counts", "end_offset", "runs", "start_offset")

    def __init__(self, start_offset: int) -> None:
        self.runs = IntervalMap()
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.counts = [0] * (max(RecordState) + 1)

    def recover(self, batch: StateBatch) -> None:
        """Adds a stored batch; offsets in no batch are Available and were never delivered."""
        first = max(batch.first_offset, self.end_offset)
        if first > batch.last_offset:
            return
        if first > self.end_offset:
            self.append(Run(self.end_offset, first - 1, _AVAILABLE, 0))
        state = _AVAILABLE if batch.state is _ACQUIRED else batch.state
        self.append(Run(first, batch.last_offset, state, batch.delivery_count))

    def append(self, run: Run) -> None:
        """Adds a run at the window's end."""
        self.counts[run.state] += run.last_offset - run.first_offset + 1
        self.end_offset = run.last_offset + 1
        self.runs.append(run)

    def move(self, run: Run, state: RecordState) -> None:
        """Sets a run's state, with no write pending; a run has an owner only while it is Acquired."""
        length = run.last_offset - run.first_offset + 1
        counts = self.counts
        counts[run.state] -= length
        counts[state] += length
        run.state = run.target = state
        run.write_id = NO_WRITE
        if state is not _ACQUIRED:
            run.owner = None
            run.lock_deadline_ms = 0
            run.fetch_number = 0
            if state is not _ARCHIVING:
                run.reason = None
            self.runs.mark(run)

    def move_start(self) -> bool:
        """Moves the start offset over terminal records; returns whether it moved."""
        done = 0
        counts = self.counts
        for run in self.runs:
            state = run.state
            if not state.is_terminal:
                break
            counts[state] -= run.last_offset - run.first_offset + 1
            done += 1
        if not done:
            return False
        self.start_offset = self.runs[done - 1].last_offset + 1
        self.runs.drop_first(done)
        return True

    def start_after(self, write_id: int) -> int:
        """The start offset once the write of that id is durable."""
        for run in self.runs:
            target = run.target if run.write_id == write_id else run.state
            if not target.is_terminal:
                return run.first_offset
        return self.end_offset


def make_write(
    write_id: int,
    changes: list[StateBatch],
    start_after: int,
    window: InFlightWindow,
    stored: StoredOffsets,
    limit: int,
) -> StateWrite:
    """The write that stores `changes`, with which the window's start moves to `start_after` (see `state_write`).

    If it would have more than `limit` state batches, it stores only the changes that are in the first `limit`.
    """
    start_offset = window.start_offset
    done = window.counts[RecordState.ACKNOWLEDGED] + window.counts[RecordState.ARCHIVED]
    if not changes:
        return StateWrite(write_id, start_offset, done, [])
    if start_after >= stored.end and changes[-1].last_offset < start_after:
        done += _terminal_offsets(changes, start_after)
        return StateWrite(write_id, start_after, done - (start_after - start_offset), [])
    batches = without_holes(changes, max(stored.end, start_offset), window.runs.overlapping)
    has_more = len(batches) > limit
    if has_more:
        batches = batches[:limit]
    done += _terminal_offsets(changes, batches[-1].last_offset)
    start = UNCHANGED if start_offset == stored.start else start_offset
    return StateWrite(write_id, start, done, batches, has_more)


def _terminal_offsets(changes: Iterable[StateBatch], last_offset: int) -> int:
    return sum(last - first + 1 for first, last, state, _ in changes if state.is_terminal and last <= last_offset)
