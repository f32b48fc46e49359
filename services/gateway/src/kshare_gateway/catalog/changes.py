"""Calls that change the catalog: they go to the active coordinator.

Without a response, or without an active coordinator for that long, clients get REQUEST_TIMED_OUT, as from Kafka's
brokers, which look for the controller until the timeout. The change may have been made.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import CALL_TIMEOUT_MS, Gateway
from kshare_rpc.network import CallFailed, Method, Request, Response


async def change_catalog(
    gateway: Gateway, method: Method[Request, Response], request: Request, *, timeout_ms: int = CALL_TIMEOUT_MS
) -> Response:
    """The active coordinator's response; KafkaError REQUEST_TIMED_OUT without one."""
    try:
        return await gateway.call_coordinator(method, request, timeout_ms=timeout_ms)
    except CallFailed as failure:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The coordinator did not respond: {failure}") from failure
