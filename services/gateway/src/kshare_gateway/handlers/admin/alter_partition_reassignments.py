"""AlterPartitionReassignments (key 45), versions 0 and 1: a partition keeps its only replica.

Codes as in ReplicationControlManager.alterPartitionReassignment of Kafka 4.3.1. A request for the existing replica
succeeds at once. Another broker, here another gateway, has no data that could be moved there: that is
INVALID_REPLICA_ASSIGNMENT, and the text says what moves a partition from one leader to another. No reassignment is ever
in flight here, so none can be cancelled (replicas null: NO_REASSIGNMENT_IN_PROGRESS).
"""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.internal_topics import topic_named
from kshare_gateway.handlers.admin.metadata import partition_broker
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kshare_wire.generated.responses.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

FIRST_VERSION_WITH_FACTOR = 1


def answer_now(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    may_change_factor = context.version < FIRST_VERSION_WITH_FACTOR or request.allow_replication_factor_change
    responses = []
    for topic in request.topics:
        partitions = []
        for entry in topic.partitions:
            code, text = _outcome(context, topic.name, entry.partition_index, entry.replicas, may_change_factor)
            partitions.append(
                ReassignablePartitionResponse(
                    partition_index=entry.partition_index, error_code=code, error_message=text or None
                )
            )
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return AlterPartitionReassignmentsResponse(responses=responses, allow_replication_factor_change=may_change_factor)


def failed(
    context: RequestContext, request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                ReassignablePartitionResponse(
                    partition_index=entry.partition_index, error_code=error.code, error_message=error.message
                )
                for entry in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        error_code=error.code,
        error_message=error.message,
        responses=responses,
        allow_replication_factor_change=True,
    )


def _outcome(
    context: RequestContext, name: str, partition: int, replicas: Sequence[int] | None, may_change_factor: bool
) -> tuple[ErrorCode, str]:
    topic = topic_named(context.gateway, name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{partition}"
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"Partition {name}-{partition} is not being reassigned"
    if not replicas:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition needs a replica"
    brokers = {node.node_id for node in context.gateway.view.gateways(context.listener)}
    for broker in replicas:
        if broker not in brokers:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"There is no broker {broker}; there are {sorted(brokers)}"
    if len(set(replicas)) < len(replicas):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Brokers {list(replicas)} are named more than once"
    if len(replicas) > 1 and not may_change_factor:
        return ErrorCode.INVALID_REPLICATION_FACTOR, f"{len(replicas)} replicas were asked for; it has one"
    current, _ = partition_broker(context, topic, partition)
    if list(replicas) == [current]:
        return ErrorCode.NONE, ""
    text = f"Its one replica is broker {current}; `kshare partitions move` moves a partition to another leader"
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text


serve(
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    VersionRange(0, 1),
    access=on_cluster(Operation.ALTER),
    answer_now=answer_now,
    failed=failed,
    elements=ElementArrays(("topics",), "responses", "partitions", "partitions"),
)
