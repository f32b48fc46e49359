"""OffsetFetch (key 9), versions 1 to 10: handed to the coordinator, one call for each group.

Several groups at once from version 8 on; topics have ids instead of names from 10 on. An error of a whole group is said
with each partition in version 1, which has no other place for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import groupby

from kshare_core.errors import KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import OFFSET_FETCH
from kshare_wire.messages import Body, Message

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_ERROR_CODE = 2
FIRST_VERSION_WITH_TOPIC_IDS = 10
CALLS_AT_ONCE = 16
"""Groups of one request that are asked for at the same time."""
NO_MEMBER_EPOCH = -1

Result = coordinator_pb2.OffsetFetchResponse.Result


async def handle(context: RequestContext, request: Message) -> Body:
    if context.version < FIRST_VERSION_WITH_GROUPS:
        return _sole_group(context, request, await _fetch(context, _wanted(context, request, request)))
    answers: list[coordinator_pb2.OffsetFetchResponse] = []
    for first in range(0, len(request.groups), CALLS_AT_ONCE):
        portion = request.groups[first : first + CALLS_AT_ONCE]
        answers += await asyncio.gather(*(_fetch(context, _wanted(context, request, group)) for group in portion))
    groups = [_group(group, answer) for group, answer in zip(request.groups, answers, strict=True)]
    return {"groups": groups}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    answer = coordinator_pb2.OffsetFetchResponse(error_code=error.code)
    if context.version < FIRST_VERSION_WITH_GROUPS:
        return _sole_group(context, request, answer)
    return {"groups": [_group(group, answer) for group in request.groups]}


def _wanted(context: RequestContext, request: Message, group: Message) -> coordinator_pb2.OffsetFetchRequest:
    """`group` is the request itself where it has one group only."""
    has_ids = context.version >= FIRST_VERSION_WITH_TOPIC_IDS
    topics = [
        coordinator_pb2.TopicPartitions(
            topic_id=topic.topic_id if has_ids else b"", topic_name=topic.name or "", partitions=topic.partition_indexes
        )
        for topic in group.topics or ()
    ]
    return coordinator_pb2.OffsetFetchRequest(
        group_id=group.group_id,
        member_id=getattr(group, "member_id", None) or "",
        member_epoch=getattr(group, "member_epoch", NO_MEMBER_EPOCH),
        all_topics=group.topics is None,
        topics=topics,
        require_stable=request.require_stable,
    )


async def _fetch(
    context: RequestContext, wanted: coordinator_pb2.OffsetFetchRequest
) -> coordinator_pb2.OffsetFetchResponse:
    """One group's answer; of several groups, one whose coordinator is away is no failure of the others."""
    try:
        return await context.gateway.call_group_coordinator(wanted.group_id, OFFSET_FETCH, wanted)
    except KafkaError as error:
        return coordinator_pb2.OffsetFetchResponse(error_code=error.code)


def _sole_group(context: RequestContext, request: Message, answer: coordinator_pb2.OffsetFetchResponse) -> Body:
    if answer.error_code and context.version < FIRST_VERSION_WITH_ERROR_CODE:
        topics = [
            {
                "name": topic.name,
                "partitions": [_refused(partition, answer.error_code) for partition in topic.partition_indexes],
            }
            for topic in request.topics
        ]
        return {"topics": topics}
    found_topics = [_topic(name, found) for _, name, found in _by_topic(answer.results)]
    return {"topics": found_topics, "error_code": answer.error_code}


def _refused(partition: int, error_code: int) -> Body:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error_code,
    }


def _group(group: Message, answer: coordinator_pb2.OffsetFetchResponse) -> Body:
    topics = [{**_topic(name, found), "topic_id": topic_id} for topic_id, name, found in _by_topic(answer.results)]
    return {"group_id": group.group_id, "topics": topics, "error_code": answer.error_code}


def _by_topic(results: Iterable[Result]) -> Iterator[tuple[bytes, str, Iterable[Result]]]:
    """Topic id, name and results of each topic, in the coordinator's order, which keeps those of one together."""
    for (topic_id, name), found in groupby(results, key=lambda each: (each.offset.topic_id, each.offset.topic_name)):
        yield topic_id, name, found


def _topic(name: str, results: Iterable[Result]) -> Body:
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
    return {"name": name, "partitions": partitions}
