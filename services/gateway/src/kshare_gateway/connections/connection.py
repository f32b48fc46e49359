"""One client's connection: it reads request frames and writes responses in the order of the requests.

Requests of a connection run concurrently, each in its own task, save those that wait for an earlier one that they would
see (`request_order`). A response waits for the responses before it, but a slow request delays only its own connection.
At most one Fetch or ShareFetch runs at a time, so a connection has at most one response full of records in memory. The
same holds for requests whose responses may be much longer than they are. REQUESTS_UNDER_WAY_LIMIT bounds the others.
The connection is not read beyond that limit, while the client does not read its responses, or while the connection
holds more than its part of the memory budget (`request_memory`).

No connection monopolizes the event loop. Connections take turns to start requests (`turns`), and long requests are
decoded, handled and encoded in slices (`kshare_core.work_slices`). Requests of a client that has disconnected are
dropped: queued ones never start, running ones stop at their next slice. A client that has sent the end of its data may
still read: short requests of it that wait are answered, long ones are dropped, since only an answer could tell whether
anyone waits for it. A Produce that was received whole is always carried out, because a client with acks = 0 may close
its connection right after it.

A request that cannot be parsed, is longer than socket.request.max.bytes, or has an unknown API or version closes the
connection with a log line, as in Kafka. ApiVersions of an unknown version is answered in version 0 with
UNSUPPORTED_VERSION and its own versions, so that the client can retry. A handler that fails is logged and answered with
UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from logging import DEBUG
from typing import TYPE_CHECKING, Any, cast

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.log_fields import current_request_id, log_fields
from kshare_core.security.addresses import address_text
from kshare_core.security.principals import ANONYMOUS, user
from kshare_core.tracing import current_traceparent
from kshare_core.work_slices import SLICE_ELEMENTS, WorkAbandoned
from kshare_gateway.connections.environment import ConnectionEnvironment
from kshare_gateway.connections.peer_state import peer_has_gone
from kshare_gateway.connections.request_elements import too_many_elements
from kshare_gateway.connections.request_memory import SMALL_HOLDING_BYTES, MemoryAccount
from kshare_gateway.connections.request_order import must_wait
from kshare_gateway.connections.request_parts import (
    DESCRIBING,
    JoinedResponse,
    is_refused_in_parts,
    is_splittable,
    parts_of,
    repeated_together,
    with_few_repetitions,
)
from kshare_gateway.connections.slot import GROUP_WAIT, LANES, Slot
from kshare_gateway.connections.turns import CROWDED_LIMIT, ELEMENTS_OF_A_REQUEST
from kshare_gateway.gateway import log
from kshare_gateway.handlers.admin.api_versions import unsupported_version
from kshare_gateway.quotas.throttling import Timed
from kshare_gateway.request_context import ClientSoftware, ConnectionMustClose, RequestContext
from kshare_gateway.security.audit import AUDITED
from kshare_gateway.security.enforcement import answer_authorized
from kshare_gateway.security.sasl.session import SaslSession
from kshare_gateway.served_apis import ResponseSize, ServedApi
from kshare_rpc.catalog import PLAINTEXT_LISTENER
from kshare_wire.error_codes import error_codes_in_slices
from kshare_wire.framing import LENGTH_SIZE, FrameReader, RequestHeader, parse_header, peek_request
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import (
    SLICED_REQUEST_BYTES,
    Buffer,
    MalformedRequest,
    Request,
    Response,
    decode_request,
    decode_request_in_slices,
    encode_response,
    encode_response_in_slices,
    is_flexible,
)

if TYPE_CHECKING:
    from kshare_gateway.upstream.client_relay import ClientRelay

REQUESTS_UNDER_WAY_LIMIT = 64
MALFORMED = "malformed"
_LONG_ANSWER = int(ResponseSize.LONG)


def _always() -> bool:
    return True


def _must_authorize(context: RequestContext, handler: ServedApi) -> bool:
    return context.gateway.authorizer is not None and not handler.access.open_to_all


class ClientConnection(asyncio.Protocol):
    """A client connection as an asyncio protocol; rules in the module docstring.

    `connection_id` is unique in the process and `client_host` is "/ip", written as by Java. `listener` is the name of
    the listener that accepted the connection.
    """

    def __init__(
        self,
        connection_id: int,
        environment: ConnectionEnvironment,
        listener: str = PLAINTEXT_LISTENER,
        sasl: SaslSession | None = None,
    ) -> None:
        self.connection_id = connection_id
        self.listener = listener
        self.client_host = "/unknown"
        self.principal = ANONYMOUS
        """Who the client is: "User:name"."""
        self.sasl = sasl
        """None on listeners without SASL."""
        self.relay: ClientRelay | None = None
        """The client's side of an existing cluster; None with the embedded engine."""
        self._environment = environment
        self._handlers = environment.handlers
        self._frames = FrameReader(environment.maximum_frame_length)
        self._slots: deque[Slot] = deque()
        self._held_frame: memoryview | None = None
        self._lanes_in_use = [False] * (GROUP_WAIT + 1)
        self._will_send = False
        """Whether `_turn_is_over` is going to be called."""
        self._is_decoding = self.waits_for_turn = False
        self.charge = 0.0
        self.account = MemoryAccount(environment.memory, self)
        self.software = ClientSoftware()
        self._writing_is_paused = self._reading_is_paused = False
        self._is_admitted = self._is_closed = self._was_closed_here = False
        """The last: the gateway closed it, not the client. Then nothing else of the client is carried out."""
        self._is_stopping = False
        self._is_ended = False
        """Whether the client will send nothing more."""
        self._muted: asyncio.TimerHandle | None = None
        """Set while the client is throttled: no request of it begins."""
        self._last_active = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self._environment.memory.open(self.account)
        self._environment.turns.admit(self)
        peer = transport.get_extra_info("peername")
        if peer:
            self.client_host = f"/{address_text(peer[0])}"
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and self.sasl is None:
            certificate = tls.getpeercert(binary_form=True)
            self.principal = self._environment.certificate_principal(self.listener, certificate) or ""
        refusal = self._environment.admit(self)
        if refusal is None:
            self._is_admitted = True
            refusal = None if self.principal else "no rule of ssl.principal.mapping.rules matches its certificate"
        if refusal is not None:
            if self._muted is not None:
                text = "connection %d of %s is throttled: %s"
                self._environment.lines.info("throttled", text, self.connection_id, self.client_host, refusal)
            else:
                self._close(refusal, "not admitted")
            return
        self._last_active = asyncio.get_running_loop().time()
        self._limit_frames()
        if self._environment.maximum_idle_ms >= 0:
            self._watch_idle()

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._last_active = asyncio.get_running_loop().time()
        self._environment.metrics.received_bytes += len(data)
        self._frames.feed(data)
        self.account.add_request(len(data))
        self.account.progressed_at = self._last_active
        self._serve()

    def pause_writing(self) -> None:
        self._writing_is_paused = True
        self.account.progressed_at = asyncio.get_running_loop().time()
        self.account.set_unsent(self.unsent_bytes())
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._writing_is_paused = False
        self.account.set_unsent(0)
        self._serve()

    def eof_received(self) -> bool:
        """Keeps a connection until each request that was received whole has started: they came before the end."""
        self._send_done()  # what is written now is still sent
        self._is_ended = True
        return self._has_frame and not self._is_closed

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        if not self._was_closed_here:
            self._carry_out_produces()
        self.account.close()
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()  # its call would take room in the channel until the other members have joined
        self._slots.clear()
        self._held_frame = None
        self._frames = FrameReader(0)
        if self._muted is not None:
            self._muted.cancel()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._muted = self._transport = None  # each refers to the connection
        if self._is_admitted:
            self._environment.lost(self)

    def close_when_answered(self) -> None:
        """Starts no more requests, and closes the connection once those in flight are answered."""
        self._is_stopping = True
        self._adjust_reading()
        self._close_if_answered()

    def _close_if_answered(self) -> None:
        if self._is_stopping and not self._slots and not self._is_decoding:
            self.close()

    def close(self) -> None:
        """Closes the connection after the responses that are already written."""
        if self._transport is not None and not self._is_closed:
            self._send_done()
            self._is_closed = self._was_closed_here = True
            self._transport.close()

    def close_later(self, throttle_ms: int) -> None:
        """Closes the connection after so long, and serves nothing until then."""
        loop = asyncio.get_running_loop()
        self._muted = loop.call_later(throttle_ms / 1000, self._close, "its address is throttled")
        self._adjust_reading()

    @property
    def requests_under_way(self) -> int:
        """Number of requests whose responses are not written yet."""
        return len(self._slots)

    @property
    def waits_for_members(self) -> bool:
        """Whether a JoinGroup or SyncGroup is in flight."""
        return self._lanes_in_use[GROUP_WAIT]

    # MemoryHolder

    def room_changed(self) -> None:
        self._adjust_reading()

    def missing_frame_bytes(self) -> int:
        return self._frames.missing_bytes

    def unsent_bytes(self) -> int:
        return 0 if self._transport is None or self._is_closed else self._transport.get_write_buffer_size()

    def close_slow(self, held_bytes: int) -> None:
        self._close(
            f"it held {held_bytes} bytes and made no progress while other clients waited for memory "
            "(kshare.gateway.stalled.connection.ms)"
        )
        if self._transport is not None:
            self._transport.abort()

    # Requests

    def _serve(self) -> None:
        """Starts received requests, up to the limits of this connection, when its turn has come."""
        if self._has_frame and self._may_start() and self._environment.turns.may_start(self):
            self.take_turn()
        else:
            self._adjust_reading()

    @property
    def _has_frame(self) -> bool:
        """Whether a request was received whole and has not started."""
        return self._held_frame is not None or self._frames.is_ready

    def take_turn(self) -> None:
        """Starts received requests while no other connection has to be served first."""
        turns = self._environment.turns
        started, is_turn = 0, True
        try:
            while self._may_start():
                frame = self._held_frame or self._frames.next_frame()
                if frame is None:
                    break
                self._held_frame = None
                if self._must_wait(frame):
                    self._held_frame = frame
                    break
                if not is_turn:
                    self._held_frame = frame
                    turns.wait(self)
                    break
                self._start(frame)
                started += 1
                is_turn = turns.charged(self)
        except (MalformedRequest, ConnectionMustClose) as problem:
            self._close(str(problem), MALFORMED)
            return
        if started:
            self.account.frame_is_whole()
        self._adjust_reading()
        if self._is_ended and not self._has_frame:
            self.close()

    def _carry_out_produces(self) -> None:
        """Starts each Produce that a lost connection has received whole: with acks = 0 its client is done."""
        with suppress(MalformedRequest, ConnectionMustClose):
            while len(self._slots) < REQUESTS_UNDER_WAY_LIMIT:
                frame, self._held_frame = self._held_frame or self._frames.next_frame(), None
                if frame is None:
                    return
                if peek_request(frame)[0] == ApiKey.PRODUCE:
                    self._start(frame)

    def _may_start(self) -> bool:
        stopped = self._is_closed or self._is_stopping or self._writing_is_paused or self._is_decoding
        if self.sasl is not None and not self.sasl.is_authenticated and self._slots:
            return False  # what a request is allowed depends on the answer to the one before
        if self._muted is not None:
            return False
        limit = CROWDED_LIMIT if self._environment.turns.is_crowded else REQUESTS_UNDER_WAY_LIMIT
        return not stopped and len(self._slots) < limit

    def _must_wait(self, frame: memoryview) -> bool:
        """Whether a request of the frame's lane is in flight, or one that has to end first."""
        if not self._slots:
            return False
        api_key = peek_request(frame)[0]
        lane = LANES.get(api_key, 0)
        return (bool(lane) and self._lanes_in_use[lane]) or must_wait(api_key, self._slots)

    def _adjust_reading(self) -> None:
        if self._is_closed or self._transport is None:
            return
        waits_for_members = self.waits_for_members and self.account.held_bytes <= SMALL_HOLDING_BYTES
        is_at_long_work = self._is_decoding or self._lanes_in_use[_LONG_ANSWER] or waits_for_members
        takes_more = (self._may_start() and self._held_frame is None) or (
            # Its end is seen only after the data that was sent before it; little of it, since members wait for minutes.
            is_at_long_work and not (self._is_stopping or self._writing_is_paused)
        )
        wanted = takes_more and self.account.may_receive()
        if wanted and self._reading_is_paused:
            self._reading_is_paused = False
            self._transport.resume_reading()
        elif not wanted and not self._reading_is_paused:
            self._reading_is_paused = True
            self._transport.pause_reading()

    def _start(self, frame: memoryview) -> None:
        size = LENGTH_SIZE + len(frame)
        if self.sasl is not None and self.sasl.takes_raw_messages:
            self._environment.spawn(self._answer_raw(self.sasl, frame, self._new_slot(-1, 0, size)), "authentication")
            return
        api_key, version, correlation_id = peek_request(frame)
        if self.sasl is not None and (problem := self.sasl.problem_with(api_key)) is not None:
            raise ConnectionMustClose(problem)
        served = self._handlers.get(api_key)
        if served is None or not served.versions.minimum <= version <= served.versions.maximum:
            if api_key != ApiKey.API_VERSIONS:
                raise MalformedRequest(f"API {api_key} version {version} is not supported")
            response = unsupported_version()
            buffers = encode_response(response, 0, correlation_id)
            self._finish(self._new_slot(api_key, 0, size), buffers, response)
            return
        header = parse_header(frame, flexible=is_flexible(api_key, version))
        if len(frame) < SLICED_REQUEST_BYTES:
            request = decode_request(served.request, version, frame, header.body_offset)
            self._begin(header, request, size)
            return
        steps = decode_request_in_slices(served.request, version, frame, header.body_offset)
        try:
            next(steps)
        except StopIteration as end:
            request, elements = end.value
            self._begin(header, request, size, elements)
            return
        self._is_decoding = True
        self._environment.spawn(self._decode_on(steps, header, size), "decoding")

    async def _answer_raw(self, sasl: SaslSession, frame: memoryview, slot: Slot) -> None:
        """Answers a message of a mechanism that came without a header; a failure only closes the connection."""
        try:
            answer = sasl.answer(bytes(frame))
        except KafkaError as error:
            await asyncio.sleep(self._environment.authentication_delay_ms() / 1000)
            self._close_unauthenticated(error.message)
            return
        self.authentication_changed()
        self._finish(slot, [len(answer).to_bytes(LENGTH_SIZE) + answer], None)
        self._serve()

    def authentication_changed(self) -> None:
        """Takes the principal of a session that is complete, and the limit of frames that it has now."""
        if self.sasl is not None and self.sasl.user_name:
            self.principal = user(self.sasl.user_name)
        self._limit_frames()

    def _limit_frames(self) -> None:
        if self.sasl is not None:
            self.sasl.limit_frames(self._frames, self._environment.maximum_frame_length)

    async def _decode_on(
        self, steps: Generator[None, None, tuple[Request[Any], int]], header: RequestHeader, size: int
    ) -> None:
        """Decodes the rest of a long request after its first slice; the connection starts no other meanwhile."""
        is_wanted = self._is_wanted(header.api_key)
        async with self._environment.long_requests:
            try:
                await self._environment.slices.next_slice(is_wanted)
                request, elements = await self._environment.slices.run(steps, is_wanted)
                self._is_decoding = False
                answering = self._begin(header, request, size, elements)
            except WorkAbandoned:
                return
            except (MalformedRequest, ConnectionMustClose) as problem:
                self._close(str(problem), MALFORMED)
                return
            self._serve()
            is_bounded = is_splittable(header.api_key) or LANES[header.api_key] == _LONG_ANSWER
            if answering is not None and is_bounded:
                await asyncio.wait([answering])

    def _begin(
        self, header: RequestHeader, request: Request[Any], size: int, elements: int = 0
    ) -> asyncio.Task[Any] | None:
        """Starts a decoded request.

        `size` is that of its frame; `elements` are those of its arrays if it may be long.
        """
        slot = self._new_slot(header.api_key, header.version, size)
        slot.elements = elements
        self.charge += elements / ELEMENTS_OF_A_REQUEST
        context = self._environment.context(self, header)
        handler = self._handlers[header.api_key]
        if handler.answer_now is not None and elements <= SLICE_ELEMENTS and not _must_authorize(context, handler):
            response = handler.answer_now(context, request)
            buffers = encode_response(response, header.version, header.correlation_id)
            if self._throttle_ms(slot, header, context, response, buffers):
                buffers = encode_response(response, header.version, header.correlation_id)
            self._finish(slot, buffers, response)
            context.gateway.audit.operation(context, header.api_key, request, response)
            self._end_failed_session(response)
            return None
        run = self._run if self._environment.traces is None else self._run_traced
        task = self._environment.spawn(run(slot, header, context, request), handler.name)
        if slot.lane == GROUP_WAIT:
            slot.task = task
        return task

    def _end_failed_session(self, response: Response | None) -> None:
        """Closes the connection after the answer to a failed authentication."""
        if self.sasl is not None and self.sasl.has_failed:
            self._close_unauthenticated(getattr(response, "error_message", None) or "its steps were out of order")

    def _close_unauthenticated(self, problem: str) -> None:
        self._close(f"its authentication failed: {problem}", "authentication")

    def is_wanted(self) -> bool:
        """Whether the client is still connected, so that responses are of use.

        While a connection is not read, its transport does not notice a disconnect, so the socket's state is queried.
        """
        if not self._is_closed and self._reading_is_paused and self._transport is not None:
            plain = self._transport.get_extra_info("socket")
            if plain is not None and peer_has_gone(plain.fileno()):
                self._is_closed = True
                self._transport.abort()
        return not self._is_closed

    def _is_long_request_wanted(self) -> bool:
        """`is_wanted` of a request of SLICED_REQUEST_BYTES or more: not after the end of the client's data."""
        if self._is_ended and not self._is_closed and self._transport is not None:
            self._is_closed = True
            self._transport.abort()
        return self.is_wanted()

    def _is_wanted(self, api_key: int) -> Callable[[], bool]:
        """`_is_long_request_wanted` of a request of the API."""
        return _always if api_key == ApiKey.PRODUCE else self._is_long_request_wanted

    def _new_slot(self, api_key: int, version: int, request_bytes: int) -> Slot:
        slot = Slot(api_key, version, request_bytes, self._environment.metrics.now())
        self._slots.append(slot)
        self._lanes_in_use[slot.lane] = True
        return slot

    async def _run_traced(
        self, slot: Slot, header: RequestHeader, context: RequestContext, request: Request[Any]
    ) -> None:
        """Runs a request in a span if it is sampled; calls made by the request's task inherit the span."""
        traces = self._environment.traces
        assert traces is not None
        span = traces.begin(header, context, request)
        if span is not None:
            current_traceparent.set(span.traceparent)
        response: Response | None = None
        try:
            response = await self._run(slot, header, context, request)
            if span is not None and response is not None:
                traces.answered(span, header, context, request, response)
        finally:  # the wait of a client that has gone is cancelled
            if span is not None:
                span.end("" if response is not None or self._is_closed else "no answer")

    async def _run(
        self, slot: Slot, header: RequestHeader, context: RequestContext, request: Request[Any]
    ) -> Response | None:
        """Runs the handler and sends the response; returns the response, or None without one."""
        is_costly = slot.lane == _LONG_ANSWER or slot.request_bytes >= SLICED_REQUEST_BYTES
        is_wanted = self.is_wanted() if is_costly else not self._is_closed
        if not is_wanted and header.api_key != ApiKey.PRODUCE:
            return None
        current_request_id.set(f"{self._environment.request_id_prefix}-{self.connection_id}-{header.correlation_id}")
        try:
            answer = self._answer_throttled if context.gateway.throttling.is_active else self._answer_unthrottled
            response, buffers = await answer(slot, header, context, request)
        except WorkAbandoned:
            return None
        except ConnectionMustClose as reason:
            self._close(str(reason), self._handlers[header.api_key].name)
            return None
        except Exception:
            name = self._handlers[header.api_key].name
            log.exception("closing a connection, the response to %s could not be built", name)
            self._close("the response could not be built")
            return None
        if not self._is_closed:
            self._finish(slot, buffers, None if is_costly else response)
            if self.sasl is not None and header.api_key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
                self.authentication_changed()
                self._end_failed_session(response)
            if self._reading_is_paused or self._has_frame:
                self._serve()
        if log.isEnabledFor(DEBUG):
            self._log_request(header, request)
        return response

    def _log_request(self, header: RequestHeader, request: Request[Any]) -> None:
        name = self._handlers[header.api_key].name
        with log_fields(group=getattr(request, "group_id", None) or "", client_id=header.client_id or ""):
            log.debug("responded to %s version %d of %s", name, header.version, self.client_host)

    async def _answer_unthrottled(
        self, slot: Slot, header: RequestHeader, context: RequestContext, request: Request[Any]
    ) -> tuple[Response | None, list[Buffer]]:
        """The response and its bytes."""
        response = await self._answer_in_parts(slot, header, context, request)
        if response is None:
            return None, []
        if header.api_key in AUDITED:
            context.gateway.audit.operation(context, header.api_key, request, response)
        return response, [] if self._is_closed else await self._encoded(slot, header, response)

    async def _answer_throttled(
        self, slot: Slot, header: RequestHeader, context: RequestContext, request: Request[Any]
    ) -> tuple[Response | None, list[Buffer]]:
        """The response, which says how long the client is throttled, and its bytes."""
        work: Awaitable[Response | None] = self._answer_in_parts(slot, header, context, request)
        if context.gateway.throttling.measures_time:
            work = Timed(work, time.perf_counter, slot.add_busy)
        response = await work
        if response is None:
            self._throttle_ms(slot, header, context, None, ())
            return None, []
        if header.api_key in AUDITED:
            context.gateway.audit.operation(context, header.api_key, request, response)
        if self._is_closed:
            return response, []
        buffers = await self._encoded(slot, header, response)
        if self._throttle_ms(slot, header, context, response, buffers):
            buffers = await self._encoded(slot, header, response)
        return response, buffers

    async def _answer_in_parts(
        self, slot: Slot, header: RequestHeader, context: RequestContext, request: Request[Any]
    ) -> Response | None:
        """The response; a long request whose elements are independent is answered part by part."""
        if header.api_key in DESCRIBING:
            request = await with_few_repetitions(header.api_key, request, context.count_elements())
        if slot.elements <= SLICE_ELEMENTS:
            response, _ = await self._answer_or_fail(header, context, request)
            return response
        api_key, limit = header.api_key, self._environment.maximum_elements
        if not is_splittable(api_key):
            served = self._handlers[api_key]
            if slot.elements <= limit or served.works_in_slices or served.failed is None:
                response, _ = await self._answer_or_fail(header, context, request)
                return response
            return await self._refuse(header, context, request, too_many_elements(slot.elements, limit))
        request = await repeated_together(api_key, request, context.count_elements())
        joined = JoinedResponse(api_key)
        error: KafkaError | None = None
        for number, (part, elements) in enumerate(parts_of(api_key, request, limit)):
            if number:
                await self._environment.slices.next_slice(self._is_wanted(api_key))
            if elements > limit and not self._handlers[api_key].works_in_slices:
                problem = too_many_elements(elements, limit, "An element of the request")
                response = await self._refuse(header, context, part, problem)
            elif error is None:
                response, error = await self._answer_or_fail(header, context, part)
            else:  # after a failed part the other parts are not tried
                response = self._failed(header, context, part, error)
            assert response is not None, "every part of a request that is split has an answer"
            joined.add(response)
        return joined.response()

    def _failed(
        self, header: RequestHeader, context: RequestContext, request: Request[Any], error: KafkaError
    ) -> Response | None:
        handler = self._handlers[header.api_key]
        assert handler.failed is not None
        return handler.failed(context, request, error)

    async def _refuse(
        self, header: RequestHeader, context: RequestContext, request: Request[Any], error: KafkaError
    ) -> Response | None:
        """The response to a request of too many elements; a response that names each element is made part by part."""
        name = self._handlers[header.api_key].name
        self._environment.lines.info(name, "%s of %s: %s", name, self.client_host, error)
        if not is_refused_in_parts(header.api_key):
            return self._failed(header, context, request, error)
        joined = JoinedResponse(header.api_key)
        for part, _ in parts_of(header.api_key, request, self._environment.maximum_elements):
            await self._environment.slices.next_slice(self._is_long_request_wanted)
            response = self._failed(header, context, part, error)
            if response is None:
                return None
            joined.add(response)
        return joined.response()

    async def _answer_or_fail(
        self, header: RequestHeader, context: RequestContext, request: Request[Any]
    ) -> tuple[Response | None, KafkaError | None]:
        """The response, and the error if it applies to the whole request."""
        handler = self._handlers[header.api_key]
        try:
            if _must_authorize(context, handler):
                return await answer_authorized(context, handler, request, handler.answer), None
            if handler.answer_now is not None:
                return handler.answer_now(context, request), None
            assert handler.handle is not None
            return await handler.handle(context, request), None
        except KafkaError as failure:
            # Its traceback holds this frame, which holds the error: garbage of each refused request.
            error = failure.with_traceback(None)
            with log_fields(group=getattr(request, "group_id", None) or "", client_id=header.client_id or ""):
                self._environment.lines.info(handler.name, "%s of %s: %s", handler.name, self.client_host, error)
        except (ConnectionMustClose, WorkAbandoned):
            raise
        except Exception:
            log.exception("%s failed with an unexpected error", handler.name)
            text = "The gateway could not process the request; see its log"
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        return self._failed(header, context, request, error), error

    def _throttle_ms(
        self,
        slot: Slot,
        header: RequestHeader,
        context: RequestContext,
        response: Response | None,
        buffers: Sequence[Buffer],
    ) -> int:
        """Charges the client with a request; how long it is throttled, which its response then says."""
        throttling = context.gateway.throttling
        if not throttling.is_active:
            return 0
        throttle_ms = throttling.charge(
            header.api_key,
            context.principal.partition(":")[2],
            context.client_id,
            request_bytes=slot.request_bytes,
            response_bytes=sum(map(len, buffers)),
            busy_s=slot.busy_s,
        )
        told_ms = getattr(response, "throttle_time_ms", 0)
        throttle_ms = max(throttle_ms, told_ms)
        if throttle_ms <= 0:
            return 0
        self._mute(throttle_ms)
        if response is not None and "throttle_time_ms" in response.__slots__:
            response.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]
        return throttle_ms

    def _mute(self, throttle_ms: int) -> None:
        """Begins no request of the client for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + throttle_ms / 1000
        if self._muted is None or self._muted.when() < until:
            if self._muted is not None:
                self._muted.cancel()
            self._muted = loop.call_at(until, self._unmute)
        self._adjust_reading()

    def _unmute(self) -> None:
        self._muted = None
        self._last_active = asyncio.get_running_loop().time()
        self._serve()

    async def _encoded(self, slot: Slot, header: RequestHeader, response: Response) -> list[Buffer]:
        """The encoded response.

        A response that may have many elements is encoded, and its errors are counted, in slices.
        """
        if slot.lane != _LONG_ANSWER and slot.request_bytes < SLICED_REQUEST_BYTES:
            return encode_response(response, header.version, header.correlation_id)
        steps = encode_response_in_slices(response, header.version, header.correlation_id)
        buffers = await self._environment.slices.run(steps, self.is_wanted)
        codes = await self._environment.slices.run(error_codes_in_slices(response), self.is_wanted)
        self._environment.metrics.note_codes(header.api_key, codes)
        return buffers

    def _finish(self, slot: Slot, buffers: list[Buffer], response: Response | None) -> None:
        metrics, account = self._environment.metrics, self.account
        slot.buffers = buffers
        slot.is_done = True
        self._lanes_in_use[slot.lane] = False
        account.end_request(slot.request_bytes)
        if slot.lane == ResponseSize.RECORDS:
            account.fetch_was_answered(sum(map(len, buffers)))
        slots = self._slots
        if len(slots) == 1:
            self._send(buffers)
            slots.clear()
        else:
            account.add_answer(sum(map(len, buffers)))
            if slots[0].is_done and not self._will_send:
                self._will_send = True
                asyncio.get_running_loop().call_soon(self._turn_is_over)
        metrics.answered(slot.api_key, slot.version, metrics.now() - slot.started_at)
        if response is not None:
            metrics.note_errors(response)
        self._close_if_answered()

    def _turn_is_over(self) -> None:
        self._will_send = False
        self._send_done()
        self._close_if_answered()
        if not self._is_closed and (self._reading_is_paused or self._has_frame):
            self._serve()

    def _send_done(self) -> None:
        """Writes the responses whose turn has come.

        Those that are done in one turn of the event loop go together: each write is a system call that may wake the
        client, which then competes with the rest of the turn for the processor.
        """
        slots, joined = self._slots, list[Buffer]()
        while slots and slots[0].is_done:
            joined += slots.popleft().buffers
        if joined:
            self.account.end_answer(sum(map(len, joined)))
            self._send(joined)

    def _send(self, buffers: list[Buffer]) -> None:
        """Writes one or more responses."""
        transport = self._transport
        if not buffers or transport is None:
            return
        self._last_active = asyncio.get_running_loop().time()
        self._environment.metrics.sent_bytes += sum(map(len, buffers))
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)
        if self._writing_is_paused:
            self.account.set_unsent(self.unsent_bytes())

    # The end

    def _watch_idle(self) -> None:
        loop = asyncio.get_running_loop()
        limit = self._environment.maximum_idle_ms / 1000
        if self._slots:
            self._last_active = loop.time()
        if loop.time() - self._last_active >= limit:
            self._close(f"idle for {self._environment.maximum_idle_ms} ms (connections.max.idle.ms)")
            return
        self._idle_timer = loop.call_at(self._last_active + limit, self._watch_idle)

    def _close(self, reason: str, kind: str = "closed") -> None:
        """`kind` is that of its log line: see `BoundedLog`."""
        if not self._is_closed:
            text = "closing connection %d of %s: %s"
            self._environment.lines.warning(kind, text, self.connection_id, self.client_host, reason)
            self._end()

    def _end(self) -> None:
        if not self._is_closed:
            if self._is_admitted:
                self._environment.metrics.connections_closed += 1
            self.close()
