"""DescribeLogDirs (key 35), versions 1 to 5: the sizes of logs, from the leaders that store them.

A gateway answers for the partitions whose leader, as told to clients, is this gateway, so that all gateways together
report each partition once. Each leader is one log directory, "leader-<node id>". The size is that of the log's segments
without RocksDB's compression; the disk may use more for a while, or less when compressed. The volume's size is not
reported (-1). Internal topics have no logs. A leader that does not answer is a directory with KAFKA_STORAGE_ERROR, like
an offline one in Kafka. No topics (null) means all; partitions that do not exist are left out, as in Kafka. Leaders are
asked for SLICE_ELEMENTS partitions at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation
from kshare_core.work_slices import portions
from kshare_gateway.gateway import Gateway
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import DESCRIBE_LOG_DIRS
from kshare_rpc.network import CallFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_log_dirs import DescribeLogDirsRequest
from kshare_wire.generated.responses.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

_Wanted = leader_pb2.DescribeLogDirsRequest.Partition


async def handle(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    gateway = context.gateway
    by_leader: dict[int, list[_Wanted]] = {
        node.node_id: [] for node in gateway.view.nodes if node.role == coordinator_pb2.ROLE_LEADER
    }
    names: dict[bytes, str] = {}
    count = context.count_elements()
    asked: dict[TopicPartition, None] = {}
    for topic, indexes in _wanted(gateway, request):
        names[topic.topic_id] = topic.name
        for index in indexes:
            if count.add():
                await count.next_slice()
            key = TopicPartition(topic.topic_id, index)
            if not 0 <= index < len(topic.partitions) or key in asked:
                continue
            asked[key] = None
            leader = topic.partitions[index].leader_node_id
            if leader in by_leader and _is_told_here(context, topic, index):
                by_leader[leader].append(_Wanted(topic_id=topic.topic_id, partition=index))
        if count.add():
            await count.next_slice()
    calls = [_describe_at(context, node_id, wanted, names) for node_id, wanted in sorted(by_leader.items())]
    return DescribeLogDirsResponse(results=await asyncio.gather(*calls))


def _is_told_here(context: RequestContext, topic: coordinator_pb2.Topic, index: int) -> bool:
    """Whether clients are told this gateway as the partition's leader."""
    brokers = context.gateway.client_brokers(context.listener)
    return brokers.broker(topic, index) == context.gateway.node_id


def _wanted(gateway: Gateway, request: DescribeLogDirsRequest) -> Iterator[tuple[coordinator_pb2.Topic, Sequence[int]]]:
    view = gateway.view
    if request.topics is None:
        for _, topic in sorted(view.topics_by_name.items()):
            yield topic, range(len(topic.partitions))
        return
    for entry in request.topics:
        found = view.topics_by_name.get(entry.topic)
        if found is not None:
            yield found, entry.partitions


async def _describe_at(
    context: RequestContext, node_id: int, wanted: Sequence[_Wanted], names: dict[bytes, str]
) -> DescribeLogDirsResult:
    gateway = context.gateway
    directory = f"leader-{node_id}"
    node = gateway.view.node(coordinator_pb2.ROLE_LEADER, node_id)
    by_topic: dict[bytes, list[DescribeLogDirsPartition]] = {}
    try:
        if node is None:
            raise CallFailed("the leader has left")
        for portion in portions(wanted) if wanted else ([],):
            request = leader_pb2.DescribeLogDirsRequest(partitions=portion)
            answer, _ = await gateway.call_leader(node.rpc_address, DESCRIBE_LOG_DIRS, request)
            await gateway.slices.next_slice(context.is_wanted)
            for result in answer.results:
                by_topic.setdefault(result.topic_id, []).append(
                    DescribeLogDirsPartition(
                        partition_index=result.partition, partition_size=result.size_bytes, offset_lag=0
                    )
                )
    except CallFailed as failure:
        context.gateway.call_failed("DescribeLogDirs", f"leader {node_id}", failure)
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory, topics=[])
    topics = [
        DescribeLogDirsTopic(name=names[topic_id], partitions=partitions) for topic_id, partitions in by_topic.items()
    ]
    return DescribeLogDirsResult(log_dir=directory, topics=topics)


serve(
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    VersionRange(1, 5),
    access=on_cluster(Operation.DESCRIBE),
    handle=handle,
    size=ResponseSize.LONG,
    works_in_slices=True,
)
