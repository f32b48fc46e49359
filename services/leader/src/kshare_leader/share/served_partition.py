"""A share-partition that this leader serves: the machine, its log and its timer.

This is the façade. `loading` reads the state, or finds a start offset, which is stored before any record is delivered;
`waiting_fetches` has the fetches that wait for records, `state_writing` the writes of the state and who waits for them.

A share-partition is dropped when:
- a write is fenced, or its outcome is unknown;
- the topic is deleted or has another leader;
- the last session that fetched here ended (so that an administrator's changes to an empty group take effect);
- it was idle for a while.
A dropped share-partition never serves again. The next request makes a new one, which reads the state again.

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

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.states import AcknowledgeType, RecordState
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.dead_letters.limits import ARCHIVING_RUNS_LIMIT
from kshare_leader.dead_letters.port import DeadLetterSender, DeadLetterSettings
from kshare_leader.history.partition_history import SILENT, PartitionHistory
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner, Run
from kshare_leader.machine.share_partition import NEVER, ArchivingRun, SharePartition
from kshare_leader.machine.transitions import EVENT_OF_ACKNOWLEDGEMENT
from kshare_leader.share.acquiring import Taken, archive_slice, readable_bytes, take_records
from kshare_leader.share.group_settings import GroupSettings
from kshare_leader.share.limits import IDLE_UNLOAD_MS, SLOW_LOAD_MS
from kshare_leader.share.loading import StateLoader
from kshare_leader.share.log_slices import readable_end
from kshare_leader.share.pending_writes import Stored
from kshare_leader.share.start_offset import NOT_TRUNCATED
from kshare_leader.share.state_store import ShareStateStore
from kshare_leader.share.state_writing import StateWriting
from kshare_leader.share.waiting_fetches import Sleeper, Waiter, WaitingFetches

_RELEASE = bytes([AcknowledgeType.RELEASE])


class ServedPartition:
    """See the module docstring. Everything except loading is synchronous, on the event loop.

    `settings` returns those of its group in the newest catalog.
    """

    __slots__ = (
        "_dead_letters",
        "_history",
        "_is_left",
        "_loading",
        "_loop",
        "_made_at_ms",
        "_members",
        "_on_dropped",
        "_read_committed",
        "_remove_listener",
        "_reset",
        "_scan_handle",
        "_settings",
        "_starting",
        "_store",
        "_timer",
        "_timer_at",
        "_used_at_ms",
        "_waiting",
        "_writing",
        "counts",
        "error",
        "key",
        "leader_epoch",
        "log",
        "machine",
        "truncation",
    )

    def __init__(
        self,
        *,
        loader: StateLoader,
        store: ShareStateStore,
        settings: Callable[[], GroupSettings],
        on_dropped: Callable[[ServedPartition], None],
        dead_letters: DeadLetterSender | None = None,
        history: PartitionHistory = SILENT,
    ) -> None:
        self.key = loader.key
        self.counts = loader.counts
        self.leader_epoch = loader.leader_epoch
        self.log = loader.log
        self.error: KafkaError | None = None
        """Why it was dropped."""
        self.machine: SharePartition | None = None
        """None while loading, and after it was dropped."""
        self.truncation = NOT_TRUNCATED
        """The newest truncation of the state."""
        self._settings = settings
        self._on_dropped = on_dropped
        self._dead_letters = dead_letters
        self._store = store
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._waiting = WaitingFetches(may_wake=lambda: self.is_dropped or self.has_deliverable())
        self._writing = StateWriting(
            key=self.key,
            leader_epoch=self.leader_epoch,
            log=self.log,
            store=store,
            counts=self.counts,
            history=history,
            dead_letters=dead_letters,
            now_ms=self._now_ms,
            on_started=self._serve,
            on_ended=self._write_ended,
            on_lost=self.drop,
        )
        self._members: dict[Owner, None] = {}
        """Owners whose sessions fetched here and have not ended."""
        self._is_left = False
        """Whether a session ended while the state was loaded."""
        self._starting: StateLoader | None = None
        """The loader whose new start offset is being stored."""
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        """When the timer fires. It is kept here, because uvloop's handle of a time that has come does not know it."""
        self._scan_handle: asyncio.Handle | None = None
        self._reset = ""
        """The share.auto.offset.reset that gave the start offset."""
        self._made_at_ms = self._used_at_ms = self._now_ms()
        self._read_committed = self.settings.read_committed
        self._remove_listener = self._listen()
        self._loading: asyncio.Task[None] | None = self._loop.create_task(self._load(loader), name=f"load {self.key}")

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
        """The settings of its group in the newest catalog."""
        return self._settings()

    @property
    def is_idle(self) -> bool:
        """Whether it may be unloaded: it is at rest and was not used for IDLE_UNLOAD_MS."""
        return self._now_ms() - self._used_at_ms >= IDLE_UNLOAD_MS and self._is_at_rest

    @property
    def _is_at_rest(self) -> bool:
        """Whether no fetch or acknowledgement waits, and no record is Acquired, Archiving or being stored."""
        if self._waiting or self._writing.is_awaited:
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
        return self._writing.is_lagging

    @property
    def problem(self) -> str | None:
        """Why it cannot store or load its state; None if it can."""
        if self._writing.problem is not None:
            return f"share-partition {self.key} cannot store its state: {self._writing.problem}"
        waiting_ms = self._now_ms() - self._made_at_ms
        if self.is_loading and waiting_ms >= SLOW_LOAD_MS:
            return f"share-partition {self.key} has been loading its state for {waiting_ms} ms"
        return None

    @property
    def readable_end(self) -> int:
        """The first offset of the log that the group cannot have yet."""
        return readable_end(self.log, read_committed=self._read_committed)

    def lock_remaining_ms(self, run: Run) -> int:
        """How long the lock of a run still lasts; 0 unless it is Acquired."""
        return max(0, run.lock_deadline_ms - self._now_ms()) if run.state is RecordState.ACQUIRED else 0

    @property
    def oldest_acquired_ms(self) -> int:
        """How long the oldest acquisition lock has been held, since its acquisition or renewal; 0 without locks."""
        machine = self.machine
        deadline_ms = machine.oldest_deadline_ms() if machine is not None and machine.acquired_count else NEVER
        if not 0 < deadline_ms < NEVER:  # 0: it was released, and the write of that failed
            return 0
        return max(0, self.settings.limits.lock_duration_ms - (deadline_ms - self._now_ms()))

    # Loading and dropping

    async def _load(self, loader: StateLoader) -> None:
        try:
            loaded = await loader.load()
        except KafkaError as error:
            self.drop(error)
            return
        self._writing.state_epoch = loaded.state_epoch
        self.truncation = loaded.truncation
        self._reset = loaded.reset
        if loaded.reset:
            self._starting = loader
            self._writing.store_start_offset(loaded.machine)
        else:
            self._serve(loaded.machine)

    @property
    def state_epoch(self) -> int:
        return self._writing.state_epoch

    def _serve(self, machine: SharePartition) -> None:
        self.machine = machine
        self._writing.serve(machine)
        self._history.loaded(machine, self.state_epoch, self._reset, self.truncation.leader_epoch)
        self._loading = None
        if self._starting is not None:
            self._starting.start_offset_stored()
            self._starting = None
        self._after_change()
        self._waiting.schedule_wake()
        if self._is_left:
            self.unload_if_unused()

    def drop(self, error: KafkaError) -> None:
        """Stops serving permanently. Waiting fetches, and acknowledgements whose write was not sent, get `error`.

        Acknowledgements of the write in flight get that write's outcome.
        """
        if self.error is not None:
            return
        was_at_rest = self.is_at_rest
        self.error = error
        self.machine = None
        self._writing.drop(error)
        if self._starting is not None:
            self._starting.refused()
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
        self._waiting.schedule_wake()

    # Waiting fetches

    def add_waiter(self, waiter: Waiter) -> None:
        self._waiting.add(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiting.remove(waiter)
        self._used_at_ms = self._now_ms()

    def sleep(self, session: Sleeper) -> None:
        """Lets a session look here again when something may be deliverable."""
        self._waiting.sleep(session, self.key)

    def forget_sleeper(self, session: Sleeper) -> None:
        self._waiting.forget_sleeper(session)

    def note_use(self, used_at_ms: int) -> None:
        """Notes that a session that fetches here was used."""
        self._used_at_ms = max(self._used_at_ms, used_at_ms)

    def _listen(self) -> Callable[[], None]:
        return self.log.add_listener(self._waiting.schedule_wake, read_committed=self._read_committed)

    def settings_changed(self) -> None:
        """Handles changed group configs: more records may be deliverable than before."""
        if self._read_committed != self.settings.read_committed and not self.is_dropped:
            self._remove_listener()
            self._read_committed = self.settings.read_committed
            self._remove_listener = self._listen()
        self._waiting.schedule_wake()

    def serve_waiting(self) -> None:
        """Serves the waiting fetches first; a new fetch calls this before it acquires records."""
        self._waiting.wake_now()

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
        """Acquires records up to the limits. Raises StorageFailure, and then has acquired none.

        Records before the place that cannot be read are returned. The next fetch begins there, and fails.
        """
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
            if not taken.records:
                raise
        finally:
            self._after_change()
            if self.machine.start_offset != start_offset:
                self._waiting.schedule_wake()
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
            self._waiting.schedule_wake()

    def undo(self, owner: Owner, records: Sequence[AcquiredRecords]) -> None:
        """Releases records whose response will not be sent."""
        if self.machine is not None and records:
            self.machine.undo_acquire(owner, records)
            self.counts.note_taken_back(records)
            self._after_change()
            self._waiting.schedule_wake()

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
        stored = self._writing.wait_for(write_id)  # first, since a change that is waited for is not put off
        self._after_change()
        return stored

    def end_acquisitions(
        self, first_offset: int, last_offset: int, acknowledge_type: AcknowledgeType
    ) -> tuple[int, Stored | None]:
        """Releases or rejects any member's Acquired records; their number, and the write to wait for."""
        if self.machine is None:
            return 0, None
        event = EVENT_OF_ACKNOWLEDGEMENT[acknowledge_type]
        ended = self.machine.end_acquisitions(first_offset, last_offset, event, self._limits)
        if not ended.spans:
            return 0, None
        types = bytes([acknowledge_type])
        self.counts.note_acknowledged(
            [AcknowledgementBatch(first, last, types) for first, last in ended.spans], is_stored=True
        )
        stored = self._writing.wait_for(ended.write_id)
        self._after_change()
        return sum(last - first + 1 for first, last in ended.spans), stored

    def release(self, is_released: Callable[[Owner], bool]) -> Stored | None:
        """Ends the sessions of some owners: their waits and their locks. None if none of them had a lock."""
        self._waiting.end(lambda waiter: is_released(waiter.owner))
        for owner in [owner for owner in self._members if is_released(owner)]:
            del self._members[owner]
        if self.machine is None:
            self._is_left = True
            return None
        write_id = self.machine.release(is_released, self._limits)
        stored = self._writing.wait_for(write_id)
        self._after_change()
        self.unload_if_unused()
        return stored

    def release_until(self, owner: Owner, last_fetch_number: int) -> Stored | None:
        """Releases a session whose last fetch had this number, but not the records of the owner's newer session."""
        machine = self.machine
        held = [] if machine is None else [run for run in machine.runs() if run.owner == owner]
        newer = self._waiting.has_newer(owner, last_fetch_number)
        if machine is None or not (newer or any(run.fetch_number > last_fetch_number for run in held)):
            return self.release(owner.__eq__)
        self._waiting.end(lambda waiter: waiter.owner == owner and waiter.fetch_number <= last_fetch_number)
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
        self._waiting.end(lambda waiter: waiter.owner == owner and waiter.fetch_number in fetch_numbers)
        if self.machine is not None:
            lost = [
                AcquiredRecords(run.first_offset, run.last_offset, run.delivery_count)
                for run in self.machine.runs()
                if run.state is RecordState.ACQUIRED and run.owner == owner and run.fetch_number in fetch_numbers
            ]
            self.undo(owner, lost)

    def unload_if_unused(self) -> None:
        """Unloads the share-partition if no session that fetched here is left (Kafka: onGroupEmpty)."""
        if self.machine is not None and not self._members and self._is_at_rest:
            self.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"no member of the group uses {self.key}"))

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
        return self._writing.paused_until_ms

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

    async def is_state_replaced(self) -> bool:
        """Whether the stored state has another state epoch or truncation than the served one; raises KafkaError."""
        stored = await self._store.read_beside_writes(self.key, self.leader_epoch)
        return (stored.state_epoch, stored.truncation) != (self.state_epoch, self.truncation)

    # Changes, and the timer

    def _after_change(self) -> None:
        machine = self.machine
        if machine is None:
            return
        self._history.changed(machine, self._now_ms)
        self._writing.changed()
        if machine.archiving_count and self._dead_letters is not None:
            self._dead_letters.wake(self)
        self._set_timer(0 if self._writing.is_put_off else machine.next_deadline_ms)

    def _write_ended(self) -> None:
        self._after_change()
        self._waiting.schedule_wake()
        self.unload_if_unused()

    def _set_timer(self, deadline_ms: int) -> None:
        """Sets the timer for a deadline. An earlier timer is kept: it finds nothing due and sets the next one."""
        if deadline_ms == NEVER:
            return
        when = (max(deadline_ms, self._writing.paused_until_ms) + 1) / 1000
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self.machine is not None:
            self.machine.expire(self._now_ms(), self._limits)
            self._after_change()
