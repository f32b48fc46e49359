"""OffsetFetch (key 9), versions 1 to 10: forwarded to the coordinator.

Each group is fetched in calls of SLICE_ELEMENTS partitions. A request may have several groups from version 8 on; topics
have ids instead of names from 10 on. Version 1 reports an error of a whole group in each partition, because it has no
other field for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation, ResourceType
from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, topic_name
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import OFFSET_FETCH
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kshare_wire.generated.responses.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_ERROR_CODE = 2
FIRST_VERSION_WITH_TOPIC_IDS = 10
CALLS_AT_ONCE = 16
"""Groups of one request that are queried concurrently."""

Result = coordinator_pb2.OffsetFetchResponse.Result


async def handle(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version < FIRST_VERSION_WITH_GROUPS:
        return _sole_group(context, request, await _fetch(context, request, _group_of(request)))
    groups: list[OffsetFetchResponseGroup] = []
    for first in range(0, len(request.groups), CALLS_AT_ONCE):
        portion = request.groups[first : first + CALLS_AT_ONCE]
        groups += await asyncio.gather(*(_fetch(context, request, group) for group in portion))
    return OffsetFetchResponse(groups=groups)


def failed(context: RequestContext, request: OffsetFetchRequest, error: KafkaError) -> OffsetFetchResponse:
    if context.version < FIRST_VERSION_WITH_GROUPS:
        return _sole_group(context, request, _failed_group(request.group_id, error.code))
    return OffsetFetchResponse(groups=[_failed_group(group.group_id, error.code) for group in request.groups])


def _group_of(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The group of a request that has one group."""
    if request.topics is None:
        return OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    topics = [
        OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics
    ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _failed_group(group_id: str, code: int) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group_id, error_code=code)


async def _fetch(
    context: RequestContext, request: OffsetFetchRequest, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    """One group's response; of several groups, an unavailable coordinator fails only its own."""
    if not context.authorize(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
        return _failed_group(group.group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    allowed: list[OffsetFetchRequestTopics] = []
    denied: list[OffsetFetchRequestTopics] = []
    for topic in group.topics or ():
        (allowed if _may_describe(context, topic) else denied).append(topic)
    if denied:
        group = group.replaced(topics=allowed)
    topics: list[_Topic] = []
    for number, portion in enumerate(_portions(context, group)):
        if number:
            await context.gateway.slices.next_slice(context.is_wanted)
        wanted = coordinator_pb2.OffsetFetchRequest(
            group_id=group.group_id,
            member_id=group.member_id or "",
            member_epoch=group.member_epoch,
            all_topics=group.topics is None,
            topics=portion,
            require_stable=request.require_stable,
        )
        try:
            answer = await context.gateway.call_group_coordinator(group.group_id, OFFSET_FETCH, wanted)
        except KafkaError as error:
            return _failed_group(group.group_id, error.code)
        if answer.error_code:
            return _failed_group(group.group_id, answer.error_code)
        found = [_topic(*each) for each in _by_topic(_visible(context, answer.results))]
        # The coordinator keeps the order in which it was asked.
        if topics and found and topics[-1][:2] == found[0][:2]:
            topics[-1].partitions.extend(found.pop(0).partitions)
        topics += found
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponseTopics(topic_id=topic.topic_id, name=topic.name, partitions=topic.partitions)
            for topic in topics
        ]
        + [_denied(topic) for topic in denied],
    )


def _may_describe(context: RequestContext, topic: OffsetFetchRequestTopics) -> bool:
    name = topic_name(context, topic)
    return name is None or context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _visible(context: RequestContext, results: Iterable[Result]) -> Iterable[Result]:
    """A request for all topics gets those that the client may describe; an id that no topic has, its error."""
    if context.gateway.authorizer is None:
        return results
    return (
        result
        for result in results
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        or context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic_name(context, result.offset) or "")
    )


def _denied(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=partition,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )
            for partition in topic.partition_indexes
        ],
    )


def _portions(
    context: RequestContext, group: OffsetFetchRequestGroup
) -> Iterator[list[coordinator_pb2.TopicPartitions]]:
    """The partitions asked for, at most SLICE_ELEMENTS at a time; one empty portion where no topics are named."""
    has_ids = context.version >= FIRST_VERSION_WITH_TOPIC_IDS
    found: list[coordinator_pb2.TopicPartitions] = []
    room = SLICE_ELEMENTS
    for topic in group.topics or ():
        indexes = topic.partition_indexes
        for first in range(0, len(indexes), SLICE_ELEMENTS) or (0,):
            some = indexes[first : first + SLICE_ELEMENTS]
            if found and max(1, len(some)) > room:
                yield found
                found, room = [], SLICE_ELEMENTS
            topic_id = topic.topic_id if has_ids else b""
            found.append(
                coordinator_pb2.TopicPartitions(topic_id=topic_id, topic_name=topic.name or "", partitions=some)
            )
            room -= max(1, len(some))
    yield found


def _sole_group(
    context: RequestContext, request: OffsetFetchRequest, group: OffsetFetchResponseGroup
) -> OffsetFetchResponse:
    """The response of a version that has one group."""
    code = group.error_code
    if code and context.version < FIRST_VERSION_WITH_ERROR_CODE:
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name, partitions=[_refused(index, code) for index in topic.partition_indexes]
                )
                for topic in request.topics or ()
            ]
        )
    topics = [
        OffsetFetchResponseTopic(name=topic.name, partitions=[_older(entry) for entry in topic.partitions])
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=code)


def _older(entry: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    """A partition's result in the struct of versions that have one group."""
    return OffsetFetchResponsePartition(
        partition_index=entry.partition_index,
        committed_offset=entry.committed_offset,
        committed_leader_epoch=entry.committed_leader_epoch,
        metadata=entry.metadata,
        error_code=entry.error_code,
    )


def _refused(partition: int, error_code: int) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition,
        committed_offset=-1,
        committed_leader_epoch=-1,
        metadata="",
        error_code=error_code,
    )


def _by_topic(results: Iterable[Result]) -> Iterator[tuple[bytes, str, Iterable[Result]]]:
    """Topic id, name and results of each topic, in the coordinator's order, which keeps those of one together."""
    for (topic_id, name), found in groupby(results, key=lambda each: (each.offset.topic_id, each.offset.topic_name)):
        yield topic_id, name, found


class _Topic(NamedTuple):
    """The results of a topic so far."""

    topic_id: bytes
    name: str
    partitions: list[OffsetFetchResponsePartitions]


def _topic(topic_id: bytes, name: str, results: Iterable[Result]) -> _Topic:
    partitions = [
        OffsetFetchResponsePartitions(
            partition_index=result.offset.partition,
            committed_offset=result.offset.committed_offset,
            committed_leader_epoch=result.offset.committed_leader_epoch,
            metadata=result.offset.committed_metadata,
            error_code=result.error_code,
        )
        for result in results
    ]
    return _Topic(topic_id, name, partitions)


serve(
    OffsetFetchRequest,
    OffsetFetchResponse,
    VersionRange(1, 10),
    access=Access(by_handler="Describe on the groups and topics"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    works_in_slices=True,
    elements=ElementArrays(("groups",), "groups"),
)
