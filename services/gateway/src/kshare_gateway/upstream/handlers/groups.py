"""ListGroups and DeleteGroups in front of an existing cluster: its groups, and kshare's share groups.

The tools ask every broker for the groups that it coordinates. So that each share group is listed once, only the broker
with the lowest id lists them. A group is deleted here if kshare has it, else by the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.handlers.groups import delete_groups as local_deletion
from kshare_gateway.handlers.groups import list_groups as local_list
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_group
from kshare_gateway.served_apis import ElementArrays, ResponseSize, served_api
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.delete_groups import DeleteGroupsRequest
from kshare_wire.generated.requests.list_groups import ListGroupsRequest
from kshare_wire.generated.responses.delete_groups import DeleteGroupsResponse
from kshare_wire.generated.responses.list_groups import ListedGroup, ListGroupsResponse

SHARE = "share"
CLASSIC = "classic"
FIRST_VERSION_WITH_STATES, FIRST_VERSION_WITH_TYPES = 4, 5


async def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    types = {each.lower() for each in request.types_filter}
    groups: list[ListedGroup] = []
    if not types or types != {SHARE}:
        answer = await context.cluster.ask(request, VersionRange(0, context.version))
        if answer.error_code:
            return answer
        groups += _filtered(context, request, answer.groups)
    if _lists_share_groups(context):
        own = await local_list.handle(context, request)
        if own.error_code:
            return own
        groups += [group for group in own.groups if group.group_type.lower() == SHARE]
    return ListGroupsResponse(groups=groups)


def _filtered(context: RequestContext, request: ListGroupsRequest, groups: Sequence[ListedGroup]) -> list[ListedGroup]:
    """The cluster's groups, filtered here where its version of ListGroups does not filter."""
    told = context.cluster.front.brokers.version(ApiKey.LIST_GROUPS, VersionRange(0, context.version))
    if told < FIRST_VERSION_WITH_STATES and request.states_filter:
        text = "The cluster does not tell the states of groups, so they cannot be selected by state"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
    if told >= FIRST_VERSION_WITH_TYPES:
        return list(groups)
    types = {each.lower() for each in request.types_filter}
    if types and CLASSIC not in types:
        return []
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.group_state,
            group_type=CLASSIC.capitalize(),
        )
        for group in groups
    ]


def _lists_share_groups(context: RequestContext) -> bool:
    front = context.cluster.front
    return front.ports is None or context.cluster.broker_id in (-1, min(front.brokers.view.brokers, default=-1))


async def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    own = await local_deletion.handle(context, request)
    elsewhere = [each.group_id for each in own.results if each.error_code == ErrorCode.GROUP_ID_NOT_FOUND]
    if not elsewhere or context.cluster.front.ports is None:
        return own
    answer = await context.cluster.ask(DeleteGroupsRequest(groups_names=elsewhere), VersionRange(0, context.version))
    results = [each for each in own.results if each.error_code != ErrorCode.GROUP_ID_NOT_FOUND]
    return DeleteGroupsResponse(results=[*results, *answer.results], throttle_time_ms=answer.throttle_time_ms)


LIST_GROUPS = served_api(
    ListGroupsRequest,
    ListGroupsResponse,
    VersionRange(0, 5),
    access=Access(by_handler="as the cluster and kshare's own ListGroups"),
    handle=list_groups,
    size=ResponseSize.LONG,
)
DELETE_GROUPS = served_api(
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    VersionRange(0, 2),
    access=Access(each=each_group(Operation.DELETE)),
    handle=delete_groups,
    failed=local_deletion.failed,
    elements=ElementArrays(("groups_names",), "results"),
)
