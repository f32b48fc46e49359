"""DeleteGroups (key 42), versions 0 to 2: groups of every type, deleted by the coordinator; each has a result."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import DELETE_GROUPS
from kshare_rpc.network import CallFailed
from kshare_wire.messages import Body, Message

STATE_DELETION_MS = 30_000
"""How much longer the call may take: the state of share groups is deleted at share coordinators."""


async def handle(context: RequestContext, request: Message) -> Body:
    wanted = coordinator_pb2.DeleteGroupsRequest(group_ids=request.groups_names)
    timeout_ms = CALL_TIMEOUT_MS + STATE_DELETION_MS
    try:
        answer = await context.gateway.call_coordinator(DELETE_GROUPS, wanted, timeout_ms=timeout_ms)
    except CallFailed as failure:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The coordinator gave no answer: {failure}") from failure
    return {"results": [{"group_id": result.group_id, "error_code": result.error_code} for result in answer.results]}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    group_ids = dict.fromkeys(request.groups_names)
    return {"results": [{"group_id": group_id, "error_code": error.code} for group_id in group_ids]}
