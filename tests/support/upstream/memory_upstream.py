"""An existing cluster in memory: one broker, which answers the requests that kshare sends to one, as Kafka does.

A flaw can be planted, such as a broker that forgets which sequence numbers it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kshare_core.errors import ErrorCode
from kshare_upstream.connection import BrokerAddress, ConnectionLost
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kshare_upstream.port import REQUESTS, AResponse, Broker, ClusterView, LeaderUnknown, PartitionLeader, Topic
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.create_topics import CreateTopicsRequest
from kshare_wire.generated.requests.delete_records import DeleteRecordsRequest
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest, FetchTopic
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest
from kshare_wire.generated.requests.list_offsets import ListOffsetsRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.requests.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderPartition
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kshare_wire.generated.responses.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from kshare_wire.generated.responses.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kshare_wire.generated.responses.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from kshare_wire.generated.responses.fetch import EpochEndOffset as DivergingEpoch
from kshare_wire.generated.responses.init_producer_id import InitProducerIdResponse
from kshare_wire.generated.responses.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic
from kshare_wire.generated.responses.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kshare_wire.generated.responses.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kshare_wire.messages import Request
from kshare_wire.record_batches import BatchHeader, patch, read_header

NODE_ID = 1
SEQUENCES_KEPT = 5
"""Batches of a producer that a broker recognizes (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
KAFKA_3_9: Mapping[int, int] = {
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 17,
    ApiKey.LIST_OFFSETS: 9,
    ApiKey.METADATA: 12,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.DESCRIBE_CLUSTER: 1,
}
"""The highest versions of a broker of Kafka 3.9.1, of the APIs that this one has."""


@dataclass(slots=True)
class Flaws:
    """What this broker does otherwise than Kafka, and which errors it answers."""

    forgets_sequences: bool = False
    ignores_delete_records: bool = False
    errors: dict[type[Request[Any]], list[int]] = field(default_factory=dict)
    """Error codes of the next requests of a kind; the request has no effect then."""
    losing: list[type[Request[Any]]] = field(default_factory=list)
    """Requests that take effect, and whose connection is then lost."""
    is_away: bool = False
    """Whether no connection can be made."""
    throttled_fetches: int = 0
    """So many of the next Fetches are answered without their partitions, as to a client above its quota."""
    slow_storage: bool = False
    """A Fetch has no records although there are some, as where remote storage does not bring them in time."""


@dataclass(slots=True)
class MemoryLog:
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    """Every batch that was ever appended, also those that were deleted since."""
    start: int = 0
    end: int = 0
    leader_epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Each leader epoch with the offset where it began."""
    sequences: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Base sequence and base offset of the newest batches, by producer id."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first and last offset of aborted transactions, which a test says."""
    open_from: int | None = None
    """The last stable offset while a transaction is open, which a test says."""


class MemoryUpstream:
    """Answers at once, but for a Fetch that waits for records."""

    def __init__(self, *, configs: Mapping[str, str] | None = None, versions: Mapping[int, int] = KAFKA_3_9) -> None:
        self.flaws = Flaws()
        self.configs = dict(configs or {})
        self.logs: dict[Name, MemoryLog] = {}
        self.topic_ids: dict[str, bytes] = {}
        """A topic that is made again gets another id."""
        self.max_message_bytes = 1 << 30
        """The largest batch that is taken."""
        self.leader_lookups = 0
        self.authorized_operations = -(1 << 31)
        """What the user may do with topics, as bits of AclOperation; -2^31 is not told."""
        self._versions = {key: VersionRange(0, highest) for key, highest in versions.items()}
        self._last_producer_id = 1000
        self._topics_made = 0
        self._known_leaders: set[Name] = set()
        self._appended = asyncio.Event()
        self._handlers: dict[type[Request[Any]], Callable[[Any, int | None], object]] = {
            ProduceRequest: self._produce,
            FetchRequest: self._fetch,
            ListOffsetsRequest: self._list_offsets,
            DeleteRecordsRequest: self._delete_records,
            CreateTopicsRequest: self._create_topics,
            DeleteTopicsRequest: self._delete_topics,
            DescribeConfigsRequest: self._describe_configs,
            InitProducerIdRequest: self._init_producer_id,
            OffsetForLeaderEpochRequest: self._offset_for_leader_epoch,
            MetadataRequest: self._metadata,
        }

    def _check_reachable(self) -> None:
        if self.flaws.is_away:
            raise ConnectionLost("memory:9092 cannot be reached")

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        self._check_reachable()
        names = sorted({name.topic for name in self.logs}) if topics is None else topics
        broker = Broker(NODE_ID, BrokerAddress("memory", 9092))
        return ClusterView("memory", NODE_ID, {NODE_ID: broker}, {name: self._topic(name) for name in names})

    async def versions(self) -> Mapping[int, VersionRange]:
        return self._versions

    async def ask_any(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self.ask_broker(NODE_ID, request, served)

    async def ask_controller(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self.ask_broker(NODE_ID, request, served)

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        assert node_id == NODE_ID and served.minimum <= self._versions[request.API_KEY].maximum
        self._check_reachable()
        if isinstance(request, FetchRequest):
            await self._wait_for_records(request)
            self._check_reachable()
        planned = self.flaws.errors.get(type(request), [])
        answer = self._handlers[type(request)](request, planned.pop(0) if planned else None)
        if type(request) in self.flaws.losing:
            self.flaws.losing.remove(type(request))
            raise ConnectionLost("the connection was lost")
        return cast(AResponse, answer)

    def elect(self, at: Name, leader_epoch: int) -> None:
        """A new leader of a partition, in this epoch; those that wrote nothing are forgotten (LeaderEpochFileCache)."""
        log = self.logs[at]
        log.leader_epochs = [each for each in log.leader_epochs if each[1] < log.end]
        log.leader_epochs.append((leader_epoch, log.end))

    def lose_newest(self, at: Name, count: int) -> int:
        """Drops the newest batches, as an unclean leader election does; returns how many there were."""
        log = self.logs[at]
        lost = log.batches[-count:]
        del log.batches[-count:]
        if lost:
            log.end = lost[0][0].base_offset
        for seen in log.sequences.values():
            seen[:] = [each for each in seen if each[1] < log.end]
        log.leader_epochs.append((log.leader_epochs[-1][0] + 1, log.end))
        return len(lost)

    async def close(self) -> None:
        """Nothing is connected."""

    async def leader_of(self, at: Name) -> int:
        self._check_reachable()
        if at not in self._known_leaders:
            self.leader_lookups += 1
            if at not in self.logs:
                raise LeaderUnknown(f"partition {at} has no leader")
            self._known_leaders.add(at)
        return NODE_ID

    def forget_leader(self, at: Name) -> None:
        self._known_leaders.discard(at)

    def _topic(self, name: str) -> Topic:
        partitions = [at.partition for at in self.logs if at.topic == name]
        code = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Topic(
            name,
            self.topic_ids.get(name, bytes(16)),
            {each: PartitionLeader(NODE_ID, self.logs[Name(name, each)].leader_epochs[-1][0]) for each in partitions},
            code,
        )

    def _produce(self, request: ProduceRequest, error: int | None) -> ProduceResponse:
        responses = []
        for topic in request.topic_data:
            results = []
            for data in topic.partition_data:
                assert data.records is not None
                log = self.logs[Name(topic.name, data.index)]
                code, offset = (error, -1) if error else self._append(log, bytes(data.records))
                results.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset))
            responses.append(TopicProduceResponse(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=responses)

    def _append(self, log: MemoryLog, batch: bytes) -> tuple[int, int]:
        if len(batch) > self.max_message_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        header = read_header(batch)
        seen = log.sequences.setdefault(header.producer_id, [])
        if header.producer_id >= 0 and not self.flaws.forgets_sequences:
            for sequence, offset in seen:
                if sequence == header.base_sequence:
                    return ErrorCode.NONE, offset
            if seen and header.base_sequence != seen[-1][0] + 1:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = log.end
        stored = patch(batch, offset, log.leader_epochs[-1][0])
        log.batches.append((read_header(stored), stored))
        log.history.append(stored)
        self._appended.set()
        log.end += header.last_offset_delta + 1
        seen.append((header.base_sequence + header.last_offset_delta, offset))
        del seen[:-SEQUENCES_KEPT]
        return ErrorCode.NONE, offset

    def _fetch(self, request: FetchRequest, error: int | None) -> FetchResponse:
        if self.flaws.throttled_fetches:
            self.flaws.throttled_fetches -= 1
            return FetchResponse(throttle_time_ms=100)
        topics = [
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[self._fetched(topic, each, request.isolation_level, error) for each in topic.partitions],
            )
            for topic in request.topics
        ]
        return FetchResponse(responses=topics)

    def _fetched(
        self, topic: FetchTopic, wanted: FetchPartition, isolation_level: int, error: int | None
    ) -> PartitionData:
        at = Name(topic.topic, wanted.partition)
        if topic.topic_id not in (bytes(16), self._topic(topic.topic).topic_id):
            return PartitionData(partition_index=at.partition, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        if at not in self.logs:
            return PartitionData(partition_index=at.partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        log = self.logs[at]
        offset, code = wanted.fetch_offset, error or ErrorCode.NONE
        if wanted.last_fetched_epoch >= 0:
            epoch, end = _end_of_epoch(log, wanted.last_fetched_epoch)
            if epoch == -1:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            elif epoch < wanted.last_fetched_epoch or end < offset:
                diverging = DivergingEpoch(epoch=epoch, end_offset=end)
                return PartitionData(partition_index=at.partition, high_watermark=log.end, diverging_epoch=diverging)
        if not log.start <= offset <= log.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        first = bisect_left(log.batches, offset, key=lambda each: each[0].base_offset + each[0].last_offset_delta)
        found = [data for _, data in log.batches[first:]]
        if isolation_level:
            stable = log.end if log.open_from is None else log.open_from
            found = [data for data in found if read_header(data).base_offset < stable]
        data = (
            b""
            if code or self.flaws.slow_storage
            else b"".join(found)[: max(wanted.partition_max_bytes, len(found[0]) if found else 0)]
        )
        return PartitionData(
            partition_index=at.partition,
            error_code=code,
            high_watermark=log.end,
            last_stable_offset=log.end if log.open_from is None else log.open_from,
            log_start_offset=log.start,
            aborted_transactions=[
                AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first, last in log.aborted
                if isolation_level and last >= offset
            ],
            records=[memoryview(data)],
        )

    async def _wait_for_records(self, request: FetchRequest) -> None:
        """Until a partition has what is asked for, an error, or the wait's end."""
        wanted = [(Name(topic.topic, each.partition), each) for topic in request.topics for each in topic.partitions]
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while all(self._readable_end(at, request.isolation_level) == each.fetch_offset for at, each in wanted):
            self._appended.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._appended.wait()

    def _readable_end(self, at: Name, isolation_level: int) -> int:
        """-1 for a partition that is not there."""
        log = self.logs.get(at)
        if log is None:
            return -1
        return log.open_from if isolation_level and log.open_from is not None else log.end

    def _list_offsets(self, request: ListOffsetsRequest, error: int | None) -> ListOffsetsResponse:
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    self._offset_at(Name(topic.name, each.partition_index), each.timestamp, request, error)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def _offset_at(
        self, at: Name, timestamp: int, request: ListOffsetsRequest, error: int | None
    ) -> ListOffsetsPartitionResponse:
        log, found_ms = self.logs[at], -1
        offset = log.start if timestamp == EARLIEST_TIMESTAMP else log.end
        if timestamp == LATEST_TIMESTAMP and request.isolation_level and log.open_from is not None:
            offset = log.open_from
        if timestamp >= 0:  # a batch has records of one time here
            later = [header for header, _ in log.batches if header.max_timestamp_ms >= timestamp]
            offset, found_ms = (later[0].base_offset, later[0].max_timestamp_ms) if later else (-1, -1)
        return ListOffsetsPartitionResponse(
            partition_index=at.partition, error_code=error or 0, timestamp=found_ms, offset=-1 if error else offset
        )

    def _delete_records(self, request: DeleteRecordsRequest, error: int | None) -> DeleteRecordsResponse:
        (topic,) = request.topics
        (wanted,) = topic.partitions
        log = self.logs[Name(topic.name, wanted.partition_index)]
        if not error and not self.flaws.ignores_delete_records:
            log.start = max(log.start, wanted.offset)
            log.batches = [
                (header, data)
                for header, data in log.batches
                if header.base_offset + header.last_offset_delta >= log.start
            ]
        result = DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=log.start, error_code=error or 0
        )
        return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name=topic.name, partitions=[result])])

    def _create_topics(self, request: CreateTopicsRequest, error: int | None) -> CreateTopicsResponse:
        (topic,) = request.topics
        exists = any(at.topic == topic.name for at in self.logs)
        code = error or (ErrorCode.TOPIC_ALREADY_EXISTS if exists else ErrorCode.NONE)
        if not code and topic.replication_factor > 1:
            code = ErrorCode.INVALID_REPLICATION_FACTOR  # there is one broker
        if not code and not request.validate_only:
            self._topics_made += 1
            self.topic_ids[topic.name] = topic.name.encode()[:12].ljust(12) + self._topics_made.to_bytes(4)
            self.logs |= {Name(topic.name, partition): MemoryLog() for partition in range(topic.num_partitions)}
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name, error_code=code)])

    def _metadata(self, request: MetadataRequest, error: int | None) -> MetadataResponse:
        topics = [
            MetadataResponseTopic(
                name=each.name,
                error_code=error or self._topic(each.name or "").error_code,
                topic_authorized_operations=self.authorized_operations,
            )
            for each in request.topics or ()
        ]
        return MetadataResponse(topics=topics)

    def _delete_topics(self, request: DeleteTopicsRequest, error: int | None) -> DeleteTopicsResponse:
        (name,) = request.topic_names
        if not any(at.topic == name for at in self.logs):
            error = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not error:
            self.logs = {at: log for at, log in self.logs.items() if at.topic != name}
        return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name, error_code=error or 0)])

    def _describe_configs(self, request: DescribeConfigsRequest, error: int | None) -> DescribeConfigsResponse:
        names = request.resources[0].configuration_keys
        configs = [
            DescribeConfigsResourceResult(name=name, value=value)
            for name, value in self.configs.items()
            if names is None or name in names
        ]
        result = DescribeConfigsResult(error_code=error or 0, configs=[] if error else configs)
        return DescribeConfigsResponse(results=[result])

    def _offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, error: int | None
    ) -> OffsetForLeaderEpochResponse:
        topics = [
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    self._end_of_epoch(Name(topic.topic, each.partition), each, error) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetForLeaderEpochResponse(topics=topics)

    def _end_of_epoch(self, at: Name, wanted: OffsetForLeaderPartition, error: int | None) -> EpochEndOffset:
        epoch, end = _end_of_epoch(self.logs[at], wanted.leader_epoch)
        return EpochEndOffset(partition=at.partition, error_code=error or 0, leader_epoch=epoch, end_offset=end)

    def _init_producer_id(self, request: InitProducerIdRequest, error: int | None) -> InitProducerIdResponse:
        self._last_producer_id += 1
        return InitProducerIdResponse(
            error_code=error or 0, producer_id=self._last_producer_id, producer_epoch=0 if not error else -1
        )


def _end_of_epoch(log: MemoryLog, wanted: int) -> tuple[int, int]:
    """As LeaderEpochFileCache.endOffsetFor."""
    later = [start for epoch, start in log.leader_epochs if epoch > wanted]
    until = [epoch for epoch, _ in log.leader_epochs if epoch <= wanted]
    if not later and wanted != log.leader_epochs[-1][0]:
        return -1, -1
    return until[-1] if until else wanted, later[0] if later else log.end
