"""ShareGroupDescribe, and share groups in ListGroups: looks at groups, changes nothing."""

from __future__ import annotations

from kshare_coordinator.machine.groups.share.group import ShareGroup
from kshare_coordinator.machine.groups.share.heartbeats import named_assignment
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

ASSIGNOR_NAME = "simple"
GROUP_TYPE = PROTOCOL_TYPE = "share"

DescribedGroup = pb.ShareGroupDescribeResponse.DescribedGroup


def describe(state: CoordinatorState, request: pb.ShareGroupDescribeRequest) -> pb.ShareGroupDescribeResponse:
    """A group that does not exist gets GROUP_ID_NOT_FOUND, an empty id INVALID_GROUP_ID."""
    return pb.ShareGroupDescribeResponse(groups=[_described(state, group_id) for group_id in request.group_ids])


def _described(state: CoordinatorState, group_id: str) -> DescribedGroup:
    if not group_id:
        text = "The group id is empty"
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID, error_message=text)
    group = state.share_groups.get(group_id)
    if group is None:
        text = f"Group {group_id} not found."
        code = ErrorCode.GROUP_ID_NOT_FOUND
        return DescribedGroup(group_id=group_id, error_code=code, error_message=text)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR_NAME,
        members=_members(state, group),
    )


def _members(state: CoordinatorState, group: ShareGroup) -> list[pb.ShareGroupDescribeResponse.Member]:
    return [
        pb.ShareGroupDescribeResponse.Member(
            member_id=member_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.subscribed_topic_names,
            assignment=named_assignment(state, member),
        )
        for member_id, member in sorted(group.members.items())
    ]


def listed(state: CoordinatorState, group_id: str) -> pb.ListGroupsResponse.ListedGroup:
    """A share group that exists, in ListGroups."""
    return pb.ListGroupsResponse.ListedGroup(
        group_id=group_id,
        protocol_type=PROTOCOL_TYPE,
        group_state=state.share_groups[group_id].state,
        group_type=GROUP_TYPE,
    )
