"""DescribeShareGroupOffsets (key 90), versions 0 and 1 (lag): forwarded to the coordinator, one call for each group.

No topics (null) means all initialized share-partitions of the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby

from kshare_core.errors import KafkaError
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import DENIED, Access
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DESCRIBE_SHARE_GROUP_OFFSETS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kshare_wire.generated.responses.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

CALLS_AT_ONCE = 16
"""Groups of one request that are queried concurrently."""
CALL_TIMEOUT_MS = 25_000
"""Includes the coordinator's own calls to share coordinators and leaders."""

Result = coordinator_pb2.DescribeShareGroupOffsetsResponse.Result


async def handle(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []
    for first in range(0, len(request.groups), CALLS_AT_ONCE):
        portion = request.groups[first : first + CALLS_AT_ONCE]
        groups += await asyncio.gather(*(_describe(context, group) for group in portion))
    return DescribeShareGroupOffsetsResponse(groups=groups)


def failed(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest, error: KafkaError
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(
        groups=[_refused(group, error.code, error.message) for group in request.groups]
    )


def _identity(
    group: DescribeShareGroupOffsetsRequestGroup,
) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...] | None]:
    if group.topics is None:
        return group.group_id, None
    return group.group_id, tuple((topic.topic_name, tuple(topic.partitions)) for topic in group.topics)


async def _describe(
    context: RequestContext, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    if not context.authorize(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
        return _refused(group, *DENIED[ResourceType.GROUP])
    allowed: list[DescribeShareGroupOffsetsRequestTopic] = []
    denied: list[DescribeShareGroupOffsetsRequestTopic] = []
    for topic in group.topics or ():
        is_allowed = context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic_name)
        (allowed if is_allowed else denied).append(topic)
    if denied and not allowed:
        return DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, topics=list(map(_denied, denied)))
    wanted = coordinator_pb2.DescribeShareGroupOffsetsRequest(
        group_id=group.group_id,
        all_topics=group.topics is None,
        topics=[
            coordinator_pb2.NamedPartitions(topic_name=topic.topic_name, partitions=topic.partitions)
            for topic in allowed
        ],
    )
    try:
        answer = await context.gateway.call_group_coordinator(
            group.group_id, DESCRIBE_SHARE_GROUP_OFFSETS, wanted, timeout_ms=CALL_TIMEOUT_MS
        )
    except KafkaError as error:
        return _refused(group, error.code, error.message)
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id,
        topics=[
            *_topics(
                result
                for result in answer.results
                if context.may(Operation.DESCRIBE, ResourceType.TOPIC, result.topic_name)
            ),
            *map(_denied, denied),
        ],
        error_code=answer.error_code,
        error_message=answer.error_message or None,
    )


def _denied(topic: DescribeShareGroupOffsetsRequestTopic) -> DescribeShareGroupOffsetsResponseTopic:
    code, text = DENIED[ResourceType.TOPIC]
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=partition, start_offset=-1, error_code=code, error_message=text
            )
            for partition in topic.partitions
        ],
    )


def _refused(
    group: DescribeShareGroupOffsetsRequestGroup, code: int, message: str
) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id, topics=[], error_code=code, error_message=message
    )


def _topics(results: Iterable[Result]) -> list[DescribeShareGroupOffsetsResponseTopic]:
    """Results grouped by topic, in the coordinator's order."""
    return [
        DescribeShareGroupOffsetsResponseTopic(
            topic_name=name,
            topic_id=topic_id,
            partitions=[
                DescribeShareGroupOffsetsResponsePartition(
                    partition_index=result.partition,
                    start_offset=result.start_offset,
                    leader_epoch=result.leader_epoch,
                    lag=result.lag,
                    error_code=result.error_code,
                    error_message=result.error_message or None,
                )
                for result in found
            ],
        )
        for (topic_id, name), found in groupby(results, key=lambda each: (each.topic_id, each.topic_name))
    ]


serve(
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    VersionRange(0, 1),
    access=Access(by_handler="Describe on the groups and topics"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("groups",), "groups", described=_identity),
)
