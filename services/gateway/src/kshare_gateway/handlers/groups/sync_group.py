"""SyncGroup (key 14), versions 0 to 5: forwarded to the coordinator, where it waits for the leader's assignment.

The coordinator limits that wait (the longest rebalance timeout of the group), so the call here may take as long as the
longest session.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_group
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import SYNC_GROUP
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.sync_group import SyncGroupRequest
from kshare_wire.generated.responses.sync_group import SyncGroupResponse

FIRST_VERSION_WITH_PROTOCOL = 5


async def handle(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    if context.version >= FIRST_VERSION_WITH_PROTOCOL and not (request.protocol_type and request.protocol_name):
        text = f"ProtocolType {request.protocol_type!r} and ProtocolName {request.protocol_name!r} must both be set"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
    wanted = coordinator_pb2.SyncGroupRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or "",
        protocol_type=request.protocol_type or "",
        protocol_name=request.protocol_name or "",
        assignments=[
            coordinator_pb2.SyncGroupRequest.Assignment(
                member_id=assignment.member_id, assignment=bytes(assignment.assignment)
            )
            for assignment in request.assignments
        ],
    )
    timeout_ms = context.gateway.configs.integer("group.max.session.timeout.ms") + CALL_TIMEOUT_MS
    answer = await context.gateway.call_group_coordinator(request.group_id, SYNC_GROUP, wanted, timeout_ms=timeout_ms)
    return SyncGroupResponse(
        error_code=answer.error_code,
        protocol_type=answer.protocol_type if answer.has_protocol else None,
        protocol_name=answer.protocol_name if answer.has_protocol else None,
        assignment=answer.assignment,
    )


serve(SyncGroupRequest, SyncGroupResponse, VersionRange(0, 5), access=on_group(Operation.READ), handle=handle)
