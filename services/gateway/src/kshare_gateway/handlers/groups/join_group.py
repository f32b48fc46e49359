"""JoinGroup (key 11), versions 0 to 9: forwarded to the coordinator, where it waits until all members have joined.

If the coordinator does not answer, the member gets COORDINATOR_NOT_AVAILABLE and rejoins.
"""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_group
from kshare_gateway.served_apis import serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import JOIN_GROUP
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.join_group import JoinGroupRequest
from kshare_wire.generated.responses.join_group import JoinGroupResponse, JoinGroupResponseMember

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
FIRST_VERSION_WITH_NULL_PROTOCOL = 7
FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9
NO_GENERATION = -1


async def handle(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    wanted = _wanted(context, request)
    timeout_ms = call_timeout_ms(wanted, context.gateway.configs.integer("group.initial.rebalance.delay.ms"))
    answer = await context.gateway.call_group_coordinator(request.group_id, JOIN_GROUP, wanted, timeout_ms=timeout_ms)
    return JoinGroupResponse(
        error_code=answer.error_code,
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type if answer.has_protocol else None,
        protocol_name=answer.protocol_name if answer.has_protocol else _no_protocol(context),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id or None,
                metadata=member.metadata,
            )
            for member in answer.members
        ],
    )


def call_timeout_ms(wanted: coordinator_pb2.JoinGroupRequest, initial_delay_ms: int) -> int:
    """The time that the member itself will wait, plus a margin; after it the member is told to rejoin."""
    return max(wanted.rebalance_timeout_ms, wanted.session_timeout_ms, 0) + initial_delay_ms + CALL_TIMEOUT_MS


def failed(context: RequestContext, request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error.code,
        generation_id=NO_GENERATION,
        protocol_name=_no_protocol(context),
        member_id=request.member_id,
    )


def _no_protocol(context: RequestContext) -> str | None:
    return None if context.version >= FIRST_VERSION_WITH_NULL_PROTOCOL else ""


def _wanted(context: RequestContext, request: JoinGroupRequest) -> coordinator_pb2.JoinGroupRequest:
    has_timeout = context.version >= FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    return coordinator_pb2.JoinGroupRequest(
        group_id=request.group_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id or "",
        protocol_type=request.protocol_type,
        protocols=[
            coordinator_pb2.JoinGroupRequest.Protocol(name=protocol.name, metadata=bytes(protocol.metadata))
            for protocol in request.protocols
        ],
        client_id=context.client_id,
        client_host=context.client_host,
        requires_known_member_id=context.version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED,
        supports_skipping_assignment=context.version >= FIRST_VERSION_WITH_SKIP_ASSIGNMENT,
        reason=request.reason or "",
    )


serve(
    JoinGroupRequest,
    JoinGroupResponse,
    VersionRange(0, 9),
    access=on_group(Operation.READ),
    handle=handle,
    failed=failed,
)
