"""What requests that change the catalog have in common: they go to the active coordinator.

Where that gives no answer, or none is active for so long, they get REQUEST_TIMED_OUT: as with Kafka's brokers, which
look for the controller until the time is over. What was asked for may have been done.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import CALL_TIMEOUT_MS, Gateway
from kshare_rpc.network import CallFailed, Method, Request, Response


async def change_catalog(
    gateway: Gateway, method: Method[Request, Response], request: Request, *, timeout_ms: int = CALL_TIMEOUT_MS
) -> Response:
    """The active coordinator's answer; KafkaError REQUEST_TIMED_OUT where there is none."""
    try:
        return await gateway.call_coordinator(method, request, timeout_ms=timeout_ms)
    except CallFailed as failure:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The coordinator gave no answer: {failure}") from failure
