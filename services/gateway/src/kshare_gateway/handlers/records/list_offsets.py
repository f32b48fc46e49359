"""ListOffsets (key 2), versions 1 to 11: from all partitions' leaders (and share coordinators) at once.

Timestamps as in Kafka: -1 latest, -2 earliest, -3 the record with the greatest timestamp (version 7 on), -4 earliest
local (8 on; no storage is tiered, so the earliest), -5 and -6 (9 and 11 on; tiered offsets: none, so offset -1). Other
negative timestamps are UNSUPPORTED_VERSION. A partition that is named twice is INVALID_REQUEST, once. A leader that
does not answer is NOT_LEADER_OR_FOLLOWER. Requests wait for partitions in a reassignment (`records.reassignment`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.internal_topics import RecordSource, record_source, topic_named
from kshare_gateway.gateway import Gateway
from kshare_gateway.records.partition_requests import Results, ask_until_served, partitions_of
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_topic
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import CallFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest
from kshare_wire.generated.responses.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

EARLIEST, EARLIEST_LOCAL = -2, -4
_FIRST_VERSION_OF_TIME = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
_TIERED_TIMES = (-5, -6)

_Wanted = leader_pb2.ListOffsetsRequest.Partition


async def handle(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    return _body(request, await ask_until_served(context, request, _ask))


async def _ask(
    context: RequestContext, request: ListOffsetsRequest
) -> tuple[Results[ListOffsetsPartitionResponse], dict[TopicPartition, int]]:
    """The responses, and the error codes of the partitions that leaders were asked for."""
    gateway = context.gateway
    codes: dict[TopicPartition, int] = {}
    results: Results[ListOffsetsPartitionResponse] = {}
    by_source: dict[RecordSource, list[_Wanted]] = {}
    names: dict[bytes, str] = {}
    counts = Counter((name, entry.partition_index) for name, entry in partitions_of(request))
    for name, entry in partitions_of(request):
        if counts[name, entry.partition_index] > 1:
            results[(name, entry.partition_index)] = _refusal(entry, ErrorCode.INVALID_REQUEST)
            continue
        topic = topic_named(gateway, name)
        immediate = _answer_now(context, entry)
        if topic is None:
            results[(name, entry.partition_index)] = _refusal(entry, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        source, code = record_source(gateway, TopicPartition(topic.topic_id, entry.partition_index))
        if source is None or immediate is not None:
            results[(name, entry.partition_index)] = (
                _refusal(entry, code) if code else immediate or _refusal(entry, ErrorCode.NONE)
            )
            continue
        names[topic.topic_id] = name
        by_source.setdefault(source, []).append(
            _Wanted(
                topic_id=topic.topic_id,
                partition=entry.partition_index,
                current_leader_epoch=entry.current_leader_epoch,
                timestamp=EARLIEST if entry.timestamp == EARLIEST_LOCAL else entry.timestamp,
            )
        )
    calls = [_list_at(gateway, source, wanted, request.isolation_level) for source, wanted in by_source.items()]
    for answers in await asyncio.gather(*calls):
        for topic_id, body in answers:
            results[(names[topic_id], body.partition_index)] = body
            codes[TopicPartition(topic_id, body.partition_index)] = body.error_code
    return results, codes


def failed(context: RequestContext, request: ListOffsetsRequest, error: KafkaError) -> ListOffsetsResponse:
    return _body(
        request, {(name, entry.partition_index): _refusal(entry, error.code) for name, entry in partitions_of(request)}
    )


def _answer_now(context: RequestContext, entry: ListOffsetsPartition) -> ListOffsetsPartitionResponse | None:
    """The response to timestamps that need no leader; None for others."""
    if entry.timestamp >= 0:
        return None
    first_version = _FIRST_VERSION_OF_TIME.get(entry.timestamp)
    if first_version is None or context.version < first_version:
        return _refusal(entry, ErrorCode.UNSUPPORTED_VERSION)
    return _refusal(entry, ErrorCode.NONE) if entry.timestamp in _TIERED_TIMES else None


async def _list_at(
    gateway: Gateway, source: RecordSource, wanted: Sequence[_Wanted], isolation_level: int
) -> list[tuple[bytes, ListOffsetsPartitionResponse]]:
    request = leader_pb2.ListOffsetsRequest(isolation_level=isolation_level, partitions=wanted)
    try:
        answer, _ = await gateway.call_leader(source.address, source.list_offsets, request)
    except CallFailed as failure:
        gateway.call_failed(source.list_offsets.name, source.address, failure)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return [
            (entry.topic_id, ListOffsetsPartitionResponse(partition_index=entry.partition, error_code=code))
            for entry in wanted
        ]
    return [
        (
            entry.topic_id,
            ListOffsetsPartitionResponse(
                partition_index=entry.partition,
                error_code=gateway.code_for_names(entry.error_code),
                timestamp=-1 if entry.error_code else entry.timestamp,
                offset=-1 if entry.error_code else entry.offset,
                leader_epoch=-1 if entry.error_code else entry.leader_epoch,
            ),
        )
        for entry in answer.partitions
    ]


def _refusal(entry: ListOffsetsPartition, code: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=entry.partition_index, error_code=code)


def _body(request: ListOffsetsRequest, results: Results[ListOffsetsPartitionResponse]) -> ListOffsetsResponse:
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                results.get((topic.name, entry.partition_index)) or _refusal(entry, ErrorCode.UNKNOWN_SERVER_ERROR)
                for entry in {entry.partition_index: entry for entry in topic.partitions}.values()
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


serve(
    ListOffsetsRequest,
    ListOffsetsResponse,
    VersionRange(1, 11),
    access=Access(each=each_topic(Operation.DESCRIBE)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
