"""OffsetForLeaderEpoch (key 23), versions 2 to 4: from all partitions' leaders at once.

Consumers ask it after a change of leaders, to find out whether the log lost records that they had read (KIP-320). A
topic or partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION; a leader that does not answer is
NOT_LEADER_OR_FOLLOWER, upon which clients ask again. `__share_group_state` loses no records, so that each of its epochs
ends where its partition ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.internal_topics import RecordSource, record_source, topic_named
from kshare_gateway.gateway import Gateway
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_topic
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from kshare_rpc.network import CallFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderPartition
from kshare_wire.generated.responses.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

LATEST = -1
"""ListOffsets: the end of a partition."""

_Wanted = leader_pb2.OffsetForLeaderEpochRequest.Partition
_Results = dict[tuple[str, int], EpochEndOffset]


async def handle(context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    gateway = context.gateway
    results: _Results = {}
    by_source: dict[RecordSource, list[_Wanted]] = {}
    names: dict[bytes, str] = {}
    for name, entry in _partitions(request):
        topic = topic_named(gateway, name)
        if topic is None:
            results[name, entry.partition] = _refusal(entry.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        source, code = record_source(gateway, TopicPartition(topic.topic_id, entry.partition))
        if source is None:
            results[name, entry.partition] = _refusal(entry.partition, gateway.code_for_names(code))
            continue
        names[topic.topic_id] = name
        wanted = _Wanted(
            topic_id=topic.topic_id,
            partition=entry.partition,
            current_leader_epoch=entry.current_leader_epoch,
            leader_epoch=entry.leader_epoch,
        )
        by_source.setdefault(source, []).append(wanted)
    calls = [
        (_ends_at_leader if source.list_offsets is LIST_OFFSETS else _ends_of_state_topic)(gateway, source, wanted)
        for source, wanted in by_source.items()
    ]
    for answers in await asyncio.gather(*calls):
        for topic_id, body in answers:
            results[names[topic_id], body.partition] = body
    return _body(request, results)


def failed(
    context: RequestContext, request: OffsetForLeaderEpochRequest, error: KafkaError
) -> OffsetForLeaderEpochResponse:
    refused = {(name, entry.partition): _refusal(entry.partition, error.code) for name, entry in _partitions(request)}
    return _body(request, refused)


def _partitions(request: OffsetForLeaderEpochRequest) -> Iterator[tuple[str, OffsetForLeaderPartition]]:
    for topic in request.topics:
        for entry in topic.partitions:
            yield topic.topic, entry


async def _ends_at_leader(
    gateway: Gateway, source: RecordSource, wanted: Sequence[_Wanted]
) -> list[tuple[bytes, EpochEndOffset]]:
    request = leader_pb2.OffsetForLeaderEpochRequest(partitions=wanted)
    try:
        answer, _ = await gateway.call_leader(source.address, OFFSET_FOR_LEADER_EPOCH, request)
    except CallFailed as failure:
        return _unanswered(gateway, OFFSET_FOR_LEADER_EPOCH.name, source, wanted, failure)
    return [
        (
            entry.topic_id,
            EpochEndOffset(
                partition=entry.partition,
                error_code=gateway.code_for_names(entry.error_code),
                leader_epoch=entry.leader_epoch,
                end_offset=entry.end_offset,
            ),
        )
        for entry in answer.partitions
    ]


async def _ends_of_state_topic(
    gateway: Gateway, source: RecordSource, wanted: Sequence[_Wanted]
) -> list[tuple[bytes, EpochEndOffset]]:
    epochs = {entry.partition: entry.leader_epoch for entry in wanted}
    partitions = [
        leader_pb2.ListOffsetsRequest.Partition(
            topic_id=entry.topic_id,
            partition=entry.partition,
            current_leader_epoch=entry.current_leader_epoch,
            timestamp=LATEST,
        )
        for entry in wanted
    ]
    try:
        answer, _ = await gateway.call_leader(
            source.address, source.list_offsets, leader_pb2.ListOffsetsRequest(partitions=partitions)
        )
    except CallFailed as failure:
        return _unanswered(gateway, source.list_offsets.name, source, wanted, failure)
    return [
        (
            entry.topic_id,
            _refusal(entry.partition, gateway.code_for_names(entry.error_code))
            if entry.error_code
            else EpochEndOffset(
                partition=entry.partition, leader_epoch=epochs[entry.partition], end_offset=entry.offset
            ),
        )
        for entry in answer.partitions
    ]


def _unanswered(
    gateway: Gateway, method: str, source: RecordSource, wanted: Sequence[_Wanted], failure: CallFailed
) -> list[tuple[bytes, EpochEndOffset]]:
    gateway.call_failed(method, source.address, failure)
    return [(entry.topic_id, _refusal(entry.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)) for entry in wanted]


def _refusal(partition: int, code: int) -> EpochEndOffset:
    return EpochEndOffset(partition=partition, error_code=code)


def _body(request: OffsetForLeaderEpochRequest, results: _Results) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    results.get((topic.topic, entry.partition))
                    or _refusal(entry.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
                    for entry in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


serve(
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    VersionRange(2, 4),
    access=Access(each=each_topic(Operation.DESCRIBE)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
