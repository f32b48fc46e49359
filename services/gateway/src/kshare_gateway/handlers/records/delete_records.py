"""DeleteRecords (key 21), versions 0 to 2: sent to all partitions' leaders at once.

As KafkaApis.handleDeleteRecordsRequest of Kafka 4.3: a partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, one
of an internal topic INVALID_TOPIC_EXCEPTION; the other errors are the leader's. A partition without a leader, or whose
leader is unavailable, is NOT_LEADER_OR_FOLLOWER. If the leader does not answer within the request's timeout, it is
REQUEST_TIMED_OUT, and the deletion may happen later. Requests wait for partitions in a reassignment
(`records.reassignment`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.internal_topics import INTERNAL_TOPICS
from kshare_core.security.acls import Operation
from kshare_gateway.gateway import CALL_TIMEOUT_MS, Gateway
from kshare_gateway.records.partition_requests import Results, ask_until_served, partitions_of
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_topic
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DELETE_RECORDS
from kshare_rpc.network import CallFailed, CallTimeout
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.delete_records import DeleteRecordsRequest
from kshare_wire.generated.responses.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

UNKNOWN_WATERMARK = -1

_Wanted = leader_pb2.DeleteRecordsRequest.Partition


async def handle(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    return _body(request, await ask_until_served(context, request, _ask))


async def _ask(
    context: RequestContext, request: DeleteRecordsRequest
) -> tuple[Results[DeleteRecordsPartitionResult], dict[TopicPartition, int]]:
    """The responses, and the error codes of the partitions that leaders were asked for."""
    gateway = context.gateway
    codes: dict[TopicPartition, int] = {}
    results: Results[DeleteRecordsPartitionResult] = {}
    by_leader: dict[str, list[_Wanted]] = {}
    names: dict[bytes, str] = {}
    for name, entry in partitions_of(request):
        partition = entry.partition_index
        topic = gateway.view.topics_by_name.get(name)
        if topic is None:
            is_internal = name in INTERNAL_TOPICS
            code = ErrorCode.INVALID_TOPIC_EXCEPTION if is_internal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results[(name, partition)] = _refusal(partition, code)
            continue
        if topic.internal:
            results[(name, partition)] = _refusal(partition, ErrorCode.INVALID_TOPIC_EXCEPTION)
            continue
        address, code = gateway.leader_of(TopicPartition(topic.topic_id, partition))
        if code:
            results[(name, partition)] = _refusal(partition, code)
            continue
        names[topic.topic_id] = name
        wanted = _Wanted(topic_id=topic.topic_id, partition=partition, offset=entry.offset)
        by_leader.setdefault(address, []).append(wanted)
    timeout_ms = min(CALL_TIMEOUT_MS, max(1, request.timeout_ms))
    calls = [_delete_at(gateway, address, wanted, timeout_ms) for address, wanted in by_leader.items()]
    for answers in await asyncio.gather(*calls):
        for topic_id, body in answers:
            results[(names[topic_id], body.partition_index)] = body
            codes[TopicPartition(topic_id, body.partition_index)] = body.error_code
    return results, codes


def failed(context: RequestContext, request: DeleteRecordsRequest, error: KafkaError) -> DeleteRecordsResponse:
    refusals = {
        (name, entry.partition_index): _refusal(entry.partition_index, error.code)
        for name, entry in partitions_of(request)
    }
    return _body(request, refusals)


async def _delete_at(
    gateway: Gateway, address: str, wanted: Sequence[_Wanted], timeout_ms: int
) -> list[tuple[bytes, DeleteRecordsPartitionResult]]:
    request = leader_pb2.DeleteRecordsRequest(partitions=wanted)
    try:
        answer, _ = await gateway.catalog.channel(address).call(DELETE_RECORDS, request, timeout_ms=timeout_ms)
    except CallFailed as failure:
        gateway.call_failed("DeleteRecords", f"leader {address}", failure)
        code = ErrorCode.REQUEST_TIMED_OUT if isinstance(failure, CallTimeout) else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return [(entry.topic_id, _refusal(entry.partition, code)) for entry in wanted]
    return [
        (
            result.topic_id,
            DeleteRecordsPartitionResult(
                partition_index=result.partition,
                low_watermark=result.low_watermark,
                error_code=gateway.code_for_names(result.error_code),
            ),
        )
        for result in answer.results
    ]


def _refusal(partition: int, code: int) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=partition, low_watermark=UNKNOWN_WATERMARK, error_code=code)


def _body(request: DeleteRecordsRequest, results: Results[DeleteRecordsPartitionResult]) -> DeleteRecordsResponse:
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[results[(topic.name, entry.partition_index)] for entry in topic.partitions],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)


serve(
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    VersionRange(0, 2),
    access=Access(each=each_topic(Operation.DELETE)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
