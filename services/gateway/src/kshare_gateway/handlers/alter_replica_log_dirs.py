"""AlterReplicaLogDirs (key 34), versions 1 and 2: a log stays where it is.

A leader has one log directory, "leader-<node id>" (DescribeLogDirs). What asks for the directory that a partition is in
is done already; any other is LOG_DIR_NOT_FOUND, as one that is not in Kafka's log.dirs (ReplicaManager.
alterReplicaLogDirs of 4.3.1), which comes before UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.messages import Body, Message


def answer_now(context: RequestContext, request: Message) -> Body:
    found: dict[str, list[Body]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            results = found.setdefault(topic.name, [])
            for partition in topic.partitions:
                code = _code(context, directory.path, topic.name, partition)
                results.append({"partition_index": partition, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": results} for name, results in found.items()]}


def _code(context: RequestContext, path: str, name: str, partition: int) -> ErrorCode:
    view = context.gateway.view
    leaders = [node.node_id for node in view.nodes if node.role == coordinator_pb2.ROLE_LEADER]
    if path not in {f"leader-{node_id}" for node_id in leaders}:
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = view.topics_by_name.get(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_there = path == f"leader-{topic.partitions[partition].leader_node_id}"
    return ErrorCode.NONE if is_there else ErrorCode.LOG_DIR_NOT_FOUND
