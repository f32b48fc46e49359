"""Requests about the records of partitions, as the broker that leads them answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from kshare_core.errors import ErrorCode, KafkaError
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.framing import RequestHeader
from kshare_wire.generated.requests.delete_records import DeleteRecordsRequest
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest
from kshare_wire.generated.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest
from kshare_wire.generated.requests.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.responses.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kshare_wire.generated.responses.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from kshare_wire.generated.responses.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kshare_wire.generated.responses.offset_for_leader_epoch import EpochEndOffset as EndOfEpoch
from kshare_wire.generated.responses.offset_for_leader_epoch import (
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kshare_wire.generated.responses.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kshare_wire.record_batches import read_produced_batch
from support.simulation.upstream.cluster import SimulatedTopic, SimulatedUpstream
from support.simulation.upstream.partitions import LeaderLost, SimulatedPartition
from support.simulation.upstream.replicated_log import Appended
from support.simulation.upstream.transactions import ProducerIdentity

ALL_REPLICAS = -1
TOPIC_IDS_SINCE = 13
"""The version of Fetch since which topics go by their ids."""
MAX_MESSAGE_BYTES = 1_048_588
CLIENT_ID_OF_NODES = "kshare"
"""Answers to it end in the middle of a batch, as Kafka's do; the clients of the simulation get whole batches."""


class LogApis:
    """See the module's text."""

    def __init__(self, upstream: SimulatedUpstream, node_id: int) -> None:
        self._upstream = upstream
        self._node_id = node_id

    def _led(self, at: Name, current_leader_epoch: int = -1) -> tuple[int, SimulatedPartition | None]:
        """The partition, if this broker leads it; or the error that says why not."""
        partition = self._upstream.partition(at)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if partition.leader != self._node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None
        if -1 < current_leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, None
        if current_leader_epoch > partition.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH, None
        return ErrorCode.NONE, partition

    # Produce

    async def produce(self, request: ProduceRequest, header: RequestHeader) -> ProduceResponse:
        """Appends every batch, and then waits until all are replicated."""
        appended: list[tuple[Name, Appended]] = []
        for topic in request.topic_data:
            for data in topic.partition_data:
                at = Name(topic.name, data.index)
                appended.append((at, self._append(at, bytes(data.records or b""), request)))
        if request.acks == ALL_REPLICAS:
            waiting = [self._replicated(at, done, request.timeout_ms) for at, done in appended]
            codes = await asyncio.gather(*waiting)
        else:
            codes = [done.error_code for _, done in appended]
        results: dict[str, list[PartitionProduceResponse]] = {}
        for (at, done), code in zip(appended, codes, strict=True):
            result = PartitionProduceResponse(
                index=at.partition, error_code=code, base_offset=-1 if code else done.base_offset
            )
            results.setdefault(at.topic, []).append(result)
        return ProduceResponse(
            responses=[TopicProduceResponse(name=name, partition_responses=found) for name, found in results.items()]
        )

    def _append(self, at: Name, batch: bytes, request: ProduceRequest) -> Appended:
        code, partition = self._led(at)
        if partition is None:
            return Appended(code)
        topic = self._upstream.topics[at.topic]
        if request.acks == ALL_REPLICAS and len(partition.in_sync) < topic.min_in_sync:
            return Appended(ErrorCode.NOT_ENOUGH_REPLICAS)
        if len(batch) > int(topic.configs.get("max.message.bytes", MAX_MESSAGE_BYTES)):
            return Appended(ErrorCode.MESSAGE_TOO_LARGE)
        try:
            header = read_produced_batch(batch)
        except KafkaError as error:
            return Appended(error.code)
        repeated = partition.log.find_repeated(header)
        if repeated is not None:
            return repeated
        if header.is_transactional:
            identity = ProducerIdentity(header.producer_id, header.producer_epoch)
            if not self._upstream.transactions.may_append(request.transactional_id, identity, at):
                return Appended(ErrorCode.INVALID_TXN_STATE)
        return partition.log.append(batch, partition.leader_epoch)

    async def _replicated(self, at: Name, done: Appended, timeout_ms: int) -> int:
        """The error code of a batch once it is on all replicas in sync, or is known not to be."""
        partition = self._upstream.partition(at)
        if done.error_code or partition is None:
            return done.error_code
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await partition.replicated(done.next_offset)
        except LeaderLost:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        if len(partition.in_sync) < self._upstream.topics[at.topic].min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # Fetch

    async def fetch(self, request: FetchRequest, header: RequestHeader) -> FetchResponse:
        """Waits for `min_bytes` in all partitions together, for an error, or for the end of `max_wait_ms`."""
        loop = self._upstream.loop
        if request.session_epoch > 0:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        deadline = loop.time() + request.max_wait_ms / 1000
        cut = header.client_id == CLIENT_ID_OF_NODES
        while True:
            answer = self._fetched(request, by_id=header.version >= TOPIC_IDS_SINCE, cut=cut)
            found = [each for topic in answer.responses for each in topic.partitions]
            size = sum(len(part) for each in found for part in each.records or ())
            left_s = deadline - loop.time()
            if left_s <= 0 or size >= request.min_bytes or any(each.error_code for each in found):
                return answer
            waiter: asyncio.Future[None] = loop.create_future()
            for partition in self._wanted_partitions(request):
                partition.tell(waiter)
            await asyncio.wait([waiter], timeout=left_s)

    def _wanted_partitions(self, request: FetchRequest) -> Iterator[SimulatedPartition]:
        for wanted in request.topics:
            topic = self._topic(wanted.topic, wanted.topic_id)
            for each in wanted.partitions if topic else ():
                partition = self._upstream.partition(Name(topic.name, each.partition)) if topic else None
                if partition is not None:
                    yield partition

    def _topic(self, name: str, topic_id: bytes) -> SimulatedTopic | None:
        return self._upstream.topics.get(name) if name else self._upstream.topic_of_id(topic_id)

    def _fetched(self, request: FetchRequest, *, by_id: bool, cut: bool) -> FetchResponse:
        responses = []
        for wanted in request.topics:
            topic = self._topic(wanted.topic, wanted.topic_id)
            name = topic.name if topic else wanted.topic
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None else 0
            parts = [
                PartitionData(partition_index=each.partition, error_code=unknown, high_watermark=-1)
                if unknown
                else self._part(Name(name, each.partition), each, request.isolation_level, cut=cut)
                for each in wanted.partitions
            ]
            responses.append(FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id, partitions=parts))
        return FetchResponse(responses=responses)

    def _part(self, at: Name, wanted: FetchPartition, isolation_level: int, *, cut: bool) -> PartitionData:
        code, partition = self._led(at, wanted.current_leader_epoch)
        if partition is None:
            return PartitionData(partition_index=at.partition, error_code=code, high_watermark=-1)
        log, offset = partition.log, wanted.fetch_offset
        answer = PartitionData(
            partition_index=at.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.stable_offset,
            log_start_offset=log.start,
        )
        if wanted.last_fetched_epoch >= 0:
            epoch, end = log.end_of_epoch(wanted.last_fetched_epoch, partition.leader_epoch)
            if epoch < wanted.last_fetched_epoch or end < offset:
                answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                return answer
        if not log.start <= offset <= log.end:
            return answer.replaced(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        limit = partition.stable_offset if isolation_level else partition.high_watermark
        data = log.read(offset, limit, wanted.partition_max_bytes, cut=cut)
        answer.records = [data]
        if isolation_level:
            answer.aborted_transactions = [
                AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                for each in log.aborted_between(offset, limit)
            ]
        return answer

    # Offsets

    async def list_offsets(self, request: ListOffsetsRequest, header: RequestHeader) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        self._offset(Name(topic.name, each.partition_index), each, request.isolation_level)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _offset(self, at: Name, wanted: ListOffsetsPartition, isolation_level: int) -> ListOffsetsPartitionResponse:
        code, partition = self._led(at, wanted.current_leader_epoch)
        if partition is None:
            return ListOffsetsPartitionResponse(partition_index=at.partition, error_code=code)
        if wanted.timestamp == EARLIEST_TIMESTAMP:
            offset = partition.log.start
        elif partition.is_behind:
            return ListOffsetsPartitionResponse(partition_index=at.partition, error_code=ErrorCode.OFFSET_NOT_AVAILABLE)
        elif wanted.timestamp == LATEST_TIMESTAMP:
            offset = partition.stable_offset if isolation_level else partition.high_watermark
        else:
            offset = partition.log.offset_at_time(wanted.timestamp)
        return ListOffsetsPartitionResponse(
            partition_index=at.partition, offset=offset, leader_epoch=partition.leader_epoch
        )

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, header: RequestHeader
    ) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            parts = []
            for wanted in topic.partitions:
                code, partition = self._led(Name(topic.topic, wanted.partition), wanted.current_leader_epoch)
                epoch, end = (
                    partition.log.end_of_epoch(wanted.leader_epoch, partition.leader_epoch) if partition else (-1, -1)
                )
                part = EndOfEpoch(partition=wanted.partition, error_code=code, leader_epoch=epoch, end_offset=end)
                parts.append(part)
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=parts))
        return OffsetForLeaderEpochResponse(topics=topics)

    # DeleteRecords

    async def delete_records(self, request: DeleteRecordsRequest, header: RequestHeader) -> DeleteRecordsResponse:
        topics = []
        for topic in request.topics:
            results = [self._deleted(Name(topic.name, each.partition_index), each.offset) for each in topic.partitions]
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        return DeleteRecordsResponse(topics=topics)

    def _deleted(self, at: Name, offset: int) -> DeleteRecordsPartitionResult:
        code, partition = self._led(at)
        if partition is not None:
            wanted = partition.high_watermark if offset == -1 else offset
            if wanted > partition.high_watermark:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                partition.log.delete_before(wanted)
                partition.wake()
                return DeleteRecordsPartitionResult(partition_index=at.partition, low_watermark=partition.log.start)
        return DeleteRecordsPartitionResult(partition_index=at.partition, low_watermark=-1, error_code=code)
