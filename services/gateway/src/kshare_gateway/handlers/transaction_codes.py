"""What requests about transactions have in common: codes that old clients do not know, and no answer."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_rpc.network import CallFailed, Method, Request, Response


def fencing_code(code: int, version: int, first_version: int) -> int:
    """PRODUCER_FENCED is known to clients from `first_version` of the API on; older ones get INVALID_PRODUCER_EPOCH."""
    is_unknown = code == ErrorCode.PRODUCER_FENCED and version < first_version
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code


async def ask_coordinator(context: RequestContext, method: Method[Request, Response], request: Request) -> Response:
    """The coordinator's answer; COORDINATOR_NOT_AVAILABLE, which clients retry, where there is none."""
    try:
        return await context.gateway.call_coordinator(method, request)
    except CallFailed as failure:
        text = f"The coordinator gave no answer: {failure}"
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text) from failure
