"""ListGroups, DescribeGroups and DeleteGroups for classic and simple groups (ids with committed offsets only)."""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect
from kshare_coordinator.machine.groups.classic.group import ClassicGroupState, ClassicMember
from kshare_coordinator.machine.groups.namespace import GroupType, classic_group
from kshare_coordinator.machine.offsets.tombstones import records_at_group_deletion
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

DescribedGroup = pb.DescribeGroupsResponse.DescribedGroup
DescribedMember = pb.DescribeGroupsResponse.Member


def listed(state: CoordinatorState, group_id: str) -> pb.ListGroupsResponse.ListedGroup:
    group = classic_group(state, group_id)
    assert group is not None, "only groups that exist are listed"
    return pb.ListGroupsResponse.ListedGroup(
        group_id=group_id, protocol_type=group.protocol_type, group_state=group.state, group_type=GroupType.CLASSIC
    )


def describe(state: CoordinatorState, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
    """An id that is not a classic group is Dead, with GROUP_ID_NOT_FOUND."""
    return pb.DescribeGroupsResponse(groups=[_described(state, group_id) for group_id in request.group_ids])


def _described(state: CoordinatorState, group_id: str) -> DescribedGroup:
    group = classic_group(state, group_id)
    if group is None:
        return DescribedGroup(
            group_id=group_id,
            group_state=ClassicGroupState.DEAD,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} does not exist, or it does not use the classic protocol",
        )
    protocol_name = group.protocol_name if group.state is ClassicGroupState.STABLE else ""
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=protocol_name,
        members=[_member(member_id, member, protocol_name) for member_id, member in group.members.items()],
    )


def _member(member_id: str, member: ClassicMember, protocol_name: str) -> DescribedMember:
    """The metadata is shown in a stable group only."""
    return DescribedMember(
        member_id=member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        metadata=member.metadata(protocol_name),
        assignment=member.assignment,
    )


def decide_delete(state: CoordinatorState, group_id: str) -> Decision[Record, ErrorCode, Effect]:
    """With all its offsets, those in open transactions too; NON_EMPTY_GROUP unless it is empty."""
    group = classic_group(state, group_id)
    assert group is not None, "only groups that exist are deleted"
    if not group.is_empty:
        return Decision((), ErrorCode.NON_EMPTY_GROUP)
    found = records_at_group_deletion(state.offsets, group_id)
    if group_id in state.classic_groups:
        found.append(records.classic_group(group_id, None))
    return Decision(found, ErrorCode.NONE)
