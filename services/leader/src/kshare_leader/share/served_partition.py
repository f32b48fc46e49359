"""A share-partition that this leader serves: the machine, its log, its timer, its writes and its waiting fetches.

A new share-partition loads itself. It reads its state and truncates it where it has records that the log does not have.
If there is no stored start offset, it finds one by the newest configs of the group, for which this leader may have to
wait (`current_catalog`). All of this is stored before any record is delivered (`start_offset`). Then it serves until it
is dropped.

A share-partition is dropped when:
- a write is fenced, or its outcome is unknown;
- the topic is deleted or has another leader;
- the last session that fetched here ended (so that an administrator's changes to an empty group take effect);
- it was idle for a while.
A dropped share-partition never serves again. The next request makes a new one, which reads the state again.

A state write that is in flight when the share-partition is dropped may still become durable. Its acknowledgements are
answered when its outcome is known, and the new share-partition reads the state after that (`state_store`).
Acknowledgements whose write was not sent had no effect and are answered at once.

A fetch does not cross long stretches of the log without a record for the group (aborted transactions, markers,
compaction). The scan crosses them, one slice per turn of the event loop, until it finds a record or the log ends.
Meanwhile fetches wait or return no records; the end of the scan wakes those that wait.

In a group with a dead-letter topic, records that are given up are Archiving first. `dead_letters` is notified of them,
and calls back when they are done.

While state writes lag, no records are acquired: records that cannot be acknowledged in time should not be delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_core.log_fields import about
from kshare_core.states import AcknowledgeType, RecordState
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.dead_letters.limits import ARCHIVING_RUNS_LIMIT
from kshare_leader.dead_letters.service import DeadLetters, DeadLetterSettings
from kshare_leader.history.partition_history import SILENT, PartitionHistory
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner
from kshare_leader.machine.share_partition import NEVER, ArchivingRun, SharePartition
from kshare_leader.machine.state_write import StateWrite
from kshare_leader.measures import Progress, ShareCounts
from kshare_leader.ports import TopicLog
from kshare_leader.share.acquiring import Taken, archive_slice, readable_bytes, take_records
from kshare_leader.share.current_catalog import CurrentCatalog
from kshare_leader.share.group_settings import GroupSettings
from kshare_leader.share.limits import (
    FAILED_WRITE_PAUSE_MS,
    IDLE_UNLOAD_MS,
    RETRY_INTERVAL_MAX_MS,
    SLOW_LOAD_MS,
)
from kshare_leader.share.log_slices import readable_end
from kshare_leader.share.pending_writes import PendingWrites, Stored
from kshare_leader.share.start_offset import (
    NOT_TRUNCATED,
    SharePartitionState,
    diverging_offset,
    find_start_offset,
    state_end_offset,
    truncated,
)
from kshare_leader.share.state_store import Outcome, ShareStateStore, WriteEnd

_RELEASE = bytes([AcknowledgeType.RELEASE])


class Waiter(Protocol):
    """A fetch that waits for records of one or more share-partitions."""

    @property
    def owner(self) -> Owner: ...
    @property
    def fetch_number(self) -> int: ...

    def wake(self) -> None:
        """Tries to acquire; called repeatedly until the fetch removes itself from the list."""
        ...

    def end(self) -> None:
        """Ends the wait without records."""
        ...


class ServedPartition:
    """See the module docstring. Everything except loading is synchronous, on the event loop."""

    __slots__ = (
        "_catalog",
        "_dead_letters",
        "_ending",
        "_history",
        "_initial",
        "_loading",
        "_loop",
        "_made_at_ms",
        "_members",
        "_no_expiry_before_ms",
        "_on_dropped",
        "_remove_listener",
        "_report",
        "_reset",
        "_scan_handle",
        "_settings",
        "_store",
        "_timer",
        "_used_at_ms",
        "_waiters",
        "_wake_handle",
        "_wall_now_ms",
        "_write_in_flight",
        "_write_problem",
        "_writes",
        "counts",
        "error",
        "key",
        "leader_epoch",
        "log",
        "machine",
        "state_epoch",
        "truncation",
    )

    def __init__(
        self,
        *,
        key: SharePartitionKey,
        leader_epoch: int,
        log: TopicLog,
        store: ShareStateStore,
        catalog: CurrentCatalog,
        settings: Callable[[str], GroupSettings],
        wall_now_ms: Callable[[], int],
        on_dropped: Callable[[ServedPartition], None],
        report: Callable[[str], None],
        counts: ShareCounts,
        dead_letters: DeadLetters | None = None,
        history: PartitionHistory = SILENT,
    ) -> None:
        self.key = key
        self.counts = counts
        self.leader_epoch = leader_epoch
        self.state_epoch = -1
        self.log = log
        self.error: KafkaError | None = None
        """Why it was dropped."""
        self.machine: SharePartition | None = None
        """None while loading, and after it was dropped."""
        self._store = store
        self._catalog = catalog
        self._settings = settings
        """The settings of a group id in the newest catalog."""
        self._wall_now_ms = wall_now_ms
        self._on_dropped = on_dropped
        self._report = about(key, report)
        self._dead_letters = dead_letters
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[Waiter, None] = {}
        self._members: dict[Owner, None] = {}
        """Owners whose sessions fetched here and have not ended."""
        self._writes = PendingWrites()
        self._write_in_flight = NO_WRITE
        """The id of the write that was sent and has not ended."""
        self._ending: SharePartition | None = None
        """The machine of a dropped share-partition until its write in flight has ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._no_expiry_before_ms = 0
        self._wake_handle: asyncio.Handle | None = None
        self._scan_handle: asyncio.Handle | None = None
        self._initial: SharePartition | None = None
        """The machine while its start offset is being stored."""
        self._reset = ""
        """The share.auto.offset.reset that gave the start offset."""
        self.truncation = NOT_TRUNCATED
        """The newest truncation of the state."""
        self._write_problem: str | None = None
        self._made_at_ms = self._used_at_ms = self._now_ms()
        self._remove_listener = log.add_listener(self._schedule_wake)
        self._loading: asyncio.Task[None] | None = self._loop.create_task(self._load(), name=f"load {key}")

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    @property
    def is_dropped(self) -> bool:
        return self.error is not None

    @property
    def is_loading(self) -> bool:
        return self.machine is None and self.error is None

    @property
    def settings(self) -> GroupSettings:
        return self._settings(self.key.group_id)

    @property
    def is_idle(self) -> bool:
        """Whether it may be unloaded: it is at rest and was not used for IDLE_UNLOAD_MS."""
        return self._now_ms() - self._used_at_ms >= IDLE_UNLOAD_MS and self._is_at_rest

    @property
    def _is_at_rest(self) -> bool:
        """Whether no fetch or acknowledgement waits, and no record is Acquired, Archiving or being stored."""
        if self._waiters or self._writes:
            return False
        machine = self.machine
        if machine is None:
            return True
        return not (machine.acquired_count or machine.archiving_count or machine.is_writing or machine.wants_write)

    @property
    def is_at_rest(self) -> bool:
        """Whether it is loaded and idle: no waits, and no record is Acquired, Archiving or being stored."""
        return self.machine is not None and self._is_at_rest

    @property
    def is_lagging(self) -> bool:
        """Whether its state writes lag so much that no records should be acquired."""
        return self._writes.is_lagging(self._now_ms())

    @property
    def problem(self) -> str | None:
        """Why it cannot store or load its state; None if it can."""
        if self._write_problem is not None:
            return f"share-partition {self.key} cannot store its state: {self._write_problem}"
        waiting_ms = self._now_ms() - self._made_at_ms
        if self.is_loading and waiting_ms >= SLOW_LOAD_MS:
            return f"share-partition {self.key} has been loading its state for {waiting_ms} ms"
        return None

    # Loading and dropping

    async def _load(self) -> None:
        try:
            state = await self._read_state()
            if state.start_offset >= 0:
                machine = SharePartition(start_offset=state.start_offset, state_batches=state.state_batches)
                self._serve(machine)
                return
            await self._catalog.catch_up(self.key)
            self._reset = self.settings.auto_offset_reset
            start = await find_start_offset(self._reset, self.log, self._wall_now_ms())
        except KafkaError as error:
            # A client may ask for thousands of share-partitions that its group never initialized; it is told each time.
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._report(f"share-partition {self.key} cannot be loaded: {error}")
            self.drop(error)
            return
        except StorageFailure as failure:
            self._report(f"share-partition {self.key} cannot find its start offset: {failure}")
            self.drop(KafkaError(failure.code, str(failure)))
            return
        except Exception as bug:
            report_contained_bug(f"share-partition {self.key} failed unexpectedly while it was loaded", bug)
            self.drop(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(bug)))
            return
        self._initial = SharePartition(start_offset=start, start_is_stored=False)
        self._store.schedule(self)

    async def _read_state(self) -> SharePartitionState:
        """Reads the stored state, and truncates it first if it has records that the log does not have.

        The state is read again after a truncation, so that this leader serves the share coordinator's state.
        Raises KafkaError and StorageFailure.
        """
        cuts = 0
        while True:
            state = await self._store.read(self.key, self.leader_epoch)
            self.state_epoch = state.state_epoch
            self.truncation = state.truncation
            offset = diverging_offset(state, self.log)
            if offset is None:
                return state
            if cuts:  # the share coordinator reported a truncation that did not happen
                self._report(f"the state of share-partition {self.key} was not cut at offset {offset}, trying again")
                await asyncio.sleep(RETRY_INTERVAL_MAX_MS / 1000)
            await self._store.truncate(self, truncated(state, offset))
            if not cuts:
                self._report_truncation(state, offset)
            cuts += 1

    def _report_truncation(self, state: SharePartitionState, offset: int) -> None:
        state_end, log_end = state_end_offset(state), self.log.high_watermark
        why = "the log ends there" if offset == log_end else "the log has other records from there on"
        self.counts.note_truncated(state_end - offset)
        self._report(
            f"the state of share-partition {self.key} was cut at offset {offset}: {why}. The state had start offset "
            f"{state.start_offset} and knew offsets up to {state_end - 1}; the log of partition "
            f"{self.key.partition} has offsets {self.log.log_start_offset} to {log_end - 1}. What was acknowledged at "
            f"offset {offset} or later was of records that are lost, or an administrator set a start offset beyond the "
            "log's end. All records that are in the log from there on will be delivered"
        )

    @property
    def leader_epochs(self) -> bytes:
        """The log's leader epoch history."""
        return self.log.encoded_leader_epochs()

    def _serve(self, machine: SharePartition, reset: str = "") -> None:
        self.machine = machine
        self._history.loaded(machine, self.state_epoch, reset, self.truncation.leader_epoch)
        self._loading = None
        self._after_change()
        self._schedule_wake()

    def drop(self, error: KafkaError) -> None:
        """Stops serving permanently. Waiting fetches, and acknowledgements whose write was not sent, get `error`.

        Acknowledgements of the write in flight get that write's outcome.
        """
        if self.error is not None:
            return
        was_at_rest = self.is_at_rest
        machine = self.machine
        self.error = error
        self.machine = self._initial = None
        self._writes.fail_unsent(error, self._write_in_flight)
        if machine is None:
            self.counts.note_dropped(None)
        elif self._write_in_flight == NO_WRITE:
            self._end(machine, error)
        else:
            self._ending = machine
        self._remove_listener()
        if self._loading is not None and self._loading is not asyncio.current_task():
            self._loading.cancel()
        self._loading = None
        for handle in (self._timer, self._scan_handle):
            if handle is not None:
                handle.cancel()
        self._on_dropped(self)
        if self._dead_letters is not None:
            self._dead_letters.dropped(self, was_at_rest=was_at_rest)
        self._schedule_wake()

    def _end(self, machine: SharePartition, error: KafkaError) -> None:
        """Ends a dropped share-partition that has no write in flight any more."""
        self.counts.note_dropped(Progress(machine.start_offset, machine.delivery_complete_count))
        self._history.changed(machine, self._now_ms)
        self._history.unloaded(error.code.name)

    # Waiting fetches

    def add_waiter(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)
        self._used_at_ms = self._now_ms()

    def settings_changed(self) -> None:
        """Handles changed group configs: more records may be deliverable than before."""
        self._schedule_wake()

    def _schedule_wake(self) -> None:
        if self._wake_handle is None and self._waiters:
            self._wake_handle = self._loop.call_soon(self._wake)

    def serve_waiting(self) -> None:
        """Serves the waiting fetches first; a new fetch calls this before it acquires records."""
        if self._wake_handle is not None:
            self._wake_handle.cancel()
            self._wake()

    def _wake(self) -> None:
        """Wakes the waiting fetches, the longest waiting first, while there are deliverable records."""
        self._wake_handle = None
        for waiter in list(self._waiters):
            if not (self.is_dropped or self.has_deliverable()):
                return
            if waiter in self._waiters:
                waiter.wake()

    def has_deliverable(self) -> bool:
        """Whether a fetch should try to acquire records now."""
        if self.machine is None or self._scan_handle is not None or self.is_lagging:
            return False
        settings = self.settings
        end_offset = readable_end(self.log, read_committed=settings.read_committed)
        return self.machine.has_deliverable(end_offset, settings.limits)

    @property
    def is_acquirable(self) -> bool:
        """Whether a fetch may look for records; it may find none."""
        if self.machine is None or self.is_lagging:
            return False
        return self.machine.can_acquire(self.settings.limits)

    def readable_bytes(self, max_bytes: int) -> int:
        """An estimate of the bytes that a fetch could acquire now, at most about `max_bytes`; raises StorageFailure."""
        if not self.has_deliverable():
            return 0
        assert self.machine is not None
        return readable_bytes(self.machine, self.log, self.settings, max_bytes)

    # Requests

    def add_member(self, owner: Owner) -> None:
        """Notes that a session fetches here, until `release` ends it."""
        self._members[owner] = None

    def take(self, limits: FetchLimits, max_bytes: int, *, at_least_one_batch: bool) -> Taken:
        """Acquires records up to the limits. Raises StorageFailure, and then has acquired none."""
        self._used_at_ms = self._now_ms()
        taken = Taken([], [])
        if self.machine is None or self._scan_handle is not None or self.is_lagging:
            return taken
        start_offset = self.machine.start_offset
        try:
            scan_is_due = take_records(
                self.machine,
                self.log,
                limits,
                taken,
                now_ms=self._now_ms(),
                max_bytes=max_bytes,
                at_least_one_batch=at_least_one_batch,
                read_committed=self.settings.read_committed,
            )
            if scan_is_due:
                self._schedule_scan()
        except StorageFailure:
            self._history.acquired(limits, taken.records, taken.batches)
            self.machine.undo_acquire(limits.owner, taken.records)
            raise
        finally:
            self._after_change()
            if self.machine.start_offset != start_offset:
                self._schedule_wake()
        self.counts.note_acquired(taken.records)
        self._history.acquired(limits, taken.records, taken.batches)
        return taken

    # The scan over stretches without records

    def _schedule_scan(self) -> None:
        if self._scan_handle is None:
            self._scan_handle = self._loop.call_soon(self._scan)

    def _scan(self) -> None:
        """Archives one slice of offsets without records for the group; continues in the next turn if it found none.

        Archived offsets are stored with the next change or at the end of the scan, as they can be derived from the log.
        """
        self._scan_handle = None
        machine = self.machine
        if machine is None:
            return
        try:
            goes_on = archive_slice(machine, self.log, self.settings)
        except StorageFailure:  # the next fetch fails with it too, and returns it
            goes_on = False
        if goes_on:
            self._schedule_scan()
        else:
            self._after_change()
            self._schedule_wake()

    def undo(self, owner: Owner, records: Sequence[AcquiredRecords]) -> None:
        """Releases records whose response will not be sent."""
        if self.machine is not None and records:
            self.machine.undo_acquire(owner, records)
            self.counts.note_taken_back(records)
            self._after_change()
            self._schedule_wake()

    def acknowledge(
        self,
        owner: Owner,
        batches: Sequence[AcknowledgementBatch],
        *,
        is_renew_ack: bool,
        delivered_fetch_number: int,
    ) -> Stored | None:
        """Applies acknowledgements; None if there is no write to wait for. Raises KafkaError, see the machine."""
        now_ms = self._used_at_ms = self._now_ms()
        if self.machine is None:
            text = f"nothing of share-partition {self.key} is acquired; it is being loaded"
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
        write_id = self.machine.acknowledge(
            owner,
            now_ms,
            batches,
            self._limits,
            renew_allowed=is_renew_ack,
            delivered_fetch_number=delivered_fetch_number,
        )
        self.counts.note_acknowledged(batches, is_stored=write_id != NO_WRITE)
        self._after_change()
        return self._stored(write_id)

    def release(self, is_released: Callable[[Owner], bool]) -> Stored | None:
        """Ends the sessions of some owners: their waits and their locks. None if none of them had a lock."""
        self._end_waits(lambda waiter: is_released(waiter.owner))
        for owner in [owner for owner in self._members if is_released(owner)]:
            del self._members[owner]
        if self.machine is None:
            return None
        write_id = self.machine.release(is_released, self._limits)
        self._after_change()
        stored = self._stored(write_id)
        self.unload_if_unused()
        return stored

    def release_until(self, owner: Owner, last_fetch_number: int) -> Stored | None:
        """Releases a session whose last fetch had this number, but not the records of the owner's newer session."""
        machine = self.machine
        held = [] if machine is None else [run for run in machine.runs() if run.owner == owner]
        newer = any(waiter.owner == owner and waiter.fetch_number > last_fetch_number for waiter in self._waiters)
        if machine is None or not (newer or any(run.fetch_number > last_fetch_number for run in held)):
            return self.release(owner.__eq__)
        self._end_waits(lambda waiter: waiter.owner == owner and waiter.fetch_number <= last_fetch_number)
        now_ms = self._now_ms()
        batches = [
            AcknowledgementBatch(run.first_offset, run.last_offset, _RELEASE)
            for run in held
            if run.fetch_number <= last_fetch_number and run.write_id == NO_WRITE and run.lock_deadline_ms > now_ms
        ]
        if not batches:
            return None
        return self.acknowledge(owner, batches, is_renew_ack=False, delivered_fetch_number=last_fetch_number)

    def take_back(self, owner: Owner, fetch_numbers: Collection[int]) -> None:
        """Releases records acquired by fetches whose response was lost, without counting a delivery.

        Ends those of the fetches that still wait.
        """
        self._end_waits(lambda waiter: waiter.owner == owner and waiter.fetch_number in fetch_numbers)
        if self.machine is not None:
            lost = [
                AcquiredRecords(run.first_offset, run.last_offset, run.delivery_count)
                for run in self.machine.runs()
                if run.state is RecordState.ACQUIRED and run.owner == owner and run.fetch_number in fetch_numbers
            ]
            self.undo(owner, lost)

    def _end_waits(self, is_ended: Callable[[Waiter], bool]) -> None:
        for waiter in [waiter for waiter in self._waiters if is_ended(waiter)]:
            waiter.end()

    def unload_if_unused(self) -> None:
        """Unloads the share-partition if no session that fetched here is left (Kafka: onGroupEmpty)."""
        if self.machine is not None and not self._members and self._is_at_rest:
            self.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"no member of the group uses {self.key}"))

    def _stored(self, write_id: int) -> Stored | None:
        return None if write_id == NO_WRITE else self._writes.wait_for(write_id)

    # Dead letters

    @property
    def _limits(self) -> GroupLimits:
        """The group's limits; without `dead_letters` no record is ever Archiving."""
        limits = self.settings.limits
        is_possible = self._dead_letters is not None or not limits.dead_letters
        return limits if is_possible else replace(limits, dead_letters=False)

    @property
    def dead_letter_settings(self) -> DeadLetterSettings:
        settings = self.settings
        return DeadLetterSettings(settings.dead_letter_topic, settings.copy_dead_letters)

    @property
    def start_offset(self) -> int:
        """The share-partition's start offset; 0 while it is not known, so that no dead letters are forgotten."""
        return 0 if self.machine is None else self.machine.start_offset

    @property
    def no_dead_letters_before_ms(self) -> int:
        """The loop time in milliseconds at which to continue after a refused write."""
        return self._no_expiry_before_ms

    def archiving(self, limit: int) -> list[ArchivingRun]:
        """The first `limit` runs whose dead letters are due."""
        if self.machine is None:
            return []
        return self.machine.archiving(limit, self._limits)

    def dead_letters_done(self, runs: Sequence[OffsetRun], *, stored_in: str = "") -> None:
        """Archives runs whose dead letters are stored in topic `stored_in`, or were given up (empty)."""
        if self.machine is not None:
            if stored_in:
                self._history.dead_lettered(self.archiving(ARCHIVING_RUNS_LIMIT), runs, stored_in)
            for first, last in runs:
                self.machine.dead_letters_done(first, last)
            self._after_change()

    # Writing, and the timer

    def _after_change(self) -> None:
        machine = self.machine
        if machine is None:
            return
        self._history.changed(machine, self._now_ms)
        if machine.wants_write:
            self._store.schedule(self)
        if machine.archiving_count and self._dead_letters is not None:
            self._dead_letters.wake(self)
        self._set_timer(machine.next_deadline_ms)

    def next_write(self) -> StateWrite | None:
        machine = self._initial or self.machine
        write = None if machine is None else machine.next_write()
        if write is None:
            return None
        self._write_in_flight = write.write_id
        if self._initial is not None:
            return write
        self._writes.began(self._now_ms())
        self.counts.write_began()
        return write if self._prepare_archiving(write) else None

    def _prepare_archiving(self, write: StateWrite) -> bool:
        """Whether the write may be sent; one with Archiving batches needs a note on the leader's own disk first."""
        if self._dead_letters is None or all(batch.state is not RecordState.ARCHIVING for batch in write.state_batches):
            return True
        try:
            self._dead_letters.before_archiving(self.key)
        except StorageFailure as failure:
            error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            self.write_ended(write, WriteEnd(Outcome.REFUSED, error))
            return False
        return True

    def write_ended(self, write: StateWrite, end: WriteEnd) -> None:
        self._write_in_flight = NO_WRITE
        if self.error is not None:
            self._last_write_ended(write, end, self.error)
            return
        if end.outcome in (Outcome.FENCED, Outcome.UNKNOWN):
            assert end.error is not None
            self.drop(end.error)
            return
        if self._initial is not None:
            self._initial_write_ended(self._initial, write, end)
            return
        assert self.machine is not None
        if end.outcome is Outcome.DURABLE:
            self._became_durable(self.machine, write)
        else:
            self.counts.write_ended(None)
            self.machine.write_failed(write.write_id)
            self._no_expiry_before_ms = self._now_ms() + FAILED_WRITE_PAUSE_MS
        self._write_problem = None if end.error is None else str(end.error)
        self._writes.ended(write.write_id, end.error)
        self._after_change()
        self._schedule_wake()
        self.unload_if_unused()

    def _became_durable(self, machine: SharePartition, write: StateWrite) -> None:
        self.counts.write_ended(machine.write_succeeded(write.write_id))
        self._history.changed(machine, self._now_ms)
        self._history.start_offset_moved(machine.durable_start_offset, self.log.log_start_offset)

    def _last_write_ended(self, write: StateWrite, end: WriteEnd, dropped_for: KafkaError) -> None:
        """Ends the write that was in flight when the share-partition was dropped."""
        machine, self._ending = self._ending, None
        if machine is None:  # it carried only the start offset
            return
        if end.outcome is Outcome.DURABLE:
            self._became_durable(machine, write)
        self._end(machine, dropped_for)
        self._writes.ended(write.write_id, end.error)

    def _initial_write_ended(self, machine: SharePartition, write: StateWrite, end: WriteEnd) -> None:
        if end.error is not None:
            self.drop(end.error)
            return
        machine.write_succeeded(write.write_id)
        self._initial = None
        self._serve(machine, self._reset)

    def _set_timer(self, deadline_ms: int) -> None:
        """Sets the timer for a deadline. An earlier timer is kept: it finds nothing due and sets the next one."""
        if deadline_ms == NEVER:
            return
        when = (max(deadline_ms, self._no_expiry_before_ms) + 1) / 1000
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.machine is not None:
            self.machine.expire(self._now_ms(), self._limits)
            self._after_change()
