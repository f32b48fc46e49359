"""DescribeQuorum (key 55), versions 0 to 2: the metadata quorum as clients see it, with one voter.

Clients of kshare know gateways only. So the voter is the gateway that Metadata names as controller, which takes every
administrative request. Its log is the catalog: the high watermark is the version that this gateway has. Nothing is ever
elected, so the leader epoch stays 1. There are no observers: no role records which catalog version each gateway has. As
in Kafka, any other partition than `__cluster_metadata`-0 is UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.brokers import client_gateways, controller_id, endpoint_of
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import error_response, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_quorum import DescribeQuorumRequest
from kshare_wire.generated.responses.describe_quorum import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

TOPIC, PARTITION = "__cluster_metadata", 0
LEADER_EPOCH = 1
NO_DIRECTORY = bytes(16)


def answer_now(context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    asked = [(topic.topic_name, entry.partition_index) for topic in request.topics for entry in topic.partitions]
    if asked != [(TOPIC, PARTITION)]:
        return _refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    leader_id, version = controller_id(context), context.gateway.view.version
    now_ms = context.gateway.clock.now_ms()
    voter = ReplicaState(
        replica_id=leader_id,
        replica_directory_id=NO_DIRECTORY,
        log_end_offset=version,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    quorum = PartitionData(
        partition_index=PARTITION,
        leader_id=leader_id,
        leader_epoch=LEADER_EPOCH,
        high_watermark=version,
        current_voters=[voter] if leader_id >= 0 else [],
        observers=[],
    )
    nodes = []
    for node in client_gateways(context):
        if node.node_id == leader_id:
            address = endpoint_of(context, node)
            endpoint = Listener(name=context.listener, host=address.host, port=address.port)
            nodes.append(Node(node_id=leader_id, listeners=[endpoint]))
    return DescribeQuorumResponse(topics=[TopicData(topic_name=TOPIC, partitions=[quorum])], nodes=nodes)


def _refused(request: DescribeQuorumRequest, code: ErrorCode) -> DescribeQuorumResponse:
    def refused(partition: int) -> PartitionData:
        return PartitionData(partition_index=partition, error_code=code, current_voters=[], observers=[])

    return DescribeQuorumResponse(
        topics=[
            TopicData(
                topic_name=topic.topic_name, partitions=[refused(each.partition_index) for each in topic.partitions]
            )
            for topic in request.topics
        ],
        nodes=[],
    )


serve(
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    VersionRange(0, 2),
    access=on_cluster(Operation.DESCRIBE),
    answer_now=answer_now,
    failed=error_response(DescribeQuorumResponse),
)
