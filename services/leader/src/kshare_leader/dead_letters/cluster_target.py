"""Dead letters of the kafka engine: in a topic of the existing cluster, each exactly once.

The source's leader commits a batch of dead letters and the source's note (`notes`) in one transaction. The
transactional id belongs to the source, so a new leader's InitProducerId fences the one before, and returns when that
one's transactions are committed or aborted. Then the new leader reads the note, and sends only what is not in it.
After any failure this leader does the same: an outcome that is unknown is found out by reading, not guessed.

A source's producer and note are kept while the share-partition is served, for at most WRITERS_LIMIT sources.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.dead_letters.appended import AppendedOffsets, row_of_epoch
from kshare_leader.dead_letters.destination import (
    CONFIGS_OF_CREATED,
    Destination,
    Refused,
    ToBeCreated,
    Unreachable,
    find_destination_in_cluster,
)
from kshare_leader.dead_letters.letters import LetterBatch, OffsetRun, SourceRecords
from kshare_leader.dead_letters.limits import APPEND_TIMEOUT_MS, APPENDED_RUNS_LIMIT, WRITERS_LIMIT
from kshare_leader.dead_letters.notes import Notes, note_batch, transactional_id
from kshare_leader.dead_letters.port import ArchivingPartition
from kshare_leader.dead_letters.source_copies import fetch_copies
from kshare_leader.dead_letters.target import CannotStore
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.topic_creation import TopicNotCreated, look_up_created_topic
from kshare_leader.upstream.message_limits import MessageLimits
from kshare_leader.upstream.upstream_log import UNREACHABLE
from kshare_rpc.catalog import CatalogView, is_cluster_topic
from kshare_rpc.network import Channel
from kshare_runtime.ports import Clock
from kshare_upstream import partition_log
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.topics import Replicas, create_topic
from kshare_upstream.transactional_producer import TransactionalProducer

BROKERS_DEFAULT = -1


class _Writer:
    """The producer of one source; `row` is its note, known while the producer is ready."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self.producer = producer
        self.row: AppendedOffsets | None = None


class ClusterTarget:
    """Implements `target.DeadLetterTarget`.

    `coordinator` returns the channel to the coordinator. `wait_for_version` waits until the catalog's view has a
    version, with a timeout in milliseconds.
    """

    def __init__(
        self,
        *,
        upstream: Upstream,
        view: Callable[[], CatalogView],
        coordinator: Callable[[], Channel],
        wait_for_version: Callable[[int, int], Awaitable[bool]],
        configs: Configs,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        self._upstream = upstream
        self._view = view
        self._coordinator = coordinator
        self._wait_for_version = wait_for_version
        self._configs = configs
        self._clock = clock
        self._report = report
        self._prefix = configs.text("kshare.upstream.topic.prefix")
        self._notes = Notes(upstream, self._prefix, Replicas.of(configs), deadline_ms=APPEND_TIMEOUT_MS, report=report)
        self._writers: dict[SharePartitionKey, _Writer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._limits = MessageLimits(upstream)

    # Destinations

    async def find(self, key: SharePartitionKey, topic_name: str) -> Destination | Refused | ToBeCreated | Unreachable:
        view = self._view()
        exists = topic_name in view.topics_by_name
        return find_destination_in_cluster(
            view,
            self._configs,
            group_id=key.group_id,
            topic_name=topic_name,
            source_partition=key.partition,
            max_message_bytes=await self._max_message_bytes(topic_name) if exists else 0,
        )

    async def _max_message_bytes(self, topic: str) -> int:
        try:
            return await self._limits.of(topic)
        except UNREACHABLE as error:
            raise CannotStore(f"max.message.bytes of topic {topic} cannot be asked for: {error}") from error

    async def create(self, topic_name: str) -> None:
        try:
            await create_topic(
                self._upstream,
                topic_name,
                partitions=BROKERS_DEFAULT,
                replicas=BROKERS_DEFAULT,
                configs=CONFIGS_OF_CREATED,
            )
        except UNREACHABLE as error:
            raise CannotStore(f"dead-letter topic {topic_name} cannot be created: {error}") from error
        try:
            await look_up_created_topic(
                topic_name, "dead-letter topic", self._coordinator(), self._wait_for_version, self._view
            )
        except TopicNotCreated as failure:
            raise CannotStore(str(failure)) from failure

    # Sources

    async def source_records(
        self, served: ArchivingPartition, runs: Sequence[ArchivingRun], limit_bytes: int
    ) -> tuple[Sequence[ArchivingRun], SourceRecords]:
        key = served.key
        topic = self._view().topics_by_id.get(key.topic_id)
        if topic is None:
            raise CannotStore("the topic is not in this leader's catalog")
        at = UpstreamPartitionName(topic.name, key.partition)
        log = PartitionLog(self._upstream, at, deadline_ms=APPEND_TIMEOUT_MS, read_purpose="dead letters")
        try:
            covered, copies = await fetch_copies(key.topic_partition, log, runs, limit_bytes)
            topic_id = await log.topic_id()
        except (*UNREACHABLE, KafkaError) as error:
            raise CannotStore(f"the records cannot be read: {error}") from error
        if not is_cluster_topic(topic, topic_id):  # ids are used once, so it was the same topic before
            raise CannotStore(f"topic {topic.name} was made anew")
        return covered, SourceRecords(copies, self._report)

    # Appends

    async def append(
        self, served: ArchivingPartition, destination: Destination, letters: LetterBatch
    ) -> list[OffsetRun]:
        key = served.key
        at = UpstreamPartitionName(destination.topic_name, destination.partition.partition)
        try:
            note_at = await self._notes.partition_of(key)
            _check_served(served)  # else it makes a writer beside that of the share-partition as it is loaded again
            writer = await self._ready_writer(key)
            _check_served(served)
            row = row_of_epoch(writer.row, served.state_epoch, served.truncation)
            already = row.appended(letters.offsets)
            if already:
                return already
            now_ms = self._clock.now_ms()
            changed = row.after(served.start_offset, letters.offsets, now_ms)
            if len(changed.runs) > APPENDED_RUNS_LIMIT:
                raise CannotStore(f"there are more than {APPENDED_RUNS_LIMIT} runs of dead letters above its start")
            await writer.producer.commit({at: letters.batch, note_at: note_batch(key, changed, now_ms)})
        except partition_log.Refused as refused:
            if refused.code == ErrorCode.MESSAGE_TOO_LARGE:
                self._limits.forget(destination.topic_name)
            raise CannotStore(str(refused)) from refused
        except UNREACHABLE as error:
            raise CannotStore(str(error)) from error
        except KafkaError as error:
            if error.code == ErrorCode.FENCED_STATE_EPOCH:
                raise
            raise CannotStore(error.message) from error
        writer.row = changed
        return letters.offsets

    async def _ready_writer(self, key: SharePartitionKey) -> _Writer:
        """A writer whose note is what the cluster has, and which no other leader's transaction can change."""
        writer = self._writers.pop(key, None)
        if writer is None:
            producer = TransactionalProducer(
                self._upstream, transactional_id(self._prefix, key), deadline_ms=APPEND_TIMEOUT_MS
            )
            writer = _Writer(producer)
        self._writers[key] = writer  # the last one is that which was used last
        if len(self._writers) > WRITERS_LIMIT:
            self.dropped(next(iter(self._writers)))
        if not writer.producer.is_ready:
            await writer.producer.begin_anew()
            try:
                writer.row = await self._notes.read(key)
            except BaseException:
                writer.producer.forget()
                raise
        return writer

    def dropped(self, key: SharePartitionKey) -> None:
        writer = self._writers.pop(key, None)
        if writer is not None:
            task = asyncio.get_running_loop().create_task(writer.producer.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for key in list(self._writers):
            self.dropped(key)
        await asyncio.gather(*self._closing, return_exceptions=True)


def _check_served(served: ArchivingPartition) -> None:
    if served.error is not None:
        raise CannotStore("it is not served any more")
