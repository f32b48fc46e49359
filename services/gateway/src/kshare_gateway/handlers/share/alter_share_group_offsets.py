"""AlterShareGroupOffsets (key 91), version 0: forwarded to the coordinator, answered when the state was replaced."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import DENIED, on_group
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import ALTER_SHARE_GROUP_OFFSETS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
)
from kshare_wire.generated.responses.alter_share_group_offsets import (
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

CALL_TIMEOUT_MS = 25_000
"""Includes the coordinator's own calls to share coordinators and leaders."""

Result = coordinator_pb2.AlterShareGroupOffsetsResponse.Result


async def handle(context: RequestContext, request: AlterShareGroupOffsetsRequest) -> AlterShareGroupOffsetsResponse:
    wanted = coordinator_pb2.AlterShareGroupOffsetsRequest(group_id=request.group_id)
    denied = []
    for topic in request.topics:
        if not context.authorize(Operation.READ, ResourceType.TOPIC, topic.topic_name):
            denied.append(_denied(topic))
            continue
        entry = wanted.topics.add(topic_name=topic.topic_name)
        for partition in topic.partitions:
            entry.partitions.add(partition=partition.partition_index, start_offset=partition.start_offset)
    answer = await context.gateway.call_group_coordinator(
        request.group_id, ALTER_SHARE_GROUP_OFFSETS, wanted, timeout_ms=CALL_TIMEOUT_MS
    )
    return AlterShareGroupOffsetsResponse(
        error_code=answer.error_code,
        error_message=answer.error_message or None,
        responses=[] if answer.error_code else [*_topics(answer.results), *denied],
    )


def _denied(topic: AlterShareGroupOffsetsRequestTopic) -> AlterShareGroupOffsetsResponseTopic:
    code, text = DENIED[ResourceType.TOPIC]
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            AlterShareGroupOffsetsResponsePartition(
                partition_index=partition.partition_index, error_code=code, error_message=text
            )
            for partition in topic.partitions
        ],
    )


def _topics(results: Iterable[Result]) -> list[AlterShareGroupOffsetsResponseTopic]:
    """Results grouped by topic, in the request's order."""
    return [
        AlterShareGroupOffsetsResponseTopic(
            topic_name=name,
            topic_id=topic_id,
            partitions=[
                AlterShareGroupOffsetsResponsePartition(
                    partition_index=result.partition,
                    error_code=result.error_code,
                    error_message=result.error_message or None,
                )
                for result in found
            ],
        )
        for (name, topic_id), found in groupby(results, key=lambda each: (each.topic_name, each.topic_id))
    ]


serve(
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    VersionRange(0, 0),
    access=on_group(Operation.READ, by_handler="Read on the topics"),
    handle=handle,
)
