"""ListGroups and DeleteGroups in front of an existing cluster: its groups, and kshare's share groups.

The tools ask every broker for the groups that it coordinates. So that each share group is listed once, only the broker
with the lowest id lists them. A group is deleted here if kshare has it, else by the cluster.

The cluster may have share groups of its own (Kafka 4.1). They are not groups of clients of kshare, which would describe
none of them, so they are neither listed nor deleted here.
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
from kshare_wire.generated.requests.share_group_describe import ShareGroupDescribeRequest
from kshare_wire.generated.responses.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kshare_wire.generated.responses.list_groups import ListedGroup, ListGroupsResponse

SHARE = "share"
CLASSIC = "classic"
FIRST_VERSION_WITH_STATES, FIRST_VERSION_WITH_TYPES = 4, 5
SHARE_GROUP_DESCRIBE = VersionRange(1, 1)
NO_SHARE_GROUP = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""Errors of ShareGroupDescribe for groups of other types, and for all groups while the cluster has no share groups."""
A_SHARE_GROUP = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""The latter where the client may not describe all topics of its members."""


async def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    types = {each.lower() for each in request.types_filter}
    groups: list[ListedGroup] = []
    if not types or types != {SHARE}:
        answer = await context.cluster.ask(request, VersionRange(0, context.version))
        if answer.error_code:
            return answer
        groups += _filtered(context, request, [group for group in answer.groups if not _is_share_group(group)])
    if _lists_share_groups(context):
        own = await local_list.handle(context, request)
        if own.error_code:
            return own
        groups += [group for group in own.groups if group.group_type.lower() == SHARE]
    return ListGroupsResponse(groups=groups)


def _is_share_group(group: ListedGroup) -> bool:
    """By its type; versions of ListGroups without types have the protocol of share groups instead."""
    return (group.group_type or group.protocol_type).lower() == SHARE


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
    results = [each for each in own.results if each.error_code != ErrorCode.GROUP_ID_NOT_FOUND]
    refused = await _refused(context, elsewhere)
    results += [DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in refused.items()]
    left = [group_id for group_id in elsewhere if group_id not in refused]
    if not left:
        return DeleteGroupsResponse(results=results)
    answer = await context.cluster.ask(DeleteGroupsRequest(groups_names=left), VersionRange(0, context.version))
    return DeleteGroupsResponse(results=[*results, *answer.results], throttle_time_ms=answer.throttle_time_ms)


async def _refused(context: RequestContext, group_ids: Sequence[str]) -> dict[str, int]:
    """The errors of the groups that are not to be deleted: share groups of the cluster, and those of unknown type."""
    try:
        answer = await context.cluster.ask(ShareGroupDescribeRequest(group_ids=group_ids), SHARE_GROUP_DESCRIBE)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    codes = {group.group_id: group.error_code for group in answer.groups if group.error_code not in NO_SHARE_GROUP}
    return {
        group_id: ErrorCode.GROUP_ID_NOT_FOUND if code in A_SHARE_GROUP else code for group_id, code in codes.items()
    }


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
