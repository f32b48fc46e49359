"""Helpers of transaction requests: error codes that old clients do not know, and calls to the coordinator."""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import no_answer_as_kafka_says
from kshare_gateway.request_context import RequestContext
from kshare_rpc.network import Method, Request, Response


def fencing_code(code: int, version: int, first_version: int) -> int:
    """The fencing code for a version: PRODUCER_FENCED from `first_version` on, INVALID_PRODUCER_EPOCH before."""
    is_unknown = code == ErrorCode.PRODUCER_FENCED and version < first_version
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code


async def ask_coordinator(context: RequestContext, method: Method[Request, Response], request: Request) -> Response:
    """The active coordinator's response; KafkaError NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE without one."""
    with no_answer_as_kafka_says():
        return await context.gateway.call_coordinator(method, request)


async def ask_any_coordinator(context: RequestContext, method: Method[Request, Response], request: Request) -> Response:
    """Like `ask_coordinator`, for requests without a transactional id; KafkaError COORDINATOR_LOAD_IN_PROGRESS.

    Clients retry after that code. After NOT_COORDINATOR they would not know which coordinator to look up.
    """
    try:
        return await ask_coordinator(context, method, request)
    except KafkaError as error:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error
