"""ListPartitionReassignments (key 46), version 0: never any, for a partition has one replica.

A partition that moves to another leader (`kshare partitions move`) stays the one replica that clients see. Topics that
do not exist are left out, as in Kafka.
"""

from __future__ import annotations

from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_partition_reassignments import ListPartitionReassignmentsRequest
from kshare_wire.generated.responses.list_partition_reassignments import ListPartitionReassignmentsResponse


def answer_now(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(topics=[])


serve(
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    VersionRange(0, 0),
    access=on_cluster(Operation.DESCRIBE),
    answer_now=answer_now,
    size=ResponseSize.LONG,
)
