"""Marks topics of kshare's as internal where the cluster's answers describe them: to the cluster they are ordinary.

Clients leave internal topics out of patterns: a Java consumer that subscribes to `.*`, `--exclude-internal` of Kafka's
tools. Metadata and DescribeTopicPartitions tell what is internal; the rest of an answer passes unchanged here.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_gateway.handlers.admin import describe_topic_partitions as local_description
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ResponseSize, served_api
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_topic_partitions import DescribeTopicPartitionsRequest
from kshare_wire.generated.responses.describe_topic_partitions import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from kshare_wire.generated.responses.metadata import MetadataResponseTopic


def mark_own_topics(
    context: RequestContext, topics: Iterable[MetadataResponseTopic | DescribeTopicPartitionsResponseTopic]
) -> None:
    own = context.cluster.front.own_topics
    for topic in topics:
        if topic.name in own:
            topic.is_internal = True


async def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    answer = await context.cluster.ask(request, VersionRange(0, context.version))
    mark_own_topics(context, answer.topics)
    return answer


DESCRIBE_TOPIC_PARTITIONS = served_api(
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    VersionRange(0, 0),
    access=Access(open_to_all="the cluster answers as to this client"),
    handle=describe_topic_partitions,
    failed=local_description.failed,
    size=ResponseSize.LONG,
    works_in_slices=True,
)
