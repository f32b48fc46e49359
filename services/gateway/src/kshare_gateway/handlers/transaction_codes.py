"""What requests about transactions have in common: codes that old clients do not know, and no answer."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import no_answer_as_kafka_says
from kshare_gateway.request_context import RequestContext
from kshare_rpc.network import Method, Request, Response


def fencing_code(code: int, version: int, first_version: int) -> int:
    """PRODUCER_FENCED is known to clients from `first_version` of the API on; older ones get INVALID_PRODUCER_EPOCH."""
    is_unknown = code == ErrorCode.PRODUCER_FENCED and version < first_version
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code


async def ask_coordinator(context: RequestContext, method: Method[Request, Response], request: Request) -> Response:
    """The active coordinator's answer; KafkaError NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE where there is none."""
    with no_answer_as_kafka_says():
        return await context.gateway.call_coordinator(method, request)


async def ask_any_coordinator(context: RequestContext, method: Method[Request, Response], request: Request) -> Response:
    """As `ask_coordinator`, for requests without a transactional id; KafkaError COORDINATOR_LOAD_IN_PROGRESS.

    Clients repeat those then. They would not know whose coordinator to look up after NOT_COORDINATOR.
    """
    try:
        return await ask_coordinator(context, method, request)
    except KafkaError as error:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error
