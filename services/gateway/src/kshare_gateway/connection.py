"""One client's connection: frames in, answers out, in the order of the requests.

Requests of a connection run at the same time, each in a task of its own, and their answers wait for those before them;
a slow one holds up nobody else's connection. Of Fetch and ShareFetch one at a time runs, so that a connection never has
more than one answer full of records in memory. REQUESTS_UNDER_WAY_LIMIT bounds the others; beyond it, and while the
client does not read its answers, the connection is not read either.

A request that cannot be parsed, is longer than socket.request.max.bytes, or has an unknown API or version closes the
connection with a log line, as in Kafka. ApiVersions of an unknown version is answered in version 0 with
UNSUPPORTED_VERSION and its own versions, so that the client can ask again. A handler that fails is logged and answered
with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from logging import DEBUG
from typing import Any, cast

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.log_fields import current_request_id, log_fields
from kshare_core.prompt_writing import PromptWriter
from kshare_core.tracing import current_traceparent
from kshare_gateway.dispatch import HANDLERS, RECORD_BEARING_APIS
from kshare_gateway.gateway import log
from kshare_gateway.handlers.api_versions import unsupported_version_body
from kshare_gateway.measures import GatewayMeasures
from kshare_gateway.request_context import ConnectionMustClose, RequestContext
from kshare_gateway.request_traces import RequestTraces
from kshare_rpc.catalog import PLAINTEXT_LISTENER
from kshare_wire.api_versions import ApiKey, is_supported
from kshare_wire.framing import FrameReader, RequestHeader, parse_header, peek_request
from kshare_wire.messages import Body, Buffer, MalformedRequest, Message, decode_request, encode_response, is_flexible

REQUESTS_UNDER_WAY_LIMIT = 64

_HANDLERS = {int(api_key): handler for api_key, handler in HANDLERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEnvironment:
    """What a connection needs from its node.

    `admit` counts a new connection and says why it is refused, or None; `lost` is called once for each one admitted;
    `context` makes a handler's context; `spawn` runs a task.
    """

    maximum_frame_length: int
    maximum_idle_ms: int
    admit: Callable[[ClientConnection], str | None]
    lost: Callable[[ClientConnection], None]
    context: Callable[[ClientConnection, RequestHeader], RequestContext]
    spawn: Callable[[Coroutine[Any, Any, Any], str], object]
    measures: GatewayMeasures = field(default_factory=GatewayMeasures)
    traces: RequestTraces | None = None
    request_id_prefix: str = "gateway"
    """What the ids of all requests of this gateway begin with; followed by connection and correlation id."""


class _Slot:
    """The place of one answer in the order of answers; no buffers: the request has no answer."""

    __slots__ = ("api_key", "buffers", "is_done", "is_record_bearing", "started_at", "version")

    def __init__(self, api_key: int, version: int, is_record_bearing: bool, started_at: float) -> None:
        self.api_key = api_key
        self.version = version
        self.started_at = started_at
        self.buffers: list[Buffer] = []
        self.is_done = False
        self.is_record_bearing = is_record_bearing


class ClientConnection(asyncio.Protocol):
    """See the module's text. `connection_id` is unique in the process; `client_host` is "/ip".

    `listener` is the name of the listener that the client came by.
    """

    def __init__(
        self, connection_id: int, environment: ConnectionEnvironment, listener: str = PLAINTEXT_LISTENER
    ) -> None:
        self.connection_id = connection_id
        self.listener = listener
        self.client_host = "/unknown"
        self._environment = environment
        self._frames = FrameReader(environment.maximum_frame_length)
        self._slots: deque[_Slot] = deque()
        self._held_frame: memoryview | None = None
        self._records_under_way = False
        self._writing_is_paused = False
        self._reading_is_paused = False
        self._is_admitted = False
        self._is_closed = False
        self._is_stopping = False
        self._last_active = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._writer: PromptWriter | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self._writer = PromptWriter(transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.client_host = f"/{peer[0]}"
        refusal = self._environment.admit(self)
        if refusal is not None:
            self._close(refusal)
            return
        self._is_admitted = True
        self._last_active = asyncio.get_running_loop().time()
        if self._environment.maximum_idle_ms >= 0:
            self._watch_idle()

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._last_active = asyncio.get_running_loop().time()
        self._environment.measures.received_bytes += len(data)
        self._frames.feed(data)
        self._serve()

    def pause_writing(self) -> None:
        self._writing_is_paused = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._writing_is_paused = False
        self._serve()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        self._slots.clear()
        self._held_frame = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._is_admitted:
            self._environment.lost(self)

    def stop_reading(self) -> None:
        """Takes no more requests; those under way are still answered."""
        self._is_stopping = True
        self._adjust_reading()

    def close(self) -> None:
        """Closes the connection after what is written already."""
        if self._transport is not None and not self._is_closed:
            self._is_closed = True
            self._transport.close()

    @property
    def requests_under_way(self) -> int:
        """Requests whose answers are not written yet."""
        return len(self._slots)

    # Requests

    def _serve(self) -> None:
        """Starts the requests that are here, as many as may run."""
        try:
            while self._may_start():
                frame = self._held_frame or self._frames.next_frame()
                if frame is None:
                    break
                self._held_frame = None
                if self._records_under_way and peek_request(frame)[0] in RECORD_BEARING_APIS:
                    self._held_frame = frame
                    break
                self._start(frame)
        except (MalformedRequest, ConnectionMustClose) as problem:
            self._close(str(problem))
            return
        self._adjust_reading()

    def _may_start(self) -> bool:
        stopped = self._is_closed or self._is_stopping or self._writing_is_paused
        return not stopped and len(self._slots) < REQUESTS_UNDER_WAY_LIMIT

    def _adjust_reading(self) -> None:
        if self._is_closed or self._transport is None:
            return
        wanted = self._may_start() and self._held_frame is None
        if wanted and self._reading_is_paused:
            self._reading_is_paused = False
            self._transport.resume_reading()
        elif not wanted and not self._reading_is_paused:
            self._reading_is_paused = True
            self._transport.pause_reading()

    def _start(self, frame: memoryview) -> None:
        api_key, version, correlation_id = peek_request(frame)
        if not is_supported(api_key, version):
            if api_key != ApiKey.API_VERSIONS:
                raise MalformedRequest(f"API {api_key} version {version} is not supported")
            body = unsupported_version_body()
            buffers = encode_response(api_key, 0, correlation_id, body)
            self._finish(self._new_slot(api_key, 0), buffers, body)
            return
        header = parse_header(frame, flexible=is_flexible(api_key, version))
        request = decode_request(api_key, version, frame, header.body_offset)
        slot = self._new_slot(api_key, version)
        context = self._environment.context(self, header)
        handler = _HANDLERS[api_key]
        if handler.answer_now is not None:
            body = handler.answer_now(context, request)
            self._finish(slot, encode_response(api_key, version, correlation_id, body), body)
            return
        run = self._run if self._environment.traces is None else self._run_traced
        self._environment.spawn(run(slot, header, context, request), handler.name)

    def _new_slot(self, api_key: int, version: int) -> _Slot:
        is_record_bearing = api_key in RECORD_BEARING_APIS
        slot = _Slot(api_key, version, is_record_bearing, self._environment.measures.now())
        self._slots.append(slot)
        self._records_under_way = self._records_under_way or is_record_bearing
        return slot

    async def _run_traced(self, slot: _Slot, header: RequestHeader, context: RequestContext, request: Message) -> None:
        """A sampled request's task is what its trace goes along with."""
        traces = self._environment.traces
        assert traces is not None
        span = traces.begin(header, context, request)
        if span is not None:
            current_traceparent.set(span.traceparent)
        body = await self._run(slot, header, context, request)
        if span is None:
            return
        if body is not None:
            traces.answered(span, header, context, request, body)
        span.end("" if body is not None or self._is_closed else "no answer")

    async def _run(self, slot: _Slot, header: RequestHeader, context: RequestContext, request: Message) -> Body | None:
        """The answer that was made, None: there is none."""
        buffers: list[Buffer] = []
        body: Body | None = None
        prefix = self._environment.request_id_prefix
        current_request_id.set(f"{prefix}-{self.connection_id}-{header.correlation_id}")
        try:
            body = await self._answer(header, context, request)
            if body is not None and not self._is_closed:
                buffers = encode_response(header.api_key, header.version, header.correlation_id, body)
        except ConnectionMustClose as reason:
            self._close(str(reason))
            return None
        except Exception:
            log.exception("%s: an answer could not be made", _HANDLERS[header.api_key].name)
            self._close("an answer could not be made")
            return None
        if not self._is_closed:
            self._finish(slot, buffers, body)
            if self._held_frame is not None or self._reading_is_paused or self._frames.is_ready:
                self._serve()
        if log.isEnabledFor(DEBUG):
            self._log_request(header, request)
        return body

    def _log_request(self, header: RequestHeader, request: Message) -> None:
        name = _HANDLERS[header.api_key].name
        with log_fields(group=getattr(request, "group_id", None) or "", client_id=header.client_id or ""):
            log.debug("%s version %d of %s was answered", name, header.version, self.client_host)

    async def _answer(self, header: RequestHeader, context: RequestContext, request: Message) -> Body | None:
        handler = _HANDLERS[header.api_key]
        assert handler.handle is not None and handler.failed is not None
        try:
            return await handler.handle(context, request)
        except KafkaError as error:
            with log_fields(group=getattr(request, "group_id", None) or "", client_id=header.client_id or ""):
                log.info("%s of %s: %s", handler.name, self.client_host, error)
            return handler.failed(context, request, error)
        except ConnectionMustClose:
            raise
        except Exception:
            log.exception("%s failed unexpectedly", handler.name)
            text = "The gateway could not process the request; see its log"
            return handler.failed(context, request, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text))

    def _finish(self, slot: _Slot, buffers: list[Buffer], body: Body | None) -> None:
        measures = self._environment.measures
        slot.buffers = buffers
        slot.is_done = True
        if slot.is_record_bearing:
            self._records_under_way = False
        slots = self._slots
        if len(slots) == 1:
            self._send(buffers, at_once=True)
            slots.clear()
        while slots and slots[0].is_done:
            self._send(slots.popleft().buffers)
        measures.answered(slot.api_key, slot.version, measures.now() - slot.started_at)
        if body is not None:
            measures.note_errors(slot.api_key, body)

    def _send(self, buffers: list[Buffer], *, at_once: bool = False) -> None:
        """Writes an answer; `at_once`: no other answer is about to follow, so one without records goes out now."""
        if not buffers:
            return
        transport, writer = self._transport, self._writer
        assert transport is not None and writer is not None
        self._last_active = asyncio.get_running_loop().time()
        self._environment.measures.sent_bytes += sum(map(len, buffers))
        if at_once and len(buffers) == 1:
            writer.write(buffers[0])
        else:
            transport.writelines(buffers)

    # The end

    def _watch_idle(self) -> None:
        loop = asyncio.get_running_loop()
        limit = self._environment.maximum_idle_ms / 1000
        if self._slots:
            self._last_active = loop.time()
        if loop.time() - self._last_active >= limit:
            self._close(f"nothing was sent for {self._environment.maximum_idle_ms} ms (connections.max.idle.ms)")
            return
        self._idle_timer = loop.call_at(self._last_active + limit, self._watch_idle)

    def _close(self, reason: str) -> None:
        if not self._is_closed:
            log.warning("connection %d of %s is closed: %s", self.connection_id, self.client_host, reason)
            if self._is_admitted:
                self._environment.measures.connections_closed += 1
            self.close()
