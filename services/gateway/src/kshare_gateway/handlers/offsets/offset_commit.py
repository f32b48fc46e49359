"""OffsetCommit (key 8), versions 2 to 10: forwarded to the coordinator. Topics have ids instead of names from 10 on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Protocol

from kshare_core.errors import KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import each_topic, on_group
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import OFFSET_COMMIT
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.offset_commit import OffsetCommitRequest
from kshare_wire.generated.responses.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

FIRST_VERSION_WITH_TOPIC_IDS = 10
DEFAULT_RETENTION_TIME_MS = -1
"""offsets.retention.minutes decides."""


class CommittedPartition(Protocol):
    """A partition in a request of OffsetCommit or TxnOffsetCommit."""

    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


async def handle(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    has_ids = context.version >= FIRST_VERSION_WITH_TOPIC_IDS  # all zeros are unknown, as in Kafka
    wanted = coordinator_pb2.OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or "",
        offsets=[
            committed_offset(topic.topic_id if has_ids else b"", topic.name, entry)
            for topic in request.topics
            for entry in topic.partitions
        ],
        api_version=context.version,
        has_retention_time=request.retention_time_ms != DEFAULT_RETENTION_TIME_MS,
        retention_time_ms=request.retention_time_ms,
    )
    answer = await context.gateway.call_group_coordinator(
        request.group_id, OFFSET_COMMIT, wanted, order_key=(request.group_id, request.member_id)
    )
    return _response(request, [result.error_code for result in answer.results])


def failed(context: RequestContext, request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    return _response(request, repeat(error.code))


def committed_offset(topic_id: bytes, topic_name: str, entry: CommittedPartition) -> coordinator_pb2.CommittedOffset:
    """A partition's offset, of OffsetCommit or TxnOffsetCommit."""
    return coordinator_pb2.CommittedOffset(
        topic_id=topic_id,
        topic_name=topic_name,
        partition=entry.partition_index,
        committed_offset=entry.committed_offset,
        committed_leader_epoch=entry.committed_leader_epoch,
        committed_metadata=entry.committed_metadata or "",
    )


def _response(request: OffsetCommitRequest, codes: Iterable[int]) -> OffsetCommitResponse:
    """`codes` has one for each partition, in the request's order."""
    remaining = iter(codes)
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=entry.partition_index, error_code=next(remaining))
                for entry in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)


serve(
    OffsetCommitRequest,
    OffsetCommitResponse,
    VersionRange(2, 10),
    access=on_group(Operation.READ, each=each_topic(Operation.READ)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
