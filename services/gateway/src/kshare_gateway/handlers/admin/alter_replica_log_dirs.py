"""AlterReplicaLogDirs (key 34), versions 1 and 2: a log stays in its directory.

A leader has one log directory, "leader-<node id>" (DescribeLogDirs). A request for a partition's own directory succeeds
at once. Any other directory is LOG_DIR_NOT_FOUND, like one that is not in Kafka's log.dirs
(ReplicaManager.alterReplicaLogDirs of 4.3.1); this precedes UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from kshare_wire.generated.responses.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


async def handle(context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    view = context.gateway.view
    directories = {
        f"leader-{node.node_id}": node.node_id for node in view.nodes if node.role == coordinator_pb2.ROLE_LEADER
    }
    found: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    count = context.count_elements()
    for directory in request.dirs:
        leader = directories.get(directory.path)
        for topic in directory.topics:
            results = found.setdefault(topic.name, [])
            known = view.topics_by_name.get(topic.name)
            for partition in topic.partitions:
                results.append(
                    AlterReplicaLogDirPartitionResult(
                        partition_index=partition, error_code=_code(leader, known, partition)
                    )
                )
                if count.add():
                    await count.next_slice()
        if count.add():
            await count.next_slice()
    return _body(found)


def failed(
    context: RequestContext, request: AlterReplicaLogDirsRequest, error: KafkaError
) -> AlterReplicaLogDirsResponse:
    found: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            results = [
                AlterReplicaLogDirPartitionResult(partition_index=partition, error_code=error.code)
                for partition in topic.partitions
            ]
            found.setdefault(topic.name, []).extend(results)
    return _body(found)


def _body(found: dict[str, list[AlterReplicaLogDirPartitionResult]]) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=results) for name, results in found.items()]
    )


def _code(leader: int | None, topic: coordinator_pb2.Topic | None, partition: int) -> ErrorCode:
    """The error code of a partition; `leader` is the node whose directory was named."""
    if leader is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if topic is None or not 0 <= partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_there = topic.partitions[partition].leader_node_id == leader
    return ErrorCode.NONE if is_there else ErrorCode.LOG_DIR_NOT_FOUND


serve(
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    VersionRange(1, 2),
    access=on_cluster(Operation.ALTER),
    handle=handle,
    failed=failed,
    works_in_slices=True,
)
