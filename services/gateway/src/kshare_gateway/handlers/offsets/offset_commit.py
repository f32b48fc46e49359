"""OffsetCommit (key 8), versions 2 to 10: forwarded to the coordinator. Topics have ids instead of names from 10 on."""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.errors import KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import OFFSET_COMMIT
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message

FIRST_VERSION_WITH_TOPIC_IDS = 10
DEFAULT_RETENTION_TIME_MS = -1
"""offsets.retention.minutes decides."""


async def handle(context: RequestContext, request: Message) -> Body:
    wanted = coordinator_pb2.OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or "",
        offsets=committed_offsets(request, has_ids=context.version >= FIRST_VERSION_WITH_TOPIC_IDS),
        api_version=context.version,
        has_retention_time=request.retention_time_ms != DEFAULT_RETENTION_TIME_MS,
        retention_time_ms=request.retention_time_ms,
    )
    answer = await context.gateway.call_group_coordinator(
        request.group_id, OFFSET_COMMIT, wanted, order_key=(request.group_id, request.member_id)
    )
    return results_body(request, [result.error_code for result in answer.results])


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return results_body(request, [error.code] * sum(len(topic.partitions) for topic in request.topics))


def committed_offsets(request: Message, *, has_ids: bool = False) -> list[coordinator_pb2.CommittedOffset]:
    """The offsets of OffsetCommit and TxnOffsetCommit, whose topics differ only by the id; in the request's order.

    `has_ids`: topics are named by id; ids of all zeros are unknown, as in Kafka.
    """
    return [
        coordinator_pb2.CommittedOffset(
            topic_id=topic.topic_id if has_ids else b"",
            topic_name=topic.name or "",
            partition=entry.partition_index,
            committed_offset=entry.committed_offset,
            committed_leader_epoch=entry.committed_leader_epoch,
            committed_metadata=entry.committed_metadata or "",
        )
        for topic in request.topics
        for entry in topic.partitions
    ]


def results_body(request: Message, codes: Sequence[int]) -> Body:
    """`codes` has one for each partition, in the request's order."""
    remaining = iter(codes)
    topics = [
        {
            **_identity(topic),
            "partitions": [
                {"partition_index": entry.partition_index, "error_code": next(remaining)} for entry in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return {"topics": topics}


def _identity(topic: Message) -> Body:
    """TxnOffsetCommit has no ids in any version."""
    name = {"name": topic.name or ""}
    return {**name, "topic_id": topic.topic_id} if hasattr(topic, "topic_id") else name


serve(
    ApiKey.OFFSET_COMMIT,
    VersionRange(2, 10),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
