"""The state writes of one share-partition: the one in flight, the changes that wait for it, and what becomes of both.

A write that is in flight when the share-partition is dropped may still become durable. Its acknowledgements are
answered when its outcome is known, and the next ServedPartition reads the state after that (`state_store`).
Acknowledgements whose write was not sent had no effect and are answered at once.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_core.states import RecordState
from kshare_leader.dead_letters.port import DeadLetterSender
from kshare_leader.history.partition_history import PartitionHistory
from kshare_leader.machine.interval_map import NO_WRITE
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateWrite
from kshare_leader.metrics import Progress, ShareCounts
from kshare_leader.ports import TopicLog
from kshare_leader.share.limits import FAILED_WRITE_PAUSE_MS
from kshare_leader.share.pending_writes import PendingWrites, Stored
from kshare_leader.share.state_store import Outcome, ShareStateStore, WriteEnd


class StateWriting:
    """A `state_store.WriteSource`. `now_ms` is the event loop's time.

    - `on_started` gets the machine whose new start offset became durable.
    - `on_ended` is called after each write that was stored or refused.
    - `on_lost` gets the error of a write that was fenced, or whose outcome is unknown: the state has to be read again.
    """

    __slots__ = (
        "_counts",
        "_dead_letters",
        "_ending",
        "_error",
        "_history",
        "_in_flight",
        "_initial",
        "_is_continued",
        "_log",
        "_machine",
        "_now_ms",
        "_on_ended",
        "_on_lost",
        "_on_started",
        "_pending",
        "_store",
        "key",
        "leader_epoch",
        "paused_until_ms",
        "problem",
        "state_epoch",
    )

    def __init__(
        self,
        *,
        key: SharePartitionKey,
        leader_epoch: int,
        log: TopicLog,
        store: ShareStateStore,
        counts: ShareCounts,
        history: PartitionHistory,
        dead_letters: DeadLetterSender | None,
        now_ms: Callable[[], int],
        on_started: Callable[[SharePartition], None],
        on_ended: Callable[[], None],
        on_lost: Callable[[KafkaError], None],
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.state_epoch = -1
        self.problem: str | None = None
        """Why the newest write failed."""
        self.paused_until_ms = 0
        """No lock expires, and no dead letter is sent, before this time: a refused write would be repeated at once."""
        self._log = log
        self._store = store
        self._counts = counts
        self._history = history
        self._dead_letters = dead_letters
        self._now_ms = now_ms
        self._on_started = on_started
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._pending = PendingWrites()
        self._in_flight = NO_WRITE
        """The id of the write that was sent and has not ended."""
        self._is_continued = False
        """Whether the newest write is durable and the next one continues it; those who wait for it wait for both."""
        self._machine: SharePartition | None = None
        self._initial: SharePartition | None = None
        """The machine while its start offset is being stored."""
        self._ending: SharePartition | None = None
        """The machine of a dropped share-partition until its write in flight has ended."""
        self._error: KafkaError | None = None

    @property
    def is_dropped(self) -> bool:
        return self._error is not None

    @property
    def leader_epochs(self) -> bytes:
        """The log's leader epoch history."""
        return self._log.encoded_leader_epochs()

    @property
    def has_brokers_epochs(self) -> bool:
        return self._log.has_brokers_epochs

    @property
    def is_awaited(self) -> bool:
        """Whether acknowledgements or releases wait for a write."""
        return bool(self._pending)

    @property
    def is_lagging(self) -> bool:
        """Whether writes lag so much that no records should be acquired."""
        return self._pending.is_lagging(self._now_ms())

    def store_start_offset(self, machine: SharePartition) -> None:
        """Stores the start offset of a machine that has a new one, before it serves."""
        self._initial = machine
        self._store.schedule(self)

    def serve(self, machine: SharePartition) -> None:
        """The changes of this machine are stored from now on."""
        self._machine = machine

    def changed(self) -> None:
        """Schedules a write where the machine has changes to store; its caller calls again later if `is_put_off`."""
        if self._machine is not None and self._machine.wants_write and not self.is_put_off:
            self._store.schedule(self)

    @property
    def is_put_off(self) -> bool:
        """Whether the next write is delayed until the pause after a refused write ends.

        Only writes without waiting callers are delayed. Without the pause, each refusal would repeat the write at once.
        """
        machine = self._machine
        if machine is None or not machine.wants_write or len(self._pending):
            return False
        return self._now_ms() < self.paused_until_ms

    def wait_for(self, write_id: int) -> Stored | None:
        """The end of the write that carries, or will carry, a change; None for NO_WRITE."""
        return None if write_id == NO_WRITE else self._pending.wait_for(write_id)

    def drop(self, error: KafkaError) -> None:
        """Begins no more writes. Changes whose write was not sent get `error`; the write in flight gets its outcome."""
        machine = self._machine
        self._error = error
        self._machine = self._initial = None
        self._pending.fail_unsent(error, self._in_flight)
        if machine is None:
            self._counts.note_dropped(None)
        elif self._in_flight == NO_WRITE:
            self._close(machine, error)
        else:
            self._ending = machine

    def _close(self, machine: SharePartition, error: KafkaError) -> None:
        """Ends a dropped share-partition that has no write in flight any more."""
        self._counts.note_dropped(Progress(machine.start_offset, machine.delivery_complete_count))
        self._history.changed(machine, self._now_ms)
        self._history.unloaded(error.code.name)

    # Called by the store

    def next_write(self) -> StateWrite | None:
        machine = self._initial or self._machine
        write = None if machine is None else machine.next_write()
        if write is None:
            return None
        self._in_flight = write.write_id
        if self._initial is not None:
            return write
        if not self._is_continued:
            self._pending.began(self._now_ms())
            self._counts.write_began()
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
        self._in_flight = NO_WRITE
        if self._error is not None:
            self._last_write_ended(write, end, self._error)
            return
        if end.outcome in (Outcome.FENCED, Outcome.UNKNOWN):
            assert end.error is not None
            self._on_lost(end.error)
            return
        if self._initial is not None:
            self._initial_write_ended(self._initial, write, end)
            return
        assert self._machine is not None
        self._is_continued = write.has_more and end.outcome is Outcome.DURABLE
        if end.outcome is Outcome.DURABLE:
            self._became_durable(self._machine, write)
        else:
            self._counts.write_ended(None)
            self._machine.write_failed(write.write_id)
            self.paused_until_ms = self._now_ms() + FAILED_WRITE_PAUSE_MS
        self.problem = None if end.error is None else str(end.error)
        if not self._is_continued:
            self._pending.ended(write.write_id, end.error)
        self._on_ended()

    def _became_durable(self, machine: SharePartition, write: StateWrite) -> None:
        ended = machine.write_succeeded(write.write_id)
        if not write.has_more:
            self._counts.write_ended(ended)
        self._history.changed(machine, self._now_ms)
        self._history.start_offset_moved(machine.durable_start_offset, self._log.log_start_offset)

    def _last_write_ended(self, write: StateWrite, end: WriteEnd, dropped_for: KafkaError) -> None:
        """Ends the write that was in flight when the share-partition was dropped."""
        machine, self._ending = self._ending, None
        if machine is None:  # it carried only the start offset
            return
        if end.outcome is Outcome.DURABLE:
            self._became_durable(machine, write)
        self._close(machine, dropped_for)
        self._pending.ended(write.write_id, dropped_for if write.has_more and end.error is None else end.error)

    def _initial_write_ended(self, machine: SharePartition, write: StateWrite, end: WriteEnd) -> None:
        if end.error is not None:
            self._on_lost(end.error)
            return
        machine.write_succeeded(write.write_id)
        self._initial = None
        self._on_started(machine)
