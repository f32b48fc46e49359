"""ListGroups (key 16), versions 0 to 5: the groups of all coordinators, filtered by state (4) and type (5).

An incomplete list is never returned: if the coordinator of some group partitions cannot be reached, or refuses, the
whole request gets its error, which Kafka's tools retry.
"""

from __future__ import annotations

from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.gateway import CALL_TIMEOUT_MS, no_answer_as_kafka_says
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LIST_GROUPS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_groups import ListGroupsRequest
from kshare_wire.generated.responses.list_groups import ListedGroup, ListGroupsResponse


async def handle(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    wanted = coordinator_pb2.ListGroupsRequest(states_filter=request.states_filter, types_filter=request.types_filter)
    with no_answer_as_kafka_says():
        answers: list[coordinator_pb2.ListGroupsResponse] = await context.gateway.catalog.coordinators.call_all_owners(
            LIST_GROUPS, wanted, covers=lambda answer: answer.group_partitions, timeout_ms=CALL_TIMEOUT_MS
        )
    found = {group.group_id: group for answer in answers for group in answer.groups}
    is_for_all = context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    groups = [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.group_state,
            group_type=group.group_type,
        )
        for group in found.values()
        if is_for_all or context.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
    ]
    return ListGroupsResponse(
        error_code=next((answer.error_code for answer in answers if answer.error_code), 0), groups=groups
    )


serve(
    ListGroupsRequest,
    ListGroupsResponse,
    VersionRange(0, 5),
    access=Access(by_handler="Describe on the cluster for all groups, else on each"),
    handle=handle,
    size=ResponseSize.LONG,
)
