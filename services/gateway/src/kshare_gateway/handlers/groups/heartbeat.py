"""Heartbeat (key 12), versions 0 to 4: forwarded to the coordinator."""

from __future__ import annotations

from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_group
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import HEARTBEAT
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.responses.heartbeat import HeartbeatResponse


async def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    wanted = coordinator_pb2.HeartbeatRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or "",
    )
    answer = await context.gateway.call_group_coordinator(request.group_id, HEARTBEAT, wanted)
    return HeartbeatResponse(error_code=answer.error_code)


serve(HeartbeatRequest, HeartbeatResponse, VersionRange(0, 4), access=on_group(Operation.READ), handle=handle)
