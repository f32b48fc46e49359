"""The state machine of a share-partition: a share group's in-flight records of one topic partition (KIP-932).

Rules
- The window runs from `start_offset` to `end_offset` (exclusive). All offsets below it are done; no offset beyond it
  was ever acquired. One interval map covers the window without a hole.
- A change that must be durable (acknowledgement, release, lock timeout) is first a pending value on its run: the id of
  the write that carries it, and the target state. The run keeps its state until `write_succeeded`. `write_failed`
  drops the pending value; `expire` then finds a lock that ran out or was ended meanwhile. So a timeout, a release and
  an acknowledgement cannot override each other.
- At most one write is in flight. Changes made meanwhile are collected under the next write id and written together.
  Changes that do not fit into one write are stored by several of the same id, before any later change.
- The window does not grow beyond `window_limit` offsets that the log has, because its runs are stored and written. A
  record batch that is longer is cut: the next fetch acquires the rest when the start offset has moved.
- With dead letters, records that are given up are Archiving until `dead_letters_done`: they cannot be acquired, and
  they hold the start offset.
- State that can be derived from the log is not persisted: acquisitions, and archived offsets that the log does not
  have. A start offset that moved only over such offsets is written; one that also moved over changes need not be.
- Below the log's start only due dead letters hold the start offset: see `remove_below`.
- A request is validated as a whole before any of it is applied.
- The cost of an operation is the runs that it touches and a few bisections, however many runs are in flight.

The machine reads no clock, sets no timer and never waits. `now_ms` is monotonic time in milliseconds. After every
change the caller reads `next_deadline_ms` (when to call `expire`) and calls `next_write` (what to store).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_core.states import (
    IN_FLIGHT_OFFSETS_LIMIT,
    STATE_BATCHES_PER_WRITE_LIMIT,
    AcknowledgeType,
    RecordState,
)
from kshare_leader.machine.acknowledgement import (
    AcknowledgementBatch,
    EndedAcquisitions,
    Stretch,
    check_batches,
    is_held,
    not_held,
    refused,
    renews_last_of,
    stretches_of,
    without_below,
)
from kshare_leader.machine.acquisition import (
    AcquiredRecords,
    Acquisition,
    FetchLimits,
    Piece,
    add_entry,
    available_pieces,
    choose,
    joined,
)
from kshare_leader.machine.acquisition_locks import NEVER, AcquisitionLocks
from kshare_leader.machine.archiving import ArchivingRun, archiving_runs
from kshare_leader.machine.facts import DeliveryFacts, facts_not_below
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.in_flight import InFlightWindow, make_write
from kshare_leader.machine.interval_map import NO_WRITE, Owner, Run
from kshare_leader.machine.state_write import (
    UNCHANGED,
    EndedDeliveries,
    PendingChanges,
    StateBatch,
    StateWrite,
    StoredOffsets,
    WriteInFlight,
    spans_of,
)
from kshare_leader.machine.transitions import (
    EVENT_OF_ACKNOWLEDGEMENT,
    OUTCOMES,
    REASON_OF_EVENT,
    Event,
    next_state,
)

__all__ = ["NEVER", "ArchivingRun", "FetchPosition", "SharePartition"]

_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ARCHIVING = RecordState.ARCHIVING
_ARCHIVED = RecordState.ARCHIVED


class FetchPosition(NamedTuple):
    """The offset to read the log from next; `is_new` means beyond the window."""

    offset: int
    is_new: bool


class SharePartition:
    """See the module docstring. All offsets are inclusive except `end_offset`."""

    __slots__ = (
        *("_changes", "_in_flight", "_locks", "_log_start_offset", "_rest", "_stored", "_window"),
        *("_state_batches_limit", "_window_limit", "durable_start_offset", "facts"),
    )

    def __init__(
        self,
        *,
        start_offset: int,
        state_batches: Iterable[StateBatch] = (),
        start_is_stored: bool = True,
        window_limit: int = IN_FLIGHT_OFFSETS_LIMIT,
        state_batches_limit: int = STATE_BATCHES_PER_WRITE_LIMIT,
    ) -> None:
        """Starts from the response of ReadShareGroupState, or from a start offset found by share.auto.offset.reset.

        In the second case (`start_is_stored` False) `next_write` returns a write of the start offset. No record may be
        acquired before that write has succeeded.
        """
        self._window = InFlightWindow(start_offset)
        self._locks = AcquisitionLocks()
        self._changes = PendingChanges(NO_WRITE + 1)
        self._changes.moves_start = not start_is_stored
        self._in_flight: WriteInFlight | None = None
        self._rest: PendingChanges | None = None
        """The changes that the write before left to the next one; they have its id."""
        self._window_limit = window_limit
        self._state_batches_limit = state_batches_limit
        self._log_start_offset = 0
        """Offsets below it were removed from the log; their state is not kept."""
        for batch in sorted(state_batches):
            self._window.recover(batch)
        self._stored = StoredOffsets(start_offset if start_is_stored else UNCHANGED, self._window.end_offset)
        # A write with an unknown outcome may have ended the first batches without the start offset.
        self._move_start_without_write()
        self.durable_start_offset = self._window.start_offset
        """The start offset once the last write was durable; valid once the first one is stored.

        A restart delivers no record before it. It may begin before it, at offsets that the log does not have, because
        their state is not persisted.
        """
        self.facts = DeliveryFacts()

    # Queries

    @property
    def start_offset(self) -> int:
        """The first offset that is not done (the share-partition start offset, SPSO)."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one that was ever acquired."""
        return self._window.end_offset

    @property
    def window(self) -> int:
        """The number of offsets from start to end, terminal ones included."""
        return self._window.end_offset - self._window.start_offset

    @property
    def available_count(self) -> int:
        """The number of Available offsets in the window."""
        return self._window.counts[_AVAILABLE]

    @property
    def acquired_count(self) -> int:
        """The number of Acquired offsets in the window. They stay Acquired until the write that ends it is durable."""
        return self._window.counts[_ACQUIRED]

    @property
    def archiving_count(self) -> int:
        """The number of offsets in the window that wait for their dead letters, or for the write that follows these."""
        return self._window.counts[_ARCHIVING]

    @property
    def delivery_complete_count(self) -> int:
        """The number of offsets in the window that are in a terminal state (KIP-1226)."""
        counts = self._window.counts
        return counts[RecordState.ACKNOWLEDGED] + counts[_ARCHIVED]

    @property
    def next_deadline_ms(self) -> int:
        """When to call `expire`: no lock runs out earlier. NEVER if there is no lock."""
        return self._locks.next_deadline_ms

    def oldest_deadline_ms(self) -> int:
        """The earliest deadline among the locks that are held; NEVER if there is none."""
        return self._locks.first_held_deadline_ms(self._window.runs.overlapping)

    @property
    def is_writing(self) -> bool:
        return self._in_flight is not None

    @property
    def wants_write(self) -> bool:
        """Whether `next_write` would return one."""
        return self._in_flight is None and (self._rest is not None or bool(self._changes))

    def runs(self) -> list[Run]:
        """The window's runs, read-only."""
        return list(self._window.runs)

    def runs_from(self, offset: int, limit: int) -> Sequence[Run]:
        """At most `limit` runs of the window, from the one that has `offset` on; read-only."""
        runs = self._window.runs
        if offset >= self.end_offset or not len(runs):
            return ()
        start = runs.index_of(max(offset, self.start_offset))
        return runs.runs(start, start + limit)

    def has_deliverable(self, log_end_offset: int, limits: GroupLimits) -> bool:
        """Whether a fetch would find records, in a log whose readable part ends before `log_end_offset`."""
        return self.available_count > 0 or (self.end_offset < log_end_offset and self.window < limits.max_record_locks)

    def can_acquire(self, limits: GroupLimits) -> bool:
        """Whether a fetch may look for records (SharePartition.canAcquireRecords); there may be none."""
        return self.available_count > 0 or self.window < limits.max_record_locks

    def next_fetch(self, cursor: int, limits: GroupLimits) -> FetchPosition | None:
        """The first offset at or after `cursor` that may be acquired: redelivery first, then new records."""
        end_offset = self.end_offset
        if cursor < end_offset and self.available_count:
            run = next(self._window.runs.runs_in(_AVAILABLE, cursor, end_offset - 1), None)
            if run is not None:
                return FetchPosition(max(run.first_offset, cursor), False)
        if self.window < limits.max_record_locks and cursor <= end_offset:
            return FetchPosition(end_offset, True)
        return None

    # Acquiring

    def acquire(
        self, limits: FetchLimits, now_ms: int, fetch_offset: int, batches: Sequence[tuple[int, int]], covered_end: int
    ) -> Acquisition:
        """Acquires records for `limits.owner`.

        `batches` are the base and last offsets of all batches with records that the log has from `fetch_offset` to
        `covered_end` (exclusive), in order; offsets there that lie in none of them do not exist and are archived.
        """
        assert self._stored.start != UNCHANGED, "the start offset must be stored before records are acquired"
        if limits.max_records <= 0:
            return Acquisition([], True)
        window = self._window
        entries: list[AcquiredRecords] = []
        total, complete = 0, False
        if fetch_offset < window.end_offset and self.available_count:
            self._archive_holes(fetch_offset, batches, covered_end)
            if batches:
                runs = window.runs.runs_in(_AVAILABLE, fetch_offset, batches[-1][1])
                chosen, complete = choose(available_pieces(runs, batches, fetch_offset), limits)
                total = self._take(chosen, limits, now_ms + limits.group.lock_duration_ms, entries)
        if not complete and covered_end > window.end_offset:
            deadline_ms = now_ms + limits.group.lock_duration_ms
            new: list[AcquiredRecords] = []
            complete = self._take_new(limits, deadline_ms, batches, covered_end, limits.max_records - total, new)
            entries += new
        if entries:
            self._tidy_locks()
        return Acquisition(entries, complete)

    def _take(self, chosen: list[Piece], limits: FetchLimits, deadline_ms: int, entries: list[AcquiredRecords]) -> int:
        total = 0
        window, runs = self._window, self._window.runs
        for first, last, delivery_count, _ in joined(chosen):
            start, stop = runs.slice_of(first, last)
            for run in runs.runs(start, stop):
                state = next_state(run.state, Event.ACQUIRE, delivery_count, limits.group.delivery_count_limit)
                assert state is not None, f"{run} is not Available"
                window.move(run, state)
                run.delivery_count = delivery_count + 1
                run.owner = limits.owner
                run.lock_deadline_ms = deadline_ms
                run.fetch_number = limits.fetch_number
            runs.coalesce(start, stop)
            self._locks.add(limits.owner, deadline_ms, first, last)
        for first, last, delivery_count, _ in chosen:
            total += last - first + 1
            add_entry(entries, first, last, delivery_count + 1, limits.batch_size)
        return total

    def _take_new(
        self,
        limits: FetchLimits,
        deadline_ms: int,
        batches: Sequence[tuple[int, int]],
        covered_end: int,
        max_records: int,
        entries: list[AcquiredRecords],
    ) -> bool:
        """Acquires batches beyond the end offset, which moves over them; returns whether the fetch is complete.

        `space` is what the window may still grow by. Offsets that the log does not have count as one, like their run.
        """
        room = min(max_records, limits.group.max_record_locks - self.window)
        space = self._window_limit - self.window
        batch_size = NEVER if limits.record_limit else limits.batch_size
        position = run_first = entry_first = self.end_offset
        for base, last in batches:
            if last < position:
                continue
            if room <= 0 or space <= 0:
                break
            if base > position:
                space -= 1
                self._append_acquired(run_first, position - 1, limits, deadline_ms)
                self._append_archived(position, base - 1, Event.MISSING_IN_LOG)
                add_entry(entries, entry_first, position - 1, 1, batch_size)
                position = run_first = entry_first = base
            elif position - entry_first >= batch_size:
                add_entry(entries, entry_first, position - 1, 1, batch_size)
                entry_first = position
            last = min(last, position + (min(room, space) if limits.record_limit else space) - 1)
            room -= last - position + 1
            space -= last - position + 1
            position = last + 1
        self._append_acquired(run_first, position - 1, limits, deadline_ms)
        add_entry(entries, entry_first, position - 1, 1, batch_size)
        if position < covered_end and (not batches or position > batches[-1][1]):
            self._append_archived(position, covered_end - 1, Event.MISSING_IN_LOG)
        self._move_start_without_write()
        return room <= 0 or space <= 0

    def _append_acquired(self, first: int, last: int, limits: FetchLimits, deadline_ms: int) -> None:
        if first <= last:
            self._window.append(Run(first, last, _ACQUIRED, 1, limits.owner, deadline_ms, limits.fetch_number))
            self._locks.add(limits.owner, deadline_ms, first, last)

    def _append_archived(self, first: int, last: int, event: Event) -> None:
        run = Run(first, last, _ARCHIVED, 0)
        self.facts.note(run, event, _ARCHIVED)
        self._window.append(run)

    def undo_acquire(self, owner: Owner, records: Iterable[AcquiredRecords]) -> None:
        """Releases acquired records whose response was not delivered, without counting a delivery."""
        runs = self._window.runs
        for first, last, delivery_count in records:
            first, last = max(first, self.start_offset), min(last, self.end_offset - 1)
            if first > last:
                continue
            start, stop = runs.slice_of(first, last)
            for run in runs.runs(start, stop):
                is_same = run.owner == owner and run.delivery_count == delivery_count
                state = next_state(run.state, Event.ACQUISITION_UNDONE, delivery_count, 0)
                if is_same and run.write_id == NO_WRITE and state is not None:
                    self.facts.note(run, Event.ACQUISITION_UNDONE, state)
                    self._window.move(run, state)
                    run.delivery_count -= 1
            runs.coalesce(start, stop)
        self._tidy_locks()

    # Offsets that the log does not have

    def _archive_holes(self, fetch_offset: int, batches: Sequence[tuple[int, int]], covered_end: int) -> None:
        position = fetch_offset
        for base, last in batches:
            if base > position:
                self._archive_missing(position, base - 1)
            position = last + 1
            if position >= self.end_offset:
                break
        if position < covered_end:
            self._archive_missing(position, covered_end - 1)
        self._move_start_without_write()

    def _archive_missing(self, first: int, last: int) -> None:
        first, last = max(first, self.start_offset), min(last, self.end_offset - 1)
        runs = self._window.runs
        for hole in list(runs.runs_in(_AVAILABLE, first, last)):
            start, stop = runs.slice_of(max(first, hole.first_offset), min(last, hole.last_offset))
            for run in runs.runs(start, stop):
                state = next_state(run.state, Event.MISSING_IN_LOG, run.delivery_count, 0)
                assert state is not None, f"{run} is not Available"
                self.facts.note(run, Event.MISSING_IN_LOG, state)
                self._window.move(run, state)
            runs.coalesce(start, stop)

    def remove_below(self, log_start_offset: int) -> None:
        """Archives all in-flight offsets below the log's new start offset, and moves the start offset.

        This includes records that are Acquired or wait for a write, as they can no longer be delivered. A later
        acknowledgement of them is not refused (see `acknowledge`). Runs that are Archiving, or are being stored as
        Archiving, stay: their dead letters can still name the records' offsets.
        """
        self._log_start_offset = max(self._log_start_offset, log_start_offset)
        window = self._window
        if log_start_offset <= window.start_offset:
            return
        if window.start_offset < window.end_offset:
            start, stop = window.runs.slice_of(window.start_offset, min(log_start_offset, window.end_offset) - 1)
            ended_ids: set[int] = set()
            for run in window.runs.runs(start, stop):
                state = next_state(run.state, Event.BELOW_LOG_START, run.delivery_count, 0)
                if state is not None and run.target is not _ARCHIVING:
                    ended_ids.add(run.write_id)
                    self.facts.note(run, Event.BELOW_LOG_START, state)
                    window.move(run, state)
            window.runs.coalesce(start, stop)
            unsent = [self._changes] if self._rest is None else [self._rest, self._changes]
            for changes in unsent:
                if changes.write_id in ended_ids:
                    changes.drop_outdated(window.runs)
                    changes.moves_start = True  # callers wait for this write, even if no change is left in it
            for changes in (*unsent, *([self._in_flight.changes] if self._in_flight else [])):
                changes.facts = facts_not_below(changes.facts, log_start_offset)
        if log_start_offset > window.end_offset:
            self._append_archived(window.end_offset, log_start_offset - 1, Event.BELOW_LOG_START)
        self._move_start_without_write()
        self._tidy_locks()

    # Acknowledging, releasing, timing out

    def acknowledge(
        self,
        owner: Owner,
        now_ms: int,
        batches: Sequence[AcknowledgementBatch],
        limits: GroupLimits,
        *,
        renew_allowed: bool = False,
        delivered_fetch_number: int = 0,
    ) -> int:
        """Applies acknowledgements as pending changes; returns the id of the write to wait for, or NO_WRITE.

        `renew_allowed` says that the request has IsRenewAck. Offsets that were removed from the log are ignored.

        Raises KafkaError, and changes nothing. INVALID_REQUEST: malformed batches, or offsets beyond the end offset
        while anything is in flight. INVALID_RECORD_STATE: a record is not held by `owner`, was acquired by a fetch
        after `delivered_fetch_number` (so the acknowledgement is for an older acquisition), its lock ran out, an
        earlier acknowledgement of it waits for its write, or RENEW is not enabled.
        """
        check_batches(batches, renew_allowed=renew_allowed)
        batches = without_below(batches, self._log_start_offset)
        stretches = self._stretches_in_window(batches)
        is_held = stretches is not None and self._are_held(stretches, owner, delivered_fetch_number, now_ms)
        if not is_held or not limits.renew_enabled:
            self._check_each(batches, owner, delivered_fetch_number, now_ms, renew_enabled=limits.renew_enabled)
        write_id = NO_WRITE
        runs = self._window.runs
        for stretch in stretches or ():
            steps = stretch.steps
            start, stop = runs.slice_of(stretch.first_offset, stretch.last_offset)
            if len(steps) > 1:
                stop = runs.split(start, stop, [end for end, _ in steps[:-1]])
            end, event = 0, Event.ACCEPT
            following = iter(steps)
            for run in runs.runs(start, stop):
                if run.first_offset >= end:
                    end, acknowledge_type = next(following)
                    event = EVENT_OF_ACKNOWLEDGEMENT[acknowledge_type]
                if event is Event.RENEW:
                    self._renew(run, now_ms + limits.lock_duration_ms)
                else:
                    write_id = self._end_delivery(run, event, limits)
            runs.coalesce(start, stop)
        return write_id

    def _stretches_in_window(self, batches: Sequence[AcknowledgementBatch]) -> list[Stretch] | None:
        """The stretches of ascending batches; None if an offset is outside the window, which bounds their number."""
        if batches and (batches[0].first_offset < self.start_offset or batches[-1].last_offset >= self.end_offset):
            return None
        return stretches_of(batches)

    def _are_held(self, stretches: Sequence[Stretch], owner: Owner, delivered_fetch_number: int, now_ms: int) -> bool:
        previous_last = -1
        for stretch in stretches:
            first, last = stretch.first_offset, stretch.last_offset
            if first <= previous_last:
                return False
            for run in self._window.runs.overlapping(first, last):
                if not_held(run, owner, delivered_fetch_number, now_ms):
                    return False
            previous_last = last
        return True

    def _check_each(
        self,
        batches: Sequence[AcknowledgementBatch],
        owner: Owner,
        delivered_fetch_number: int,
        now_ms: int,
        *,
        renew_enabled: bool,
    ) -> None:
        """Raises KafkaError for the first batch that cannot be applied."""
        previous: AcknowledgementBatch | None = None
        for batch in batches:
            if previous is not None and batch.first_offset <= previous.last_offset and not renews_last_of(previous):
                text = f"offset {batch.first_offset} is acknowledged twice"
                raise refused(batch, ErrorCode.INVALID_RECORD_STATE, text)
            self._check_held(batch, owner, delivered_fetch_number, now_ms)
            if not renew_enabled and AcknowledgeType.RENEW in batch.acknowledge_types:
                text = "RENEW is not enabled for the group (share.renew.acknowledge.enable)"
                raise refused(batch, ErrorCode.INVALID_RECORD_STATE, text)
            previous = batch

    def _check_held(self, batch: AcknowledgementBatch, owner: Owner, delivered_fetch_number: int, now_ms: int) -> None:
        first, last, _ = batch
        if first < self.start_offset or last >= self.end_offset:
            in_flight = f"{self.start_offset}-{self.end_offset - 1} are" if self.window else "nothing is"
            is_beyond = self.window > 0 and first >= self.start_offset
            code = ErrorCode.INVALID_REQUEST if is_beyond else ErrorCode.INVALID_RECORD_STATE
            raise refused(batch, code, f"{in_flight} in flight")
        for run in self._window.runs.overlapping(first, last):
            problem = not_held(run, owner, delivered_fetch_number, now_ms)
            if problem:
                text = f"{run.first_offset}-{run.last_offset} {problem}"
                raise refused(batch, ErrorCode.INVALID_RECORD_STATE, text)

    def _renew(self, run: Run, deadline_ms: int) -> None:
        assert run.owner is not None
        run.lock_deadline_ms = deadline_ms
        self._locks.add(run.owner, deadline_ms, run.first_offset, run.last_offset)
        self.facts.note(run, Event.RENEW, run.state)
        self._tidy_locks()

    def release(self, is_released: Callable[[Owner], bool], limits: GroupLimits) -> int:
        """Ends the locks of all owners for whom `is_released` is true; returns the id of the write, or NO_WRITE.

        The deliveries count. A record whose acknowledgement waits for its write keeps that acknowledgement; if the
        write fails, the next `expire` finds the record.
        """
        write_id = NO_WRITE
        runs = self._window.runs
        spans = self._locks.take_of(is_released)
        for first, last in spans:
            for run in runs.overlapping(first, last):
                if run.owner is None or not is_released(run.owner):
                    continue
                if run.write_id == NO_WRITE:
                    write_id = self._end_delivery(run, Event.SESSION_END, limits)
                    self._changes.ended = self._changes.ended.and_also(session_ended=run.length)
                run.lock_deadline_ms = 0
            runs.coalesce_over(first, last)
        return write_id

    def end_acquisitions(
        self, first_offset: int, last_offset: int, event: Event, limits: GroupLimits
    ) -> EndedAcquisitions:
        """Releases or rejects the Acquired records in first..last, of any member: an administrator's command.

        `event` is RELEASE or REJECT, with the effect that it has in an acknowledgement. A record in another state, or
        whose acknowledgement waits for its write, keeps that. The lock's later end finds nothing to do.
        """
        spans: list[tuple[int, int]] = []
        write_id = NO_WRITE
        first, last = max(first_offset, self.start_offset), min(last_offset, self.end_offset - 1)
        if first <= last:
            runs = self._window.runs
            start, stop = runs.slice_of(first, last)
            for run in runs.runs(start, stop):
                if is_held(run):
                    spans.append((run.first_offset, run.last_offset))
                    write_id = self._end_delivery(run, event, limits)
            runs.coalesce(start, stop)
        return EndedAcquisitions(spans, write_id)

    def held_in(self, first_offset: int, last_offset: int) -> int:
        """The number of records that `end_acquisitions` would end."""
        first, last = max(first_offset, self.start_offset), min(last_offset, self.end_offset - 1)
        if first > last:
            return 0
        held = [run for run in self._window.runs.overlapping(first, last) if is_held(run)]
        return sum(min(last, run.last_offset) - max(first, run.first_offset) + 1 for run in held)

    def expire(self, now_ms: int, limits: GroupLimits) -> int:
        """Ends the locks whose deadline is `now_ms` or earlier; returns the id of the write, or NO_WRITE."""
        write_id = NO_WRITE
        runs = self._window.runs
        for first, last in self._locks.take_due(now_ms):
            is_touched = False
            for run in runs.overlapping(first, last):
                if run.state is _ACQUIRED and run.write_id == NO_WRITE and run.lock_deadline_ms <= now_ms:
                    write_id = self._end_delivery(run, Event.LOCK_TIMEOUT, limits)
                    self._changes.ended = self._changes.ended.and_also(timed_out=run.length)
                    is_touched = True
            if is_touched:
                runs.coalesce_over(first, last)
        return write_id

    def _end_delivery(self, run: Run, event: Event, limits: GroupLimits) -> int:
        below_limit, at_limit = OUTCOMES[limits.dead_letters][event]
        target = below_limit
        if run.delivery_count >= limits.delivery_count_limit and at_limit is not below_limit:
            target = at_limit
            self._changes.ended = self._changes.ended.and_also(limit_exceeded=run.length)
        if target is _ARCHIVING:
            run.reason = REASON_OF_EVENT[event]
        return self._change(run, event, target)

    def _change(self, run: Run, event: Event, target: RecordState | None) -> int:
        """Makes `target` the run's pending state; returns the id of the write."""
        assert target is not None, f"{run} has no such transition"
        changes = self._changes
        run.write_id = changes.write_id
        run.target = target
        changes.add(run.first_offset, run.last_offset, target, run.delivery_count)
        self.facts.note_pending(changes.facts, run, event, target)
        return run.write_id

    def _tidy_locks(self) -> None:
        self._locks.tidy(self.acquired_count, self._window.runs, len(self._window.runs))

    # Dead letters

    def archiving(self, limit: int, limits: GroupLimits) -> list[ArchivingRun]:
        """The first `limit` runs whose dead letters are due, in the order of offsets.

        A run is listed until `dead_letters_done` covers it. The reason of a run that was stored before a restart is
        lost: a record at the delivery count limit is then assumed to have exceeded it.
        """
        return archiving_runs(self._window, limit, limits)

    def dead_letters_done(self, first_offset: int, last_offset: int) -> int:
        """Makes Archived the pending state of first..last, whose dead letters are stored or were given up.

        Returns the id of the write to wait for, or NO_WRITE if no offset there is Archiving any more.
        """
        first, last = max(first_offset, self.start_offset), min(last_offset, self.end_offset - 1)
        write_id = NO_WRITE
        runs = self._window.runs
        for archiving in list(runs.runs_in(_ARCHIVING, first, last)) if first <= last else []:
            if archiving.write_id != NO_WRITE:
                continue
            start, stop = runs.slice_of(max(first, archiving.first_offset), min(last, archiving.last_offset))
            for run in runs.runs(start, stop):
                state = next_state(run.state, Event.DEAD_LETTERED, run.delivery_count, 0)
                write_id = self._change(run, Event.DEAD_LETTERED, state)
            runs.coalesce(start, stop)
        return write_id

    # Writing

    def next_write(self) -> StateWrite | None:
        """The next write to send; None while a write is in flight, or if there are no changes.

        A write that `has_more` is followed by one with the same id, which carries on with the changes of that id.
        """
        if not self.wants_write:
            return None
        if self._rest is None:
            changes, self._changes = self._changes, PendingChanges(self._changes.write_id + 1)
        else:
            changes, self._rest = self._rest, None
        batches = changes.in_order()
        start_after = self.start_offset
        if batches and batches[0].first_offset == start_after:
            start_after = self._window.start_after(changes.write_id)
        write = make_write(
            changes.write_id, batches, start_after, self._window, self._stored, self._state_batches_limit
        )
        if write.has_more:
            self._rest = changes.cut_after(write.state_batches[-1].last_offset)
            batches = changes.in_order()
            start_after = min(start_after, self._rest.in_order()[0].first_offset)
        self._in_flight = WriteInFlight(write, spans_of(batches), changes, start_after)
        return write

    def write_succeeded(self, write_id: int) -> EndedDeliveries:
        """Applies the changes of a durable write, and moves the start offset over runs that are now terminal."""
        ended = self._end_write(write_id)
        self._stored = self._stored.after(ended.write)
        self.durable_start_offset = ended.start_after
        self.facts.add_all(ended.changes.facts)
        window = self._window
        for first, last in ended.spans:
            for run in window.runs.overlapping(first, last):
                if run.write_id == write_id:
                    window.move(run, run.target)
        window.move_start()
        if window.start_offset > ended.start_after:  # offsets after its changes were lost by the log meanwhile
            self._changes.moves_start = True
        for first, last in ended.spans:
            if last >= window.start_offset:
                window.runs.coalesce_over(first, last)
        self._tidy_locks()
        return ended.changes.ended

    def write_failed(self, write_id: int) -> None:
        """Drops the changes of a write that certainly had no effect; the records keep their previous state.

        The changes that would have followed with the same id are dropped too. Locks that ran out meanwhile are due at
        once, which `next_deadline_ms` shows.
        """
        ended = self._end_write(write_id)
        spans = ended.spans
        if self._rest is not None:
            spans = [*spans, *spans_of(self._rest.in_order())]
            self._rest = None
        runs = self._window.runs
        for first, last in spans:
            for run in runs.overlapping(first, last):
                if run.write_id != write_id:
                    continue
                run.write_id = NO_WRITE
                run.target = run.state
                if run.owner is not None:
                    run.reason = None
                    self._locks.add(run.owner, run.lock_deadline_ms, run.first_offset, run.last_offset)
            runs.coalesce_over(first, last)
        self._changes.moves_start = self._changes.moves_start or ended.changes.moves_start
        self._tidy_locks()

    def _end_write(self, write_id: int) -> WriteInFlight:
        assert self._in_flight is not None, f"no write is in flight, so {write_id} cannot end"
        ended, self._in_flight = self._in_flight, None
        assert ended.write.write_id == write_id, f"write {ended.write.write_id} is in flight, not {write_id}"
        return ended

    def _move_start_without_write(self) -> None:
        if self._window.move_start():
            self._changes.moves_start = True
