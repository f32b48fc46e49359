"""LeaveGroup (key 13), versions 0 to 5: forwarded to the coordinator.

One member below version 3, several from then on.
"""

from __future__ import annotations

from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_group
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LEAVE_GROUP
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.leave_group import LeaveGroupRequest
from kshare_wire.generated.responses.leave_group import LeaveGroupResponse, MemberResponse

FIRST_VERSION_WITH_MEMBERS = 3

Identity = coordinator_pb2.LeaveGroupRequest.MemberIdentity


async def handle(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    has_members = context.version >= FIRST_VERSION_WITH_MEMBERS
    members = _members(request) if has_members else [Identity(member_id=request.member_id)]
    wanted = coordinator_pb2.LeaveGroupRequest(group_id=request.group_id, members=members)
    answer = await context.gateway.call_group_coordinator(request.group_id, LEAVE_GROUP, wanted)
    if not has_members:
        return LeaveGroupResponse(error_code=answer.error_code or answer.members[0].error_code)
    results = [
        MemberResponse(
            member_id=result.member_id,
            group_instance_id=result.group_instance_id or None,
            error_code=result.error_code,
        )
        for result in answer.members
    ]
    return LeaveGroupResponse(error_code=answer.error_code, members=results)


def _members(request: LeaveGroupRequest) -> list[Identity]:
    return [
        Identity(
            member_id=member.member_id, group_instance_id=member.group_instance_id or "", reason=member.reason or ""
        )
        for member in request.members
    ]


serve(LeaveGroupRequest, LeaveGroupResponse, VersionRange(0, 5), access=on_group(Operation.READ), handle=handle)
