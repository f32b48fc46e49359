"""OffsetFetch (key 9), versions 1 to 10: forwarded to the coordinator.

Each group is fetched in calls of SLICE_ELEMENTS partitions. A request may have several groups from version 8 on; topics
have ids instead of names from 10 on. Version 1 reports an error of a whole group in each partition, because it has no
other field for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import OFFSET_FETCH
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_ERROR_CODE = 2
FIRST_VERSION_WITH_TOPIC_IDS = 10
CALLS_AT_ONCE = 16
"""Groups of one request that are queried concurrently."""
NO_MEMBER_EPOCH = -1

Result = coordinator_pb2.OffsetFetchResponse.Result


async def handle(context: RequestContext, request: Message) -> Body:
    if context.version < FIRST_VERSION_WITH_GROUPS:
        return _sole_group(context, request, await _fetch(context, request, request))
    groups: list[Body] = []
    for first in range(0, len(request.groups), CALLS_AT_ONCE):
        portion = request.groups[first : first + CALLS_AT_ONCE]
        found = await asyncio.gather(*(_fetch(context, request, group) for group in portion))
        groups += [{"group_id": group.group_id, **fetched} for group, fetched in zip(portion, found, strict=True)]
    return {"groups": groups}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    if context.version < FIRST_VERSION_WITH_GROUPS:
        return _sole_group(context, request, _failed_group(error.code))
    return {"groups": [{"group_id": group.group_id, **_failed_group(error.code)} for group in request.groups]}


def _failed_group(code: int) -> Body:
    return {"topics": [], "error_code": code}


async def _fetch(context: RequestContext, request: Message, group: Message) -> Body:
    """One group's response; of several groups, an unavailable coordinator fails only its own.

    `group` is the request itself if it has only one group.
    """
    topics: list[dict[str, Any]] = []
    for number, portion in enumerate(_portions(context, group)):
        if number:
            await context.gateway.slices.next_slice(context.is_wanted)
        wanted = coordinator_pb2.OffsetFetchRequest(
            group_id=group.group_id,
            member_id=getattr(group, "member_id", None) or "",
            member_epoch=getattr(group, "member_epoch", NO_MEMBER_EPOCH),
            all_topics=group.topics is None,
            topics=portion,
            require_stable=request.require_stable,
        )
        try:
            answer = await context.gateway.call_group_coordinator(group.group_id, OFFSET_FETCH, wanted)
        except KafkaError as error:
            return _failed_group(error.code)
        if answer.error_code:
            return _failed_group(answer.error_code)
        found = [_topic(*each) for each in _by_topic(answer.results)]
        # The coordinator keeps the order in which it was asked.
        if topics and found and _identity(topics[-1]) == _identity(found[0]):
            topics[-1]["partitions"] += found.pop(0)["partitions"]
        topics += found
    return {"topics": topics, "error_code": ErrorCode.NONE}


def _portions(context: RequestContext, group: Message) -> Iterator[list[coordinator_pb2.TopicPartitions]]:
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


def _sole_group(context: RequestContext, request: Message, fetched: Body) -> Body:
    if fetched["error_code"] and context.version < FIRST_VERSION_WITH_ERROR_CODE:
        topics = [
            {
                "name": topic.name,
                "partitions": [_refused(partition, fetched["error_code"]) for partition in topic.partition_indexes],
            }
            for topic in request.topics
        ]
        return {"topics": topics}
    topics = [{"name": topic["name"], "partitions": topic["partitions"]} for topic in fetched["topics"]]
    return {"topics": topics, "error_code": fetched["error_code"]}


def _refused(partition: int, error_code: int) -> Body:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error_code,
    }


def _by_topic(results: Iterable[Result]) -> Iterator[tuple[bytes, str, Iterable[Result]]]:
    """Topic id, name and results of each topic, in the coordinator's order, which keeps those of one together."""
    for (topic_id, name), found in groupby(results, key=lambda each: (each.offset.topic_id, each.offset.topic_name)):
        yield topic_id, name, found


def _identity(topic: Body) -> tuple[bytes, str]:
    return topic["topic_id"], topic["name"]


def _topic(topic_id: bytes, name: str, results: Iterable[Result]) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": result.offset.partition,
            "committed_offset": result.offset.committed_offset,
            "committed_leader_epoch": result.offset.committed_leader_epoch,
            "metadata": result.offset.committed_metadata,
            "error_code": result.error_code,
        }
        for result in results
    ]
    return {"topic_id": topic_id, "name": name, "partitions": partitions}


serve(
    ApiKey.OFFSET_FETCH,
    VersionRange(1, 10),
    handle=handle,
    failed=failed,
    response=ResponseSize.LONG,
    works_in_slices=True,
    elements=ElementArrays(("groups",), "groups"),
)
