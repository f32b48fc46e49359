"""ListGroups, DescribeGroups and DeleteGroups for groups of every type: each type has one small function for each.

A new type of group adds its functions to the tables below. The order of Kafka's checks is kept: DescribeGroups is for
groups of the classic protocol only, whatever else has the id.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_coordinator.machine.commands import DeleteGroup, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.classic import queries as classic_group_queries
from kshare_coordinator.machine.groups.consumer import view as consumer_groups_view
from kshare_coordinator.machine.groups.namespace import GroupType, group_ids, group_type
from kshare_coordinator.machine.groups.share import administration as share_group_administration
from kshare_coordinator.machine.groups.share import queries as group_queries
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

ListedGroup = pb.ListGroupsResponse.ListedGroup
DeletionDecision = Decision[Record, ErrorCode, Effect]

LISTED: dict[GroupType, Callable[[CoordinatorState, str], ListedGroup]] = {
    GroupType.CLASSIC: classic_group_queries.listed,
    GroupType.CONSUMER: consumer_groups_view.listed,
    GroupType.SHARE: group_queries.listed,
}
"""How a group of the type is listed; the group exists."""

DELETED: dict[GroupType, Callable[[CoordinatorState, str], DeletionDecision]] = {
    GroupType.CLASSIC: classic_group_queries.decide_delete,
    GroupType.CONSUMER: consumer_groups_view.decide_delete,
    GroupType.SHARE: share_group_administration.decide_delete,
}
"""What deleting a group of the type takes, with its committed offsets; the group exists. NON_EMPTY_GROUP: it has
members. A share group goes when its state is deleted, after the decision."""


def list_groups(state: CoordinatorState, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
    """Groups by id. An empty filter lets all through; upper and lower case are the same, as in Kafka. An unknown type
    or state lets nothing through."""
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    found = []
    for group_id in group_ids(state):
        kind = group_type(state, group_id)
        if kind is None or (types and kind not in types):
            continue
        listed = LISTED[kind](state, group_id)
        if not states or listed.group_state.lower() in states:
            found.append(listed)
    return pb.ListGroupsResponse(groups=found)


@decides(DeleteGroup)
def decide_delete(state: CoordinatorState, command: DeleteGroup) -> DeletionDecision:
    """The error code of one group of DeleteGroups; GROUP_ID_NOT_FOUND if it does not exist."""
    kind = group_type(state, command.group_id)
    if kind is None:
        return Decision((), ErrorCode.GROUP_ID_NOT_FOUND)
    return DELETED[kind](state, command.group_id)
