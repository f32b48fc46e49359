"""What a gateway's node gives to each of its client connections: callbacks, limits and shared objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kshare_core.security.bounded_lines import BoundedLog
from kshare_core.security.principals import ANONYMOUS
from kshare_core.work_slices import WorkSlices
from kshare_gateway.connections.request_memory import RequestMemory, unlimited_memory
from kshare_gateway.connections.request_traces import RequestTraces
from kshare_gateway.connections.turns import Turns
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.gateway import log
from kshare_gateway.metrics import GatewayMetrics
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ServedApi
from kshare_wire.framing import RequestHeader

if TYPE_CHECKING:
    from kshare_gateway.connections.connection import ClientConnection

LONG_REQUESTS_LIMIT = 1
"""Limit of requests with more elements than a slice that a gateway decodes and answers concurrently.

A decoded element takes half a kilobyte, and almost one kilobyte with its result. Requests that wait for records or for
other group members count only while they are decoded.
"""
EMBEDDED_HANDLERS: Mapping[int, ServedApi] = {int(api_key): served for api_key, served in SERVED_APIS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEnvironment:
    """The callbacks, limits and shared objects that a node gives to its connections.

    `admit` counts a new connection and returns the reason for a refusal, or None. `lost` is called once for each
    admitted connection. `context` makes a handler's context; `spawn` runs a task.
    """

    maximum_frame_length: int
    maximum_idle_ms: int
    maximum_elements: int
    """kshare.request.max.elements; see `request_elements`."""
    admit: Callable[[ClientConnection], str | None]
    lost: Callable[[ClientConnection], None]
    context: Callable[[ClientConnection, RequestHeader], RequestContext]
    spawn: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    traces: RequestTraces | None = None
    certificate_principal: Callable[[str, bytes | None], str | None] = lambda listener, certificate: ANONYMOUS
    """The principal of a client on a TLS listener, by the listener and the certificate in DER, None without one.

    None: no rule of ssl.principal.mapping.rules matches the certificate, so the connection is closed.
    """
    lines: BoundedLog = field(default_factory=lambda: BoundedLog(log))
    """The log lines that clients cause."""
    authentication_delay_ms: Callable[[], int] = lambda: 0
    """connection.failed.authentication.delay.ms."""
    memory: RequestMemory = field(default_factory=unlimited_memory)
    slices: WorkSlices = field(default_factory=WorkSlices)
    turns: Turns = field(default_factory=Turns)
    long_requests: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LONG_REQUESTS_LIMIT))
    request_id_prefix: str = "gateway"
    """Prefix of the request ids of this gateway; connection id and correlation id follow."""
    handlers: Mapping[int, ServedApi] = field(default_factory=lambda: EMBEDDED_HANDLERS)
    """What the gateway answers itself, by API key."""
