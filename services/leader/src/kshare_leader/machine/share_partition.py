"""A share-partition: which records of a topic partition a share group has in flight (KIP-932, "Share-partitions").

Rules
- The window runs from `start_offset` to `end_offset` (exclusive). All below it are done; nothing beyond it was ever
  acquired. One interval map covers the window without a hole.
- A change that must outlive the leader (acknowledgement, release, lock timeout) is first a pending value on its run:
  the id of the write that carries it, and the state it leads to. The run stays Acquired until `write_succeeded`. On
  `write_failed` the pending value is dropped; a lock that ran out or was ended meanwhile is then found by `expire`.
  So there is no way for a timeout, a release and an acknowledgement to override each other.
- One write is in flight at most. Changes that come meanwhile gather under the next write id and go together.
- With dead letters, records that are given up are Archiving until `dead_letters_done`: nobody can have them, and they
  hold the start offset.
- What nobody waits for and the log can tell again needs no write of its own: acquiring, and archiving offsets that the
  log does not have. Only a start offset that moved by the latter is written.
- A request is checked as a whole before any of it is applied.

Nothing here reads a clock, sets a timer or waits. `now_ms` is monotonic time in milliseconds. The one who calls asks
`next_deadline_ms` for the time to call `expire`, and `next_write` for what to store, after every change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.states import RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch, check_batches, steps_of
from kshare_leader.machine.acquisition import (
    AcquiredRecords,
    Acquisition,
    FetchLimits,
    Piece,
    add_entry,
    available_pieces,
    choose,
)
from kshare_leader.machine.interval_map import NO_WRITE, IntervalMap, Owner, Run
from kshare_leader.machine.state_write import UNCHANGED, StateBatch, StateWrite, StoredOffsets, batches_to_write
from kshare_leader.machine.transitions import (
    EVENT_OF_ACKNOWLEDGEMENT,
    REASON_OF_EVENT,
    ArchivingReason,
    Event,
    next_state,
)

NEVER = 1 << 62
"""The lock deadline of a share-partition that has no lock."""

_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ARCHIVING = RecordState.ARCHIVING


class FetchPosition(NamedTuple):
    """Where to read the log next; `is_new` means beyond the window."""

    offset: int
    is_new: bool


class ArchivingRun(NamedTuple):
    """Records whose dead letters are due: stored as Archiving, and not on their way to Archived."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: ArchivingReason


class _Gathered:
    """The changes of one write: its id, and the first and last offset that it touches."""

    __slots__ = ("first_offset", "last_offset", "moves_start", "write_id")

    def __init__(self, write_id: int) -> None:
        self.write_id = write_id
        self.first_offset = NEVER
        self.last_offset = -1
        self.moves_start = False
        """Whether the start offset moved without a write."""

    @property
    def has_runs(self) -> bool:
        return self.last_offset >= 0

    def add(self, run: Run) -> None:
        self.first_offset = min(self.first_offset, run.first_offset)
        self.last_offset = max(self.last_offset, run.last_offset)


class SharePartition:
    """See the module's text. All offsets are inclusive but `end_offset`."""

    def __init__(
        self, *, start_offset: int, state_batches: Iterable[StateBatch] = (), start_is_stored: bool = True
    ) -> None:
        """From what ReadShareGroupState returned, or from a start offset found by share.auto.offset.reset.

        In the second case (`start_is_stored` False) `next_write` asks for the start offset to be stored; nothing may be
        acquired before that succeeded.
        """
        self._runs = IntervalMap()
        self.start_offset = start_offset
        self.end_offset = start_offset
        self._available_count = 0
        self._terminal_count = 0
        self._archiving_count = 0
        self._next_deadline_ms = NEVER
        self._gathered = _Gathered(NO_WRITE + 1)
        self._gathered.moves_start = not start_is_stored
        self._in_flight: tuple[_Gathered, StateWrite] | None = None
        for batch in sorted(state_batches):
            self._recover(batch)
        self._stored = StoredOffsets(start_offset if start_is_stored else UNCHANGED, self.end_offset)
        self._move_start()

    def _recover(self, batch: StateBatch) -> None:
        first = max(batch.first_offset, self.end_offset)
        if first > batch.last_offset:
            return
        if first > self.end_offset:
            self._append(Run(self.end_offset, first - 1, _AVAILABLE, 0))
        state = _AVAILABLE if batch.state is _ACQUIRED else batch.state
        self._append(Run(first, batch.last_offset, state, batch.delivery_count))

    # What there is to see

    @property
    def window(self) -> int:
        """How many offsets lie between start and end; terminal ones count."""
        return self.end_offset - self.start_offset

    @property
    def available_count(self) -> int:
        """How many offsets of the window may be acquired."""
        return self._available_count

    @property
    def delivery_complete_count(self) -> int:
        """How many offsets of the window are in a terminal state (KIP-1226)."""
        return self._terminal_count

    @property
    def acquired_count(self) -> int:
        """How many offsets of the window are held by somebody, or wait for a write."""
        return self.window - self._available_count - self._terminal_count - self._archiving_count

    @property
    def archiving_count(self) -> int:
        """How many offsets of the window wait for their dead letters, or for the write that says they have them."""
        return self._archiving_count

    @property
    def next_deadline_ms(self) -> int:
        """When to call `expire`: no lock runs out before. NEVER where there is none."""
        return self._next_deadline_ms

    @property
    def is_writing(self) -> bool:
        return self._in_flight is not None

    @property
    def wants_write(self) -> bool:
        """Whether `next_write` would return one."""
        return self._in_flight is None and (self._gathered.has_runs or self._gathered.moves_start)

    def runs(self) -> list[Run]:
        """The window's runs, for a look from outside; not to be changed."""
        return list(self._runs)

    def has_deliverable(self, log_end_offset: int, max_record_locks: int) -> bool:
        """Whether a fetch would find something, in a log whose readable part ends before `log_end_offset`."""
        return self._available_count > 0 or (self.end_offset < log_end_offset and self.window < max_record_locks)

    def next_fetch(self, cursor: int, max_record_locks: int) -> FetchPosition | None:
        """The first offset at or after `cursor` that may be acquired: redelivery first, then new records."""
        if self._available_count and cursor < self.end_offset:
            for run in self._runs.from_offset(cursor):
                if run.state is _AVAILABLE:
                    return FetchPosition(max(run.first_offset, cursor), False)
        if self.window < max_record_locks and cursor <= self.end_offset:
            return FetchPosition(self.end_offset, True)
        return None

    # Acquiring

    def acquire(
        self, limits: FetchLimits, now_ms: int, fetch_offset: int, batches: Sequence[tuple[int, int]], covered_end: int
    ) -> Acquisition:
        """Gives records to `limits.owner`.

        `batches` are the base and last offsets of all batches with records that the log has from `fetch_offset` to
        `covered_end` (exclusive), in order; offsets there that lie in none of them do not exist and are archived.
        """
        assert self._stored.start != UNCHANGED, "the start offset must be stored before records are acquired"
        if limits.max_records <= 0:
            return Acquisition([], True)
        self._archive_holes(fetch_offset, batches, covered_end)
        entries: list[AcquiredRecords] = []
        total, complete = 0, False
        if self._available_count and fetch_offset < self.end_offset:
            runs = self._runs.overlapping(fetch_offset, self.end_offset - 1)
            chosen, complete = choose(available_pieces(runs, batches, fetch_offset), limits)
            total = self._take(chosen, limits, now_ms, entries)
        if not complete and covered_end > self.end_offset:
            complete = self._take_new(limits, now_ms, batches, covered_end, limits.max_records - total, entries)
        if entries:
            self._next_deadline_ms = min(self._next_deadline_ms, now_ms + limits.lock_duration_ms)
        return Acquisition(entries, complete)

    def _take(self, chosen: list[Piece], limits: FetchLimits, now_ms: int, entries: list[AcquiredRecords]) -> int:
        total = 0
        deadline_ms = now_ms + limits.lock_duration_ms
        for first, last, delivery_count, _ in _joined(chosen):
            start, stop = self._runs.slice_of(first, last)
            for run in self._runs.runs(start, stop):
                self._move(run, next_state(run.state, Event.ACQUIRE, run.delivery_count, limits.delivery_count_limit))
                run.delivery_count = delivery_count + 1
                run.owner = limits.owner
                run.lock_deadline_ms = deadline_ms
                run.fetch_number = limits.fetch_number
            self._runs.coalesce(start, stop)
        for first, last, delivery_count, _ in chosen:
            total += last - first + 1
            add_entry(entries, first, last, delivery_count + 1, limits.batch_size)
        return total

    def _take_new(
        self,
        limits: FetchLimits,
        now_ms: int,
        batches: Sequence[tuple[int, int]],
        covered_end: int,
        max_records: int,
        entries: list[AcquiredRecords],
    ) -> bool:
        """Moves the end offset over batches that nobody had; returns whether that is all for this fetch."""
        room = min(max_records, limits.max_record_locks - self.window)
        batch_size = limits.batch_size
        deadline_ms = now_ms + limits.lock_duration_ms
        position = run_first = entry_first = self.end_offset
        for base, last in batches:
            if last < position:
                continue
            if room <= 0:
                break
            if base > position:
                self._append_acquired(run_first, position - 1, limits, deadline_ms)
                self._append(Run(position, base - 1, RecordState.ARCHIVED, 0))
                add_entry(entries, entry_first, position - 1, 1, batch_size)
                position = run_first = entry_first = base
            elif position - entry_first >= batch_size:
                add_entry(entries, entry_first, position - 1, 1, batch_size)
                entry_first = position
            if limits.record_limit:
                last = min(last, position + room - 1)
            room -= last - position + 1
            position = last + 1
        self._append_acquired(run_first, position - 1, limits, deadline_ms)
        add_entry(entries, entry_first, position - 1, 1, batch_size)
        if position < covered_end and (not batches or position > batches[-1][1]):
            self._append(Run(position, covered_end - 1, RecordState.ARCHIVED, 0))
        self._move_start_without_write()
        return room <= 0

    def _append_acquired(self, first: int, last: int, limits: FetchLimits, deadline_ms: int) -> None:
        if first <= last:
            self._append(Run(first, last, _ACQUIRED, 1, limits.owner, deadline_ms, limits.fetch_number))

    def undo_acquire(self, owner: Owner, records: Iterable[AcquiredRecords]) -> None:
        """Gives back what `acquire` gave and nobody saw: the delivery does not count."""
        for first, last, _ in records:
            first = max(first, self.start_offset)
            if first > last or last >= self.end_offset:
                continue
            start, stop = self._runs.slice_of(first, last)
            for run in self._runs.runs(start, stop):
                if run.state is _ACQUIRED and run.owner == owner and run.write_id == NO_WRITE:
                    self._move(run, next_state(run.state, Event.ACQUISITION_UNDONE, run.delivery_count, 0))
                    run.delivery_count -= 1
            self._runs.coalesce(start, stop)

    # Offsets that the log does not have

    def _archive_holes(self, fetch_offset: int, batches: Sequence[tuple[int, int]], covered_end: int) -> None:
        if not self._available_count or fetch_offset >= self.end_offset:
            return
        position = fetch_offset
        for base, last in batches:
            if base > position:
                self._archive_missing(position, base - 1, Event.MISSING_IN_LOG)
            position = last + 1
            if position >= self.end_offset:
                break
        if position < covered_end:
            self._archive_missing(position, covered_end - 1, Event.MISSING_IN_LOG)
        self._move_start_without_write()

    def remove_below(self, log_start_offset: int) -> None:
        """The log begins at `log_start_offset` now: what is below it is archived, what is held or pending later."""
        if log_start_offset <= self.start_offset:
            return
        self._archive_missing(self.start_offset, log_start_offset - 1, Event.BELOW_LOG_START)
        if log_start_offset > self.end_offset:
            self._append(Run(self.end_offset, log_start_offset - 1, RecordState.ARCHIVED, 0))
        self._move_start_without_write()

    def _archive_missing(self, first: int, last: int, event: Event) -> None:
        first = max(first, self.start_offset)
        last = min(last, self.end_offset - 1)
        if first > last:
            return
        start, stop = self._runs.slice_of(first, last)
        for run in self._runs.runs(start, stop):
            if run.write_id == NO_WRITE:
                self._move(run, next_state(run.state, event, run.delivery_count, 0))
        self._runs.coalesce(start, stop)

    # Acknowledging, releasing, timing out

    def acknowledge(
        self,
        owner: Owner,
        now_ms: int,
        batches: Sequence[AcknowledgementBatch],
        *,
        delivery_count_limit: int,
        lock_duration_ms: int,
        renew_allowed: bool = False,
        delivered_fetch_number: int = 0,
        dead_letters: bool = False,
    ) -> int:
        """Applies acknowledgements as pending changes; returns the id of the write to wait for, or NO_WRITE.

        Raises KafkaError, and changes nothing: INVALID_REQUEST for malformed batches, INVALID_RECORD_STATE where a
        record is not held by `owner`, was acquired by a fetch after `delivered_fetch_number` (the acknowledgement is of
        an older acquisition then), its lock ran out, or an earlier acknowledgement of it waits for its write.
        """
        check_batches(batches, renew_allowed=renew_allowed)
        previous_last = -1
        for batch in batches:
            self._check_held(batch, owner, delivered_fetch_number, now_ms, previous_last)
            previous_last = batch.last_offset
        write_id = NO_WRITE
        for batch in batches:
            steps = steps_of(batch)
            start, stop = self._runs.slice_of(batch.first_offset, batch.last_offset)
            if len(steps) > 1:
                stop = self._runs.split(start, stop, [step.first_offset for step in steps])
            last, event = -1, Event.ACCEPT
            following = iter(steps)
            for run in self._runs.runs(start, stop):
                if run.first_offset > last:
                    _, last, acknowledge_type = next(following)
                    event = EVENT_OF_ACKNOWLEDGEMENT[acknowledge_type]
                if event is Event.RENEW:
                    run.lock_deadline_ms = now_ms + lock_duration_ms
                    self._next_deadline_ms = min(self._next_deadline_ms, run.lock_deadline_ms)
                else:
                    write_id = self._mark(run, event, delivery_count_limit, dead_letters)
            self._runs.coalesce(start, stop)
        return write_id

    def _check_held(
        self,
        batch: AcknowledgementBatch,
        owner: Owner,
        delivered_fetch_number: int,
        now_ms: int,
        previous_last: int,
    ) -> None:
        first, last, _ = batch
        problem = None
        if first <= previous_last:
            problem = f"offset {first} is acknowledged twice"
        elif first < self.start_offset or last >= self.end_offset:
            problem = f"only {self.start_offset}-{self.end_offset - 1} are in flight"
        else:
            for run in self._runs.overlapping(first, last):
                problem = _not_held(run, owner, delivered_fetch_number, now_ms)
                if problem:
                    break
        if problem:
            text = f"Acknowledgement batch {first}-{last}: {problem}"
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)

    def release(
        self, is_released: Callable[[Owner], bool], delivery_count_limit: int, dead_letters: bool = False
    ) -> int:
        """Ends the locks of all owners for whom `is_released` is true; returns the id of the write, or NO_WRITE.

        The deliveries count. Records whose acknowledgement waits for its write keep that; should the write fail, they
        are found by the next `expire`.
        """
        write_id = NO_WRITE
        for run in self._runs:
            if run.state is not _ACQUIRED or run.owner is None or not is_released(run.owner):
                continue
            if run.write_id != NO_WRITE:
                run.lock_deadline_ms = 0
            else:
                write_id = self._mark(run, Event.SESSION_END, delivery_count_limit, dead_letters)
        self._runs.coalesce(0, len(self._runs))
        return write_id

    def expire(self, now_ms: int, delivery_count_limit: int, dead_letters: bool = False) -> int:
        """Ends the locks whose deadline is `now_ms` or earlier; returns the id of the write, or NO_WRITE."""
        if now_ms < self._next_deadline_ms:
            return NO_WRITE
        write_id = NO_WRITE
        following = NEVER
        for run in self._runs:
            if run.state is not _ACQUIRED or run.write_id != NO_WRITE:
                continue
            if run.lock_deadline_ms <= now_ms:
                write_id = self._mark(run, Event.LOCK_TIMEOUT, delivery_count_limit, dead_letters)
            else:
                following = min(following, run.lock_deadline_ms)
        self._next_deadline_ms = following
        if write_id != NO_WRITE:
            self._runs.coalesce(0, len(self._runs))
        return write_id

    def _mark(self, run: Run, event: Event, delivery_count_limit: int, dead_letters: bool) -> int:
        target = next_state(run.state, event, run.delivery_count, delivery_count_limit, dead_letters)
        assert target is not None, f"{event} is not possible for {run}"
        run.write_id = self._gathered.write_id
        run.target = target
        if target is _ARCHIVING:
            run.reason = REASON_OF_EVENT[event]
        self._gathered.add(run)
        return run.write_id

    # Dead letters

    def archiving(self, limit: int, *, delivery_count_limit: int) -> list[ArchivingRun]:
        """The first `limit` runs whose dead letters are due, in the order of offsets.

        They are listed until `dead_letters_done` names them; also those that were stored before a restart, of which
        the reason is not known any more: a record at the delivery count limit is taken for one that exceeded it.
        """
        found: list[ArchivingRun] = []
        if not self._archiving_count:
            return found
        for run in self._runs:
            if run.state is not _ARCHIVING or run.write_id != NO_WRITE:
                continue
            if len(found) == limit:
                break
            reason = run.reason
            if reason is None:
                exceeded = run.delivery_count >= delivery_count_limit
                reason = ArchivingReason.DELIVERY_COUNT_EXCEEDED if exceeded else ArchivingReason.REJECTED
            found.append(ArchivingRun(run.first_offset, run.last_offset, run.delivery_count, reason))
        return found

    def dead_letters_done(self, first_offset: int, last_offset: int) -> int:
        """The dead letters of first..last are stored: what is Archiving there is to be Archived.

        Returns the id of the write to wait for, or NO_WRITE where nothing there is Archiving any more.
        """
        first = max(first_offset, self.start_offset)
        last = min(last_offset, self.end_offset - 1)
        write_id = NO_WRITE
        if first > last:
            return write_id
        start, stop = self._runs.slice_of(first, last)
        for run in self._runs.runs(start, stop):
            if run.state is _ARCHIVING and run.write_id == NO_WRITE:
                write_id = self._mark(run, Event.DEAD_LETTERED, 0, False)
        self._runs.coalesce(start, stop)
        return write_id

    # Writing

    def next_write(self) -> StateWrite | None:
        """What to store now; None while a write is in flight or nothing is to be stored."""
        gathered = self._gathered
        if not self.wants_write:
            return None
        write = self._make_write(gathered)
        self._in_flight = (gathered, write)
        self._gathered = _Gathered(gathered.write_id + 1)
        return write

    def _make_write(self, gathered: _Gathered) -> StateWrite:
        write_id = gathered.write_id
        start_after = self._start_offset_after(write_id)
        changed_terminal = 0
        if gathered.has_runs:
            for run in self._runs.overlapping(gathered.first_offset, gathered.last_offset):
                if run.write_id == write_id and run.target.is_terminal:
                    changed_terminal += run.length
        terminal_count = self._terminal_count + changed_terminal
        all_below = start_after >= self._stored.end and gathered.last_offset < start_after
        if all_below or not gathered.has_runs:
            count = terminal_count - (start_after - self.start_offset)
            return StateWrite(write_id, start_after, count, [])
        stored_end = max(self._stored.end, self.start_offset)
        runs = self._runs.overlapping(min(gathered.first_offset, stored_end), gathered.last_offset)
        batches = batches_to_write(runs, write_id, stored_end)
        if self.start_offset != self._stored.start:
            return StateWrite(write_id, self.start_offset, terminal_count, batches)
        return StateWrite(write_id, UNCHANGED, terminal_count, batches)

    def _start_offset_after(self, write_id: int) -> int:
        for run in self._runs:
            if not (run.state.is_terminal or (run.write_id == write_id and run.target.is_terminal)):
                return run.first_offset
        return self.end_offset

    def write_succeeded(self, write_id: int) -> None:
        """The write is durable: its changes apply, and the start offset moves over what is terminal now."""
        gathered, write = self._end_write(write_id)
        self._stored = self._stored.after(write)
        for run in self._runs.overlapping(gathered.first_offset, gathered.last_offset):
            if run.write_id == write_id:
                run.write_id = NO_WRITE
                self._move(run, run.target)
        self._coalesce_around(gathered)
        self._move_start()

    def write_failed(self, write_id: int) -> None:
        """The write certainly has no effect: its changes are dropped and their records have the state that they had.

        Locks that ran out meanwhile are due at once: `next_deadline_ms` says so.
        """
        gathered, _ = self._end_write(write_id)
        for run in self._runs.overlapping(gathered.first_offset, gathered.last_offset):
            if run.write_id == write_id:
                run.write_id = NO_WRITE
                run.target = run.state
                if run.state is _ACQUIRED:
                    run.reason = None
                    self._next_deadline_ms = min(self._next_deadline_ms, run.lock_deadline_ms)
        self._coalesce_around(gathered)
        self._gathered.moves_start = self._gathered.moves_start or gathered.moves_start

    def _end_write(self, write_id: int) -> tuple[_Gathered, StateWrite]:
        assert self._in_flight is not None, f"no write is in flight, so {write_id} cannot end"
        ended, self._in_flight = self._in_flight, None
        assert ended[1].write_id == write_id, f"write {ended[1].write_id} is in flight, not {write_id}"
        return ended

    def _coalesce_around(self, gathered: _Gathered) -> None:
        if gathered.has_runs and len(self._runs):
            start = self._runs.index_of(gathered.first_offset)
            self._runs.coalesce(start, self._runs.index_of(gathered.last_offset) + 1)

    # The runs and their counts

    def _move(self, run: Run, state: RecordState | None) -> None:
        """Brings a run into a state that is not pending; None leaves it alone."""
        if state is None or state is run.state:
            return
        self._count(run, -1)
        run.state = state
        run.target = state
        if state is not _ACQUIRED:
            run.owner = None
            run.lock_deadline_ms = 0
            run.fetch_number = 0
        if state is not _ARCHIVING:
            run.reason = None
        self._count(run, 1)

    def _count(self, run: Run, sign: int) -> None:
        if run.state is _AVAILABLE:
            self._available_count += sign * run.length
        elif run.state.is_terminal:
            self._terminal_count += sign * run.length
        elif run.state is _ARCHIVING:
            self._archiving_count += sign * run.length

    def _append(self, run: Run) -> None:
        self._count(run, 1)
        self.end_offset = run.last_offset + 1
        self._runs.append(run)

    def _move_start(self) -> bool:
        """Moves the start offset over terminal records; returns whether it moved."""
        done = 0
        for run in self._runs:
            if not run.state.is_terminal:
                break
            self._count(run, -1)
            done += 1
        if not done:
            return False
        self.start_offset = self._runs[done - 1].last_offset + 1
        self._runs.drop_first(done)
        return True

    def _move_start_without_write(self) -> None:
        if self._move_start():
            self._gathered.moves_start = True


def _joined(chosen: Iterable[Piece]) -> list[Piece]:
    """Pieces next to each other with the same count, as one."""
    joined: list[Piece] = []
    for piece in chosen:
        if joined:
            first, last, count, length = joined[-1]
            if last + 1 == piece.first_offset and count == piece.delivery_count:
                joined[-1] = Piece(first, piece.last_offset, count, length)
                continue
        joined.append(piece)
    return joined


def _not_held(run: Run, owner: Owner, delivered_fetch_number: int, now_ms: int) -> str | None:
    """Why `owner` cannot acknowledge the run; None where it can."""
    text = f"{run.first_offset}-{run.last_offset}"
    if run.state is not _ACQUIRED:
        return f"{text} is {run.state.name}, not ACQUIRED"
    if run.owner != owner:
        return f"{text} is held by another member"
    if run.fetch_number > delivered_fetch_number:
        return f"{text} was acquired anew since, by a fetch whose answer was not delivered yet"
    if run.write_id != NO_WRITE:
        return f"{text} already waits for an earlier change to be stored"
    if run.lock_deadline_ms <= now_ms:
        return f"the acquisition lock of {text} ran out"
    return None
