"""DescribeTopicPartitions (key 75), version 0: topics in pages, by name, each page ending with a cursor.

Rules (DescribeTopicPartitionsRequestHandler and KRaftMetadataCache of Kafka 4.3.1): no names ask for all topics; a
cursor skips what sorts before its topic and the partitions before its index; it must be one of the names asked for. A
page has at most the partitions that the client wants, and never more than max.request.partition.size.limit. The next
cursor is null when nothing is left. Topics that do not exist are errors only where they are asked for by name. There
are no eligible leader replicas beside the in-sync ones. Authorized operations are always given.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.internal_topics import INTERNAL_TOPICS
from kshare_core.security.acls import Operation, ResourceType
from kshare_core.work_slices import portions
from kshare_gateway.catalog.internal_topics import topic_named, unsorted_topics
from kshare_gateway.handlers.admin.metadata import is_valid_topic_name, partition_broker
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security import authorized_operations
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_topic_partitions import DescribeTopicPartitionsRequest
from kshare_wire.generated.responses.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kshare_wire.messages import ZERO_ID

SORTED_AT_ONCE = 5_000
"""Names that are sorted in one turn of the event loop, in about 2 ms."""
PARTITION_LIMIT_CONFIG = "max.request.partition.size.limit"


async def handle(context: RequestContext, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    gateway = context.gateway
    names = await _names(context, request)
    count = context.count_elements()
    last = None
    limit = max(1, min(request.response_partition_limit, gateway.configs.integer(PARTITION_LIMIT_CONFIG)))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if count.add():
            await count.next_slice()
        if name == last:
            continue
        last = name
        may_describe = context.authorize if request.topics else context.may
        if not may_describe(Operation.DESCRIBE, ResourceType.TOPIC, name):
            if request.topics:
                topics.append(_denied(name))
            continue
        if limit == 0:  # the cursor names no topic that the client may not see
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        topic = topic_named(gateway, name)
        if topic is None:
            topics.append(_unknown(context, name))
            continue
        cursor = request.cursor
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        end = min(len(topic.partitions), first + limit)
        topics.append(_described(context, topic, range(first, end)))
        if end < len(topic.partitions):
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=end)
            )
        limit -= max(0, end - first)
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


def failed(
    context: RequestContext, request: DescribeTopicPartitionsRequest, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    topics = [
        DescribeTopicPartitionsResponseTopic(
            error_code=error.code,
            name=topic.name,
            topic_id=ZERO_ID,
            topic_authorized_operations=authorized_operations.UNKNOWN,
        )
        for topic in request.topics
    ]
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


async def _names(context: RequestContext, request: DescribeTopicPartitionsRequest) -> Iterator[str]:
    """The topics from the cursor on, in order, some of them twice; KafkaError where the cursor is none."""
    cursor = request.cursor
    gateway = context.gateway
    asked = [topic.name for topic in request.topics] or [topic.name for topic in unsorted_topics(gateway)]
    if cursor is not None:
        if request.topics and cursor.topic_name not in asked:
            text = f"The cursor is at topic {cursor.topic_name[:300]}, which is not among the topics asked for"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if cursor.partition_index < 0:
            text = f"The cursor's partition is {cursor.partition_index}; it must be 0 or more"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    runs = []
    for portion in portions(asked, SORTED_AT_ONCE):
        runs.append(sorted(name for name in portion if cursor is None or name >= cursor.topic_name))
        if len(portion) == SORTED_AT_ONCE:
            await gateway.slices.next_slice(context.is_wanted)
    return merge(*runs)


def _denied(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=name,
        topic_id=ZERO_ID,
        topic_authorized_operations=authorized_operations.UNKNOWN,
    )


def _unknown(context: RequestContext, name: str) -> DescribeTopicPartitionsResponseTopic:
    is_valid = is_valid_topic_name(name)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        topic_id=ZERO_ID,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=authorized_operations.of_topic(context, name),
    )


def _described(
    context: RequestContext, topic: coordinator_pb2.Topic, indexes: range
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in indexes:
        broker, is_reachable = partition_broker(context, topic, index)
        replicas = [broker] if broker >= 0 else []
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=index,
                leader_id=broker if is_reachable else -1,
                leader_epoch=topic.partitions[index].leader_epoch,
                replica_nodes=replicas,
                isr_nodes=replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[],
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=authorized_operations.of_topic(context, topic.name),
    )


serve(
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    VersionRange(0, 0),
    access=Access(by_handler="Describe on the topics"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    works_in_slices=True,
)
