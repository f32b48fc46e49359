"""All logs of a node: which partitions it leads, the group commit of their appends, and how they follow the catalog.

**Validation.** The bytes of a batch are validated before it joins a turn (`batch_validation`).

**Group commit.** Appends that arrive during one turn of the event loop are checked in order of arrival and written with
one atomic write. Its fsync runs beside the loop; appends that arrive meanwhile are in the next write, which begins when
this one has ended. Then the batches become readable, their futures are answered and listeners are called. When the
write fails, no offset was assigned: every append of the turn gets KAFKA_STORAGE_ERROR. What changes logs in another way
waits for the write under way (`settle`), so that it meets no log whose end is not decided.

**The catalog.** `on_view` opens the logs of partitions that are placed here, closes those that no longer are, and
begins to remove the records of deleted topics (`topic_removal`). Those that a crash left behind are removed at the next
start. Records of topics that an older catalog does not know are kept (`stray_topics`). A store belongs to one cluster
and keeps its id. With a catalog of another cluster (the coordinator's disk is new, or an address is wrong) the node
opens nothing and removes nothing.

Opening a log reads a few rows. Each turn of the event loop opens LOGS_OPENED_IN_A_TURN logs at most, so that topics of
many thousand partitions delay neither the lease nor other clients. A request for a log that is not open yet opens it at
once.

**Reassignment.** The old leader serves a partition that is being reassigned until it is fenced, and then closes the
log. It opens the log again where the reassignment is cancelled. The new leader opens the log when the catalog names it
the leader.

**The lease.** While `has_lease` is false, another node may already lead the partitions. No log is found then, and an
append whose write ended after the lease is not confirmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_leader.log import keys
from kshare_leader.log.aside import Aside
from kshare_leader.log.batch_validation import (
    DEFAULT_DECOMPRESSED_BYTES,
    BatchValidation,
    CheckedBatch,
    Outcome,
    ProducedBatch,
    rules_of,
)
from kshare_leader.log.deleted_topics.stray_topics import CONFIG as DELETED_STRAYS
from kshare_leader.log.deleted_topics.stray_topics import StrayTopics
from kshare_leader.log.deleted_topics.topic_removal import TopicRemoval
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.producers.pending_appends import Appended, PendingAppends
from kshare_leader.log.producers.refused_firsts import ANY_EPOCH, REMEMBERED_ERRORS, RefusedFirsts, check_leader_epoch
from kshare_leader.log.producers.seen_ids import SeenProducerIds
from kshare_leader.log.producers.state import TransactionalAppend
from kshare_leader.log.producers.transactions import EndTransaction
from kshare_leader.log.record_reader import RecordReader
from kshare_leader.log.store_identity import StoreIdentity
from kshare_leader.log.tail import TailCache
from kshare_leader.log.topic_settings import TopicSettings, topic_settings
from kshare_leader.metrics import LeaderMetrics
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_runtime.ports import Clock, KeyValueStore, Write

QUEUED_APPENDS_LIMIT = 10_000
"""Appends that wait for the disk; more get KAFKA_STORAGE_ERROR."""
LOGS_OPENED_IN_A_TURN = 50
"""A log takes some 0.25 ms to open: a turn of 200 took 46 ms, in which no client of another partition was answered."""
EXPIRED_IN_A_WRITE = 10_000
"""Expired producers that one write removes; the event loop serves clients before the next one."""
WRITE_LIMIT_BYTES = 64 * 1024 * 1024
"""A write ends with the append that exceeds this; the rest of the queue waits for the next turn."""

_logger = logging.getLogger(__name__)


class _QueuedAppend(NamedTuple):
    key: TopicPartition
    batch: CheckedBatch
    future: asyncio.Future[Appended]
    writes: Sequence[Write]
    transactional: TransactionalAppend | None
    leader_epoch: int

    def prepare(self, log: PartitionLog, now_ms: int, pending: PendingAppends) -> Appended:
        return log.prepare(self.batch, now_ms, pending, self.transactional)

    @property
    def size_bytes(self) -> int:
        return len(self.batch.records)


class _QueuedEnd(NamedTuple):
    """A queued transaction marker."""

    key: TopicPartition
    end: EndTransaction
    future: asyncio.Future[None]
    writes: Sequence[Write] = ()
    size_bytes: int = 0

    def prepare(self, log: PartitionLog, now_ms: int, pending: PendingAppends) -> None:
        log.prepare_end(self.end, now_ms, pending)


class _Turn:
    """The appends of one write."""

    def __init__(self) -> None:
        self.pending: dict[TopicPartition, tuple[PartitionLog, PendingAppends]] = {}
        self.answers: list[tuple[asyncio.Future[Any], Appended | Exception | None]] = []
        self.appends: list[_QueuedAppend] = []
        """The produced batches among them, whether their logs took them or not."""
        self.more_writes: list[Write] = []
        """Writes of the callers that become durable together with their batches."""

    def writes(self) -> list[Write]:
        return [*(write for log, pending in self.pending.values() for write in log.writes(pending)), *self.more_writes]

    def producer_ids(self) -> Iterator[int]:
        """The producers whose entries change."""
        return (producer_id for _, pending in self.pending.values() for producer_id in pending.producers)


class PartitionLogs:
    """The logs of one node; implements ports.TopicLogs. The module's docstring has the rules."""

    def __init__(
        self,
        *,
        store: KeyValueStore,
        clock: Clock,
        node_id: int,
        configs: Configs,
        has_lease: Callable[[], bool] = lambda: True,
        report: Callable[[str], None] = lambda text: None,
        tails: TailCache | None = None,
        metrics: LeaderMetrics | None = None,
        aside: Aside | None = None,
        before_open: Callable[[TopicPartition, int], None] = lambda key, given_up_epoch: None,
        seen_ids: SeenProducerIds | None = None,
        strays: StrayTopics | None = None,
        identity: StoreIdentity | None = None,
        rows: KeyValueStore | None = None,
    ) -> None:
        """`aside` validates and reads batches that are too large for the event loop; two threads do by default.

        `rows` are those below the checksums, for what their keys tell.
        """
        self._before_open = before_open
        self._seen_ids = seen_ids or SeenProducerIds(store)
        self._strays = strays or StrayTopics(store, report=report)
        self._metrics = metrics or LeaderMetrics()
        self._store = store
        self._rows = rows or store
        self._clock = clock
        self._node_id = node_id
        self._configs = configs
        self._has_lease = has_lease
        self._report = report
        self.tails = self._tails = tails or TailCache(node_limit_bytes=configs.integer("kshare.leader.tail.bytes"))
        self._view = CatalogView()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._unopened: dict[TopicPartition, TopicSettings] = {}
        """Partitions led here whose logs are opened in one of the next turns."""
        self._opening: asyncio.Handle | None = None
        self._offline: dict[TopicPartition, str] = {}
        self._unreadable: dict[TopicPartition, TopicSettings] = {}
        """Those of the offline partitions whose logs the store could not read."""
        self._removal = TopicRemoval(
            store,
            rows=rows,
            is_allowed=lambda: self._identity_problem is None and not self._strays.is_unsure,
            on_removed=self._strays.forget,
            report=report,
        )
        self._identity = identity or StoreIdentity(store, node_id)
        self._identity_problem: str | None = None
        self._write_failure: str | None = None
        self._queue: list[_QueuedAppend | _QueuedEnd] = []
        self._turn: asyncio.Handle | None = None
        self._is_writing = False
        self._refused_firsts = RefusedFirsts()
        inline_bytes = configs.integer("kshare.leader.inline.batch.bytes")
        self._validation = BatchValidation(aside or Aside("batch-validation"), inline_bytes=inline_bytes)
        self.reader = RecordReader(
            aside,
            inline_bytes=inline_bytes,
            limit_bytes=max(DEFAULT_DECOMPRESSED_BYTES, configs.integer("kshare.max.decompressed.batch.bytes")),
        )
        """Opens stored batches; some may have been appended while kshare.max.decompressed.batch.bytes was higher."""

    # finding

    def find(self, key: TopicPartition) -> PartitionLog | None:
        """The log; None where this node does not or no longer lead the partition, or cannot open its log."""
        return self._opened(key) if self._has_lease() else None

    def find_opening(self, key: TopicPartition) -> PartitionLog | None:
        """See TopicLogs; a log is opened when it is looked up."""
        return self.find(key)

    def _opened(self, key: TopicPartition) -> PartitionLog | None:
        log = self._logs.get(key)
        if log is None and key in self._unopened:
            self._open(key)
            log = self._logs.get(key)
        return log

    def lookup(self, key: TopicPartition) -> PartitionLog:
        """The log, else KafkaError.

        UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        log = self.find(key)
        if log is not None:
            return log
        name = f"{topic_id_text(key.topic_id)}-{key.partition}"
        if not self._has_lease():
            text = f"leader {self._node_id} may have lost its lease and does not serve partition {name}"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        if not self._view.version:
            text = f"leader {self._node_id} has not received the catalog yet and cannot look up partition {name}"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        if key.topic_id not in self._view.topics_by_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id_text(key.topic_id)}")
        if self._view.partition(key) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name} does not exist")
        if key in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._offline[key])
        text = f"leader {self._node_id} does not lead partition {name}, or it is moving away"
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)

    def current_leader(self, key: TopicPartition) -> tuple[int, int]:
        """The leader's node id and epoch in the newest catalog; (-1, -1) where the partition is unknown."""
        partition = self._view.partition(key)
        return (-1, -1) if partition is None else (partition.leader_node_id, partition.leader_epoch)

    @property
    def is_foreign(self) -> bool:
        """Whether the stored records belong to another cluster or leader, or that cannot be read."""
        return self._identity_problem is not None

    def end_offset(self, key: TopicPartition) -> int:
        """The end offset of a log that is led here; -1 for other partitions."""
        log = self._opened(key)
        return -1 if log is None else log.high_watermark

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic's name; None where the newest catalog has no such topic."""
        topic = self._view.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    # appending

    def append(
        self,
        key: TopicPartition,
        records: memoryview,
        *,
        transactional: TransactionalAppend | None = None,
        writes: Sequence[Write] = (),
        future: asyncio.Future[Appended] | None = None,
        leader_epoch: int = ANY_EPOCH,
    ) -> asyncio.Future[Appended]:
        """Appends one produced batch; answered when it is durable, else with KafkaError.

        `writes` become durable together with the batch, or not at all. `future` is answered instead of a new one.
        `leader_epoch` is the one for which the batch was sent (`check_leader_epoch`).
        """
        if future is None:
            future = asyncio.get_running_loop().create_future()
        answer = future

        def validated(outcome: Outcome) -> None:
            if isinstance(outcome, CheckedBatch):
                self._enqueue(_QueuedAppend(key, outcome, answer, writes, transactional, leader_epoch))
            elif isinstance(outcome, Exception) and not answer.done():
                self.note_refused(key, records, outcome)
                answer.set_exception(outcome)

        try:
            log = self.lookup(key)
            self._check_queue()
        except KafkaError as error:
            self.note_refused(key, records, error)
            future.set_exception(error)
            return future
        rules = rules_of(
            log.settings,
            f"{self.topic_name(key.topic_id)}-{key.partition}",
            self._clock.now_ms(),
            self._configs.integer("kshare.max.decompressed.batch.bytes"),
        )
        batch = ProducedBatch(records, rules, log.settings.max_message_bytes, log.settings.codec)
        self._validation.submit(key, batch, validated)
        return future

    def end_transaction(self, key: TopicPartition, end: EndTransaction) -> asyncio.Future[None]:
        """Appends the marker that ends a transaction; answered when it is durable, else with KafkaError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def comes(outcome: Outcome) -> None:
            if outcome is None:
                self._enqueue(_QueuedEnd(key, end, future))
            elif isinstance(outcome, Exception) and not future.done():
                future.set_exception(outcome)

        try:
            self._check_queue()
        except KafkaError as error:
            future.set_exception(error)
        else:
            self._validation.submit(key, None, comes)
        return future

    def _check_queue(self) -> None:
        if len(self._queue) + self._validation.count >= QUEUED_APPENDS_LIMIT:
            text = f"more than {QUEUED_APPENDS_LIMIT} appends are waiting for the disk"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)

    def _enqueue(self, queued: _QueuedAppend | _QueuedEnd) -> None:
        self._queue.append(queued)
        self._go_on()

    def _go_on(self) -> None:
        if self._queue and self._turn is None and not self._is_writing:
            self._turn = asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._turn = None
        turn = _Turn()
        now_ms = self._clock.now_ms()
        size_bytes = taken = 0
        for queued in self._queue:
            taken += 1
            turn.answers.append((queued.future, self._prepare(queued, now_ms, turn)))
            size_bytes += queued.size_bytes
            if size_bytes >= WRITE_LIMIT_BYTES:
                break
        del self._queue[:taken]
        self._write(turn)

    def _prepare(self, queued: _QueuedAppend | _QueuedEnd, now_ms: int, turn: _Turn) -> Appended | Exception | None:
        if isinstance(queued, _QueuedAppend):
            turn.appends.append(queued)
        try:
            found = turn.pending.get(queued.key)
            if found is None:
                log = self.lookup(queued.key)
                found = turn.pending[queued.key] = (log, log.begin(now_ms))
            if isinstance(queued, _QueuedAppend):
                self._check_first(queued, *found)
            appended = queued.prepare(found[0], now_ms, found[1])
            if queued.writes:
                turn.more_writes.extend(queued.writes)
            return appended
        except Exception as error:  # bad input or a bug ends this append, never the turn
            if isinstance(queued, _QueuedAppend):
                self.note_refused(queued.key, queued.batch.records, error)
            return error

    def _check_first(self, queued: _QueuedAppend, log: PartitionLog, pending: PendingAppends) -> None:
        """KafkaError for a batch of a producer that the log does not know, where another one has to come first."""
        is_late = queued.leader_epoch < log.leader_epoch and queued.leader_epoch != ANY_EPOCH
        if not is_late and not self._refused_firsts:
            return
        header = queued.batch.header
        is_known = log.producers.knows(header.producer_id, pending)
        if is_late and not is_known:
            check_leader_epoch(header, queued.leader_epoch, log.leader_epoch)
        self._refused_firsts.check(queued.key, header, _loop_ms(), is_known=is_known)

    def note_refused(self, key: TopicPartition, records: memoryview, error: Exception) -> None:
        """Notes a batch that its producer may send again, before which no later one must be taken."""
        if isinstance(error, KafkaError) and error.code in REMEMBERED_ERRORS:
            self._refused_firsts.note(key, records, _loop_ms())

    def _write(self, turn: _Turn) -> None:
        writes = turn.writes()
        if not writes:
            self._complete(turn)
            self._go_on()
            return
        started_at, producer_id_end = self._metrics.now(), 0

        def written(failure: StorageFailure | None) -> None:
            self._is_writing = False
            self._metrics.log_written(started_at, failed=failure is not None)
            if failure is None:
                self._write_failure = None
                self._seen_ids.written(producer_id_end)
                self._strays.written()
                self._complete(turn)
            else:
                self._write_failure = str(failure)
                self._report(f"appends failed: {failure}")
                for queued in turn.appends:
                    self._refused_firsts.note(queued.key, queued.batch.records, _loop_ms())
                self._answer_all(turn, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            self._go_on()

        self._is_writing = True
        try:
            producer_id_end = self._seen_ids.end_with(turn.producer_ids())
            writes += [*self._seen_ids.writes(producer_id_end), *self._strays.writes()]
            self._store.begin_write(writes, written)
        except StorageFailure as failure:
            written(failure)

    def settle(self) -> None:
        """Waits for the write under way, so that every log's end is decided."""
        if self._is_writing:
            self._store.finish_writes()

    def _complete(self, turn: _Turn) -> None:
        for log, pending in turn.pending.values():
            log.commit(pending)
            if pending.batches:
                first_offset = pending.batches[0].base_offset
                batches, size_bytes = len(pending.batches), pending.size_bytes
                self._metrics.appended(log.topic_partition, first_offset, pending.next_offset, batches, size_bytes)
        if self._has_lease():
            _answer(turn)
        else:
            text = f"leader {self._node_id} may have lost its lease while it wrote"
            self._answer_all(turn, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        for log, pending in turn.pending.values():
            if pending.batches:
                log.notify()

    def _answer_all(self, turn: _Turn, code: ErrorCode, text: str) -> None:
        turn.answers = [(future, KafkaError(code, text)) for future, _ in turn.answers]
        _answer(turn)

    # deletion

    def all_logs(self) -> list[PartitionLog]:
        """All open logs; none while the lease may be lost, because nothing may be changed then."""
        return list(self._logs.values()) if self._has_lease() else []

    def move_starts(self, starts: Sequence[tuple[PartitionLog, int]]) -> None:
        """Moves log start offsets forward with one durable write; a log that starts there or later does not change.

        KafkaError OFFSET_OUT_OF_RANGE above a high watermark; StorageFailure. No log has changed in either case.
        """
        self.settle()
        changes = [(log, log.plan_start(start_offset)) for log, start_offset in starts]
        writes = [write for _, change in changes if change is not None for write in change.writes]
        if not writes:
            return
        self._store.write(writes)
        for log, change in changes:
            if change is not None:
                log.commit_start(change)
        for log, change in changes:
            if change is not None:
                log.notify()

    # following the catalog

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Brings the logs in line with a new view of the catalog."""
        self.settle()
        self._view = new
        was_foreign = self._identity_problem is not None
        self._identity_problem = self._identity.problem(new)
        if self._identity_problem is not None:
            self._report(self._identity_problem)
            self._close_all()
            return
        self._note_removed(old, new)
        for topic_id in old.topics_by_id:
            if topic_id not in new.topics_by_id:
                self._metrics.topic_removed(topic_id)
        closed = {key: self._logs.pop(key) for key in list(self._logs) if not self._leads(key)}
        self._metrics.logs_closed(closed)
        for log in closed.values():
            log.close()
        for key in [key for key in (*self._offline, *self._unopened) if not self._leads(key)]:
            self._offline.pop(key, None)
            self._unreadable.pop(key, None)
            self._unopened.pop(key, None)
        self._removal.go_on()
        for topic_id, topic in new.topics_by_id.items():
            if was_foreign or topic is not old.topics_by_id.get(topic_id):
                self._follow_topic(topic)
        self._open_some()

    def refresh_settings(self) -> None:
        """Applies changed broker configs, which are the defaults of topic configs."""
        self.settle()
        if self._identity_problem is None:
            for topic in self._view.topics_by_id.values():
                self._follow_topic(topic)
            self._open_some()

    def retry_reads(self) -> None:
        """Periodic work: reads again what the store could not read: whose records these are, and offline partitions.

        A disk may fail a read once, and the catalog that would bring the next attempt may stay the same for days.
        """
        if self._identity_problem is not None:
            self._identity_problem = self._identity.problem(self._view)
            if self._identity_problem is not None:
                return
            self._note_removed(CatalogView(), self._view)
            self._removal.go_on()
            for topic in self._view.topics_by_id.values():
                self._follow_topic(topic)
        for key, settings in self._unreadable.items():
            self._unopened.setdefault(key, settings)
        self._open_some()

    async def retry_and_expire(self) -> None:
        """Periodic work: removes expired producers and repeats removals of topics that failed."""
        self.settle()
        self._removal.go_on()
        logs = deque(self._logs.values())
        while logs:
            try:
                self._expire_some(logs)
            except StorageFailure as failure:
                self._report(f"expired producers could not be removed: {failure}")
                return
            await asyncio.sleep(0)

    def _expire_some(self, logs: deque[PartitionLog]) -> None:
        """Removes up to EXPIRED_IN_A_WRITE producers with one durable write; `logs` keeps those that may have more.

        StorageFailure: no producer was removed.
        """
        self.settle()
        expiration_ms, now_ms = self._configs.integer("producer.id.expiration.ms"), self._clock.now_ms()
        expired: list[tuple[PartitionLog, list[int]]] = []
        room = EXPIRED_IN_A_WRITE
        while logs and room:
            log = logs[0]
            producer_ids = [] if log.is_closed else log.producers.expired(now_ms, expiration_ms, room)
            expired.append((log, producer_ids))
            room -= len(producer_ids)
            if room:
                logs.popleft()
        writes = [write for log, producer_ids in expired for write in log.producers.removals(producer_ids)]
        if writes:
            self._store.write(writes)
        for log, producer_ids in expired:
            log.producers.forget(producer_ids)

    @property
    def offline_count(self) -> int:
        """How many partitions placed here cannot be opened."""
        return len(self._offline)

    def problems(self) -> list[str]:
        """The current storage problems, one sentence each."""
        found = [f"appends failed: {self._write_failure}"] if self._write_failure else []
        if self._identity_problem is not None:
            found.append(self._identity_problem)
        found.extend(self._offline.values())
        found.extend(self._removal.problems())
        return found

    def store_mended(self) -> None:
        """Called when the store accepts writes again: what failed meanwhile is not a problem any more, or done now."""
        self._write_failure = None
        self.settle()
        self._removal.go_on()

    def close(self) -> None:
        """Closes all logs; waiting appends are answered with NOT_LEADER_OR_FOLLOWER. The store stays open."""
        self.settle()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        turn = _Turn()
        text = f"leader {self._node_id} is stopping"
        self._validation.close(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))
        turn.answers = [(queued.future, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)) for queued in self._queue]
        self._queue.clear()
        self.reader.aside.close()
        _answer(turn)
        self._close_all()

    def _close_all(self) -> None:
        self._removal.pause()
        self._unopened.clear()
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        logs, self._logs = self._logs, {}
        for log in logs.values():
            log.close()

    def _leads(self, key: TopicPartition) -> bool:
        partition = self._view.partition(key)
        return partition is not None and self._serves(partition)

    def _serves(self, partition: coordinator_pb2.Topic.Partition) -> bool:
        return partition.leader_node_id == self._node_id and not partition.is_fenced

    def _follow_topic(self, topic: coordinator_pb2.Topic) -> None:
        """Updates the topic's open logs from the catalog; its other logs are opened in the next turns."""
        settings = topic_settings({entry.name: entry.value for entry in topic.configs}, self._configs)
        for partition in topic.partitions:
            if not self._serves(partition):
                continue
            key = TopicPartition(topic.topic_id, partition.partition)
            log = self._logs.get(key)
            if log is None:
                self._unopened[key] = settings
                continue
            log.settings = settings
            if partition.leader_epoch < log.leader_epoch:
                self._close_behind(key, log, topic.name, partition.leader_epoch)
                continue
            log.leader_epoch = partition.leader_epoch
            log.is_moving = partition.is_moving

    def _open_some(self) -> None:
        """Opens up to LOGS_OPENED_IN_A_TURN logs; the next turn opens the rest."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        for key in list(islice(self._unopened, LOGS_OPENED_IN_A_TURN)):
            self._open(key)
        if self._unopened:
            self._opening = asyncio.get_running_loop().call_soon(self._open_some)

    def _open(self, key: TopicPartition) -> None:
        """Opens a log that is led here, with the newest view of the catalog; a log that fails to open is offline."""
        settings = self._unopened.pop(key)
        topic, partition = self._view.topics_by_id[key.topic_id], self._view.partition(key)
        assert partition is not None, f"{key} is not in the catalog, but is still in the set of logs to be opened"
        try:
            self._before_open(key, partition.given_up_epoch)
            log = self._logs[key] = PartitionLog(
                key=key,
                store=self._store,
                tails=self._tails,
                settings=settings,
                leader_epoch=partition.leader_epoch,
                report=self._report,
                reader=self.reader,
                settle=self.settle,
                rows=self._rows,
            )
            log.is_moving = partition.is_moving
            self._offline.pop(key, None)
            self._unreadable.pop(key, None)
        except StorageFailure as failure:
            self._unreadable[key] = settings
            problem = f"partition {key.partition} of topic {topic.name} is offline: {failure}"
            if self._offline.get(key) != problem:
                self._report(problem)
            self._offline[key] = problem

    def _close_behind(self, key: TopicPartition, log: PartitionLog, topic_name: str, leader_epoch: int) -> None:
        """Takes a log offline because the catalog's leader epoch went back: two writers would share an epoch."""
        self._offline[key] = (
            f"partition {key.partition} of topic {topic_name} is offline: the catalog gives it leader epoch "
            f"{leader_epoch}, but its log has {log.leader_epoch}. Restart this leader"
        )
        self._report(self._offline[key])
        del self._logs[key]
        log.close()

    def highest_leader_epoch(self) -> int:
        """The highest leader epoch of any stored batch; 0 where nothing is stored. StorageFailure."""
        self._store.finish_writes()  # a batch may be on its way into a file
        return max([keys.number_of(key) for key, _ in self._rows.scan(keys.LEADER_EPOCHS, b"")], default=0)

    # removing

    def _note_removed(self, old: CatalogView, new: CatalogView) -> None:
        """Notes which topics' records are to be removed now that the view is known, and logs each of them."""
        missing = self._strays.follow(old, new)
        self._removal.keep(new.topics_by_id, self._strays)
        for topic_id in missing:
            if topic_id in self._removal:
                continue
            known = old.topics_by_id.get(topic_id)
            self._removal.add(topic_id)
            if known is None:
                self._report(f"removing the records of topic {topic_id_text(topic_id)}, which no longer exists")
            else:
                text = "removing the records of topic %s (%s), which was deleted"
                _logger.info(text, known.name, topic_id_text(topic_id))
        named = self._configs[DELETED_STRAYS]
        assert isinstance(named, tuple), f"{DELETED_STRAYS} is {named!r}, not a list"
        for topic_id in self._strays.among(named):
            self._removal.add(topic_id)
            self._report(f"removing the records of topic {topic_id_text(topic_id)}: {DELETED_STRAYS} names it")


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _answer(turn: _Turn) -> None:
    for future, answer in turn.answers:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
