"""OffsetDelete (key 47), version 0: forwarded to the coordinator."""

from __future__ import annotations

from itertools import groupby

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import each_topic, on_group
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import OFFSET_DELETE
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.offset_delete import OffsetDeleteRequest
from kshare_wire.generated.responses.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    topics = [
        coordinator_pb2.NamedPartitions(
            topic_name=topic.name, partitions=[partition.partition_index for partition in topic.partitions]
        )
        for topic in request.topics
    ]
    wanted = coordinator_pb2.OffsetDeleteRequest(group_id=request.group_id, topics=topics)
    answer = await context.gateway.call_group_coordinator(request.group_id, OFFSET_DELETE, wanted)
    by_topic = groupby(answer.results, key=lambda result: result.topic_name)
    found = [
        OffsetDeleteResponseTopic(
            name=name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=result.partition, error_code=result.error_code)
                for result in results
            ],
        )
        for name, results in by_topic
    ]
    return OffsetDeleteResponse(error_code=answer.error_code, topics=found)


def failed(context: RequestContext, request: OffsetDeleteRequest, error: KafkaError) -> OffsetDeleteResponse:
    """An error of topics is told by partition; every other one is that of the whole request."""
    if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return OffsetDeleteResponse(error_code=error.code)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=error.code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


serve(
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    VersionRange(0, 0),
    access=on_group(Operation.DELETE, each=each_topic(Operation.READ)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
