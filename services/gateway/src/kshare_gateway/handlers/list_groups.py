"""ListGroups (key 16), versions 0 to 5: the coordinator's groups, filtered by state (4) and type (5)."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import LIST_GROUPS
from kshare_rpc.network import CallFailed
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    wanted = coordinator_pb2.ListGroupsRequest(states_filter=request.states_filter, types_filter=request.types_filter)
    try:
        answer = await context.gateway.call_coordinator(LIST_GROUPS, wanted)
    except CallFailed as failure:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)) from failure
    groups = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.group_state,
            "group_type": group.group_type,
        }
        for group in answer.groups
    ]
    return {"error_code": answer.error_code, "groups": groups}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return {"error_code": error.code}
