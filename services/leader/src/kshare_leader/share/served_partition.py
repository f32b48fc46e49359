"""One share-partition that this leader serves: the machine, its log, its timer, its writes, and who waits for it.

It loads itself when made: reads the state, finds a start offset where there is none (and stores it before anything is
delivered), then serves until it is dropped. It is dropped when somebody newer owns it, when the outcome of a write is
unknown, when the topic is gone or has another leader, and when nobody used it for a while. A dropped one never serves
again; the next request makes a new one, which reads the state anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner
from kshare_leader.machine.share_partition import NEVER, SharePartition
from kshare_leader.machine.state_write import StateWrite
from kshare_leader.ports import StoredBatch, TopicLog
from kshare_leader.share.group_settings import GroupSettings
from kshare_leader.share.limits import FAILED_WRITE_PAUSE_MS, IDLE_UNLOAD_MS, READ_CHUNK_BYTES, SLOW_LOAD_MS
from kshare_leader.share.start_offset import find_start_offset
from kshare_leader.share.state_store import Outcome, ShareStateStore, WriteEnd

Stored = asyncio.Future[KafkaError | None]
"""Ends when a write did: None when it is durable, else the error for the client."""


class Waiter(Protocol):
    """A fetch that waits for records of one or more share-partitions."""

    @property
    def owner(self) -> Owner: ...

    def wake(self) -> None:
        """Tries to acquire; called again and again until the fetch takes itself off the list."""
        ...

    def end(self) -> None:
        """Ends the wait without records."""
        ...


class Taken(NamedTuple):
    """What a fetch got: entries of the answer, and the batches that hold them."""

    records: list[AcquiredRecords]
    batches: list[StoredBatch]


class ServedPartition:
    """See the module's text. Everything but loading happens inside one call, on the event loop."""

    def __init__(
        self,
        *,
        key: SharePartitionKey,
        leader_epoch: int,
        log: TopicLog,
        store: ShareStateStore,
        settings: Callable[[], GroupSettings],
        wall_now_ms: Callable[[], int],
        on_dropped: Callable[[ServedPartition], None],
        report: Callable[[str], None],
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.state_epoch = -1
        self.log = log
        self.error: KafkaError | None = None
        """Why it was dropped."""
        self.machine: SharePartition | None = None
        """None while loading, and after it was dropped."""
        self._store = store
        self._settings = settings
        self._wall_now_ms = wall_now_ms
        self._on_dropped = on_dropped
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[Waiter, None] = {}
        self._writes: dict[int, Stored] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._no_expiry_before_ms = 0
        self._wake_handle: asyncio.Handle | None = None
        self._initial: SharePartition | None = None
        """The machine while its start offset is being stored."""
        self._write_problem: str | None = None
        self._made_at_ms = self._used_at_ms = self._now_ms()
        self._remove_listener = log.add_listener(self._schedule_wake)
        self._loading = self._loop.create_task(self._load(), name=f"load {key}")

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    @property
    def is_dropped(self) -> bool:
        return self.error is not None

    @property
    def is_loading(self) -> bool:
        return self.machine is None and self.error is None

    @property
    def is_idle(self) -> bool:
        """Whether it may be unloaded: nobody waits, nothing is held or being stored, and it was not used lately."""
        if self._waiters or self._now_ms() - self._used_at_ms < IDLE_UNLOAD_MS:
            return False
        return self.machine is None or (self.machine.acquired_count == 0 and not self.machine.is_writing)

    @property
    def problem(self) -> str | None:
        """Why it cannot store or load its state; None while all is well."""
        if self._write_problem is not None:
            return f"share-partition {self.key} cannot store its state: {self._write_problem}"
        waiting_ms = self._now_ms() - self._made_at_ms
        if self.is_loading and waiting_ms >= SLOW_LOAD_MS:
            return f"share-partition {self.key} has been loading its state for {waiting_ms} ms"
        return None

    # Loading and dropping

    async def _load(self) -> None:
        try:
            state = await self._store.read(self.key, self.leader_epoch)
            self.state_epoch = state.state_epoch
            if state.start_offset >= 0:
                machine = SharePartition(start_offset=state.start_offset, state_batches=state.state_batches)
                self._serve(machine)
                return
            start = find_start_offset(self._settings().auto_offset_reset, self.log, self._wall_now_ms())
        except KafkaError as error:
            self._report(f"share-partition {self.key} cannot be loaded: {error}")
            self.drop(error)
            return
        except StorageFailure as failure:
            self._report(f"share-partition {self.key} cannot find its start offset: {failure}")
            self.drop(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)))
            return
        except Exception as bug:
            self._report(f"a bug stopped share-partition {self.key} from loading: {bug!r}")
            self.drop(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(bug)))
            return
        self._initial = SharePartition(start_offset=start, start_is_stored=False)
        self._store.schedule(self)

    def _serve(self, machine: SharePartition) -> None:
        self.machine = machine
        self._after_change()
        self._schedule_wake()

    def drop(self, error: KafkaError) -> None:
        """Stops serving for good; whoever waits for a write or for records gets `error`."""
        if self.error is not None:
            return
        self.error = error
        self.machine = self._initial = None
        self._remove_listener()
        if self._loading is not asyncio.current_task():
            self._loading.cancel()
        if self._timer is not None:
            self._timer.cancel()
        writes, self._writes = self._writes, {}
        for stored in writes.values():
            stored.set_result(error)
        self._on_dropped(self)
        self._schedule_wake()

    # Waiting fetches

    def add_waiter(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)
        self._used_at_ms = self._now_ms()

    def _schedule_wake(self) -> None:
        if self._wake_handle is None and self._waiters:
            self._wake_handle = self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Wakes the fetches that wait, the longest waiting first, for as long as there is something for them."""
        self._wake_handle = None
        for waiter in list(self._waiters):
            if not (self.is_dropped or self._has_deliverable()):
                return
            if waiter in self._waiters:
                waiter.wake()

    def _has_deliverable(self) -> bool:
        if self.machine is None:
            return False
        return self.machine.has_deliverable(self.log.high_watermark, self._settings().max_record_locks)

    # What requests do

    def take(self, limits: FetchLimits, max_bytes: int, *, at_least_one_batch: bool) -> Taken:
        """Acquires what is there, up to the limits; raises StorageFailure and has acquired nothing then."""
        self._used_at_ms = self._now_ms()
        taken = Taken([], [])
        if self.machine is None:
            return taken
        start_offset = self.machine.start_offset
        try:
            self._take(self.machine, taken, limits, max_bytes, at_least_one_batch)
        except StorageFailure:
            self.machine.undo_acquire(limits.owner, taken.records)
            raise
        finally:
            self._after_change()
            if self.machine.start_offset != start_offset:
                self._schedule_wake()
        return taken

    def _take(
        self, machine: SharePartition, taken: Taken, limits: FetchLimits, bytes_left: int, at_least_one_batch: bool
    ) -> None:
        machine.remove_below(self.log.log_start_offset)
        end = self.log.high_watermark
        cursor = machine.start_offset
        while limits.max_records > 0:
            position = machine.next_fetch(cursor, limits.max_record_locks)
            if position is None or position.offset >= end:
                return
            batches = self.log.read(position.offset, max(1, min(READ_CHUNK_BYTES, bytes_left)))
            if not batches or batches[-1].last_offset < position.offset:
                return
            if batches[0].length > bytes_left and (taken.records or not at_least_one_batch):
                return
            cursor = batches[-1].last_offset + 1
            headers = [(batch.base_offset, batch.last_offset) for batch in batches if not batch.is_control]
            acquired, complete = machine.acquire(limits, self._now_ms(), position.offset, headers, cursor)
            if acquired:
                taken.records.extend(acquired)
                bytes_left -= _add_batches(taken.batches, batches, acquired)
                got = sum(last - first + 1 for first, last, _ in acquired)
                limits = replace(limits, max_records=limits.max_records - got)
            if complete or (bytes_left <= 0 and taken.records):
                return

    def undo(self, owner: Owner, records: Sequence[AcquiredRecords]) -> None:
        """Gives back records whose answer will not be sent."""
        if self.machine is not None and records:
            self.machine.undo_acquire(owner, records)
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
        """Applies acknowledgements; None where there is nothing to wait for. Raises KafkaError, see the machine."""
        self._used_at_ms = self._now_ms()
        if self.machine is None:
            text = f"nothing of share-partition {self.key} is acquired; it is being loaded"
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
        settings = self._settings()
        write_id = self.machine.acknowledge(
            owner,
            self._now_ms(),
            batches,
            delivery_count_limit=settings.delivery_count_limit,
            lock_duration_ms=settings.lock_duration_ms,
            renew_allowed=is_renew_ack and settings.renew_enabled,
            delivered_fetch_number=delivered_fetch_number,
        )
        self._after_change()
        return self._stored(write_id)

    def release(self, is_released: Callable[[Owner], bool]) -> Stored | None:
        """Ends the waits and the locks of some owners; None where nobody had a lock."""
        for waiter in [waiter for waiter in self._waiters if is_released(waiter.owner)]:
            waiter.end()
        if self.machine is None:
            return None
        write_id = self.machine.release(is_released, self._settings().delivery_count_limit)
        self._after_change()
        return self._stored(write_id)

    def _stored(self, write_id: int) -> Stored | None:
        if write_id == NO_WRITE:
            return None
        if write_id not in self._writes:
            self._writes[write_id] = self._loop.create_future()
        return self._writes[write_id]

    # Writing, and the timer

    def _after_change(self) -> None:
        machine = self.machine
        if machine is None:
            return
        if machine.wants_write:
            self._store.schedule(self)
        self._set_timer(machine.next_deadline_ms)

    def next_write(self) -> StateWrite | None:
        machine = self._initial or self.machine
        return None if machine is None else machine.next_write()

    def write_ended(self, write: StateWrite, end: WriteEnd) -> None:
        if self.is_dropped:
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
            self.machine.write_succeeded(write.write_id)
        else:
            self.machine.write_failed(write.write_id)
            self._no_expiry_before_ms = self._now_ms() + FAILED_WRITE_PAUSE_MS
        self._write_problem = None if end.error is None else str(end.error)
        stored = self._writes.pop(write.write_id, None)
        if stored is not None:
            stored.set_result(end.error)
        self._after_change()
        self._schedule_wake()

    def _initial_write_ended(self, machine: SharePartition, write: StateWrite, end: WriteEnd) -> None:
        if end.error is not None:
            self.drop(end.error)
            return
        machine.write_succeeded(write.write_id)
        self._initial = None
        self._serve(machine)

    def _set_timer(self, deadline_ms: int) -> None:
        """Keeps a timer that comes earlier: it only looks, and sets the next one."""
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
            self.machine.expire(self._now_ms(), self._settings().delivery_count_limit)
            self._after_change()


def _add_batches(batches: list[StoredBatch], read: Iterable[StoredBatch], acquired: Sequence[AcquiredRecords]) -> int:
    """Adds the batches that hold acquired records; returns their length in bytes. Everything ascends."""
    length = 0
    index = 0
    for batch in read:
        while index < len(acquired) and acquired[index].last_offset < batch.base_offset:
            index += 1
        if index == len(acquired):
            break
        if acquired[index].first_offset <= batch.last_offset and not batch.is_control:
            batches.append(batch)
            length += batch.length
    return length
