"""The call server: the handlers, the calls in flight and their end at a stop, for Exchange streams and unary gRPC.

Calls run concurrently, so a slow one does not block others: a coroutine handler in its own task, a plain handler until
the Future that it returned is done. A call runs to its end even when its caller has disconnected or timed out: its
effect on the role's state must not depend on where it was cut off. An exception that leaves a handler is answered as a
failure and reported to `on_handler_error`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message

from kshare_core.identifiers import topic_id_text
from kshare_core.log_fields import REQUEST_ID_LIMIT, current_request_id, log_fields
from kshare_core.security.bounded_lines import BoundedLog
from kshare_core.tracing import Span, Tracer, current_traceparent, is_sampled
from kshare_fastpath.prompt_future import when_ended
from kshare_rpc.call_statistics import DENIED, HANDLER_FAILED, MALFORMED, STOPPED, CallStatistics
from kshare_rpc.claimed_roles import RoleNotHeld, check_claimed_role
from kshare_rpc.exchange.frames import FRAME_BYTES_LIMIT, encode_frame
from kshare_rpc.exchange.tls import ANYBODY, EVERY_ROLE, Caller
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.grpc_channel import NOT_STARTED_PREFIX, REFUSED_PREFIX
from kshare_rpc.network import Handler, Method, Payload, Service, is_coroutine_handler

FLUSH_AT_STOP_MS = 200
"""How long streams and unary calls of a stopping server may send their remaining answers after the last handler."""

LOGGED_PARTITIONS_LIMIT = 20
"""Partitions that the log line of one call names."""

call_log = logging.getLogger(__name__)

HandlerError = Callable[[str, BaseException], None]
"""The callback for an exception that left a handler: the method's path and the exception."""


def log_handler_error(path: str, error: BaseException) -> None:
    call_log.error("%s failed: %r", path, error, exc_info=error)


def log_call(path: str, request: Any, duration_s: float) -> None:
    """Logs an answered call at level debug, with the client's request id, the group and the partitions."""
    if not call_log.isEnabledFor(logging.DEBUG):
        return
    fields: dict[str, str | int] = {"duration_ms": round(duration_s * 1000)}
    if group := getattr(request, "group_id", "") or getattr(getattr(request, "owner", None), "group_id", ""):
        fields["group"] = group
    found = [
        f"{topic_id_text(entry.topic_id)}-{entry.partition}"
        for entry in getattr(request, "partitions", ())
        if isinstance(getattr(entry, "topic_id", None), bytes)
    ]
    if found:
        fields["partitions"] = ",".join(found[:LOGGED_PARTITIONS_LIMIT])
    with log_fields(**fields):
        call_log.debug("%s was answered", path)


def begin_span(tracer: Tracer | None, path: str, traceparent: str) -> Span | None:
    """The span of a served call in its caller's trace. The call has its own context, so other work stays out of it."""
    if not is_sampled(traceparent):
        return None
    service, _, name = path.partition("/")
    span = None
    if tracer is not None:
        attributes = {"rpc.system": "grpc", "rpc.service": f"kshare.v1.{service}", "rpc.method": name}
        span = tracer.begin(path, attributes, parent=traceparent)
    current_traceparent.set(traceparent if span is None else span.traceparent)
    return span


class _ServedCall:
    """One call, from its request to its answer frame."""

    __slots__ = (
        *("_answer", "_caller", "_handler", "_header", "_method", "_reply", "_request", "_server", "_span"),
        *("_started_at", "_statistics", "is_coroutine"),
    )

    def __init__(
        self,
        server: CallServer,
        header: FrameHeader,
        method: Method[Any, Any],
        handler: Handler,
        is_coroutine: bool,
        reply: Callable[[bytes], None],
        caller: Caller,
    ) -> None:
        self._server = server
        self._caller = caller
        self._header = header
        self._method = method
        self._handler = handler
        self.is_coroutine = is_coroutine
        self._reply = reply
        self._answer = FrameHeader(correlation_id=header.correlation_id)
        self._request: Any = None
        self._span: Span | None = None

    def begin(self, payload: memoryview) -> Awaitable[Any] | None:
        """Calls the handler with the caller's request id and trace set; None: the call failed and was answered."""
        header = self._header
        statistics = self._statistics = self._server.statistics.of_served(header.method)
        self._started_at = statistics.started(self._server.statistics.now())
        if header.request_id:
            current_request_id.set(header.request_id[:REQUEST_ID_LIMIT])
        if header.traceparent:
            self._span = begin_span(self._server.tracer, header.method, header.traceparent)
        try:
            self._request = self._method.request_type.FromString(header.message)
            if self._caller.roles is not EVERY_ROLE:
                check_claimed_role(self._request, self._caller)
            return self._handler(self._request, payload)
        except Exception as error:
            self.failed(error)
            return None

    def answered(self, result: Message | tuple[Message, Payload]) -> None:
        """The handler is done."""
        try:
            message, payload = result if isinstance(result, tuple) else (result, ())
            self._answer.message = message.SerializeToString()
        except Exception as error:
            self.failed(error)
            return
        duration_s = self._server.statistics.now() - self._started_at
        if self._method.is_audited:
            self._audit(message)
        self._end(payload, duration_s)
        log_call(self._header.method, self._request, duration_s)

    def failed(self, error: BaseException) -> None:
        """The handler raised, or the request could not be decoded."""
        statistics, address = self._statistics, self._server.address
        if isinstance(error, DecodeError) and self._request is None:
            statistics.failed(MALFORMED)
            self._answer.failure = f"the request is not a valid {self._method.request_type.__name__}: {error}"
        elif isinstance(error, RoleNotHeld):
            statistics.failed(DENIED)
            self._answer.failure = str(error)
            if self._server.audit is not None:
                self._server.audit.denial(self._header.method, self._caller)
        elif isinstance(error, asyncio.CancelledError):
            statistics.failed(STOPPED)
            self._answer.failure = f"{REFUSED_PREFIX}the server at {address} stopped before it could answer"
        else:
            statistics.failed(HANDLER_FAILED)
            self._answer.failure = f"{type(error).__name__}: {error}"
            self._server.on_handler_error(self._header.method, error)
        if self._method.is_audited:
            self._audit(None)
        self._end((), self._server.statistics.now() - self._started_at)

    def _audit(self, response: Message | None) -> None:
        if self._server.audit is not None:
            self._server.audit.operation(self._method, self._request, self._caller, response, self._answer.failure)

    def _end(self, payload: Payload, duration_s: float) -> None:
        self._reply(_checked_frame(self._answer, payload))
        self._statistics.ended(duration_s, "" if self._span is None else self._span.traceparent)
        if self._span is not None:
            self._span.end(self._answer.failure)


class Audit(Protocol):
    """The audit log of calls (kshare_servicekit.call_audit)."""

    def operation(
        self, method: Method[Any, Any], request: Message | None, caller: Caller, response: Message | None, failure: str
    ) -> None: ...

    def denial(self, path: str, caller: Caller) -> None: ...


class HoldingCaller(Protocol):
    """A connection that can hold calls back."""

    def start_held(self) -> None: ...


class CallServer:
    """The calls of one server; see the module's text."""

    def __init__(
        self,
        services: Sequence[Service],
        on_handler_error: HandlerError,
        statistics: CallStatistics | None = None,
        tracer: Tracer | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.audit = audit
        self.lines = BoundedLog(call_log)
        """The log lines that callers cause with what is no call."""
        self.services = services
        self.statistics = statistics or CallStatistics()
        self.on_handler_error = on_handler_error
        self.address = ""
        self.is_stopping = False
        self.tracer = tracer
        self._handlers: dict[str, tuple[Method[Any, Any], Handler, bool]] = {
            method.path: (method, handler, is_coroutine_handler(handler))
            for service in services
            for method, handler in service.handlers.items()
        }
        limits = [service.unread_answers_bytes for service in services if service.unread_answers_bytes is not None]
        self.unread_answers_bytes = min(limits, default=None)
        self.unsent_bytes = 0
        """Bytes of answers that all connections together have not sent yet."""
        self._letting_go: asyncio.Handle | None = None
        self.holding: dict[HoldingCaller, None] = {}
        """Connections with held calls, which wait until callers have read more."""
        self._under_way: dict[asyncio.Future[Any], None] = {}
        self._not_begun = 0
        """Calls whose task has not begun; a new call must not overtake them."""

    def has_long_answer(self, path: str) -> bool:
        found = self._handlers.get(path)
        return found is not None and found[0].has_long_answer

    def may_wait_long(self, path: str) -> bool:
        found = self._handlers.get(path)
        return found is not None and found[0].may_wait_long

    def let_go_soon(self) -> None:
        """Schedules a start of held calls in the next turn of the event loop, because callers have read something."""
        if self._letting_go is None:
            self._letting_go = asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        self._letting_go = None
        for caller in list(self.holding):
            caller.start_held()

    def start(
        self,
        header: FrameHeader,
        payload: memoryview,
        reply: Callable[[bytes], None],
        caller: Caller = ANYBODY,
    ) -> None:
        """Begins a call; `reply` gets its answer frame.

        Calls begin in the order in which they are started.
        """
        found = self._handlers.get(header.method)
        text = self._refusal(header.method, found, caller)
        if found is None or text:
            reply(_checked_frame(FrameHeader(correlation_id=header.correlation_id, failure=text), ()))
            return
        call = _ServedCall(self, header, *found, reply, caller)
        if call.is_coroutine or self._not_begun:
            self._not_begun += 1
            task = asyncio.get_running_loop().create_task(self._run(call, payload))
            self._under_way[task] = None
            task.add_done_callback(self._under_way.pop)
            return
        context = copy_context()
        pending = context.run(call.begin, payload)
        if pending is None:
            return
        assert isinstance(pending, asyncio.Future), f"the handler of {header.method} returned no Future"
        self._under_way[pending] = None
        when_ended(pending, lambda pending: context.copy().run(self._ended, call, pending))

    def _refusal(self, path: str, found: tuple[Method[Any, Any], Handler, bool] | None, caller: Caller) -> str:
        """Why a call does not begin; empty if it does."""
        if self.is_stopping:
            return f"{NOT_STARTED_PREFIX}the server at {self.address} is stopping"
        if found is None:
            return f"the server at {self.address} has no method {path!r}"
        allowed = found[0].callers
        roles = caller.roles
        if roles is EVERY_ROLE or not allowed or not roles.isdisjoint(allowed):
            return ""
        self.statistics.of_served(path).failed(DENIED)
        if self.audit is not None:
            self.audit.denial(path, caller)
        held = ", ".join(sorted(roles)) or "no role"
        return (
            f"{path} may be called by {', '.join(allowed)}; the caller's certificate is for {held} (kshare://role/...)"
        )

    async def _run(self, call: _ServedCall, payload: memoryview) -> None:
        self._not_begun -= 1
        pending = call.begin(payload)
        if pending is None:
            return
        try:
            result = await pending
        except (asyncio.CancelledError, Exception) as error:
            call.failed(error)
        else:
            call.answered(result)

    def _ended(self, call: _ServedCall, pending: asyncio.Future[Any]) -> None:
        self._under_way.pop(pending, None)
        if pending.cancelled():
            call.failed(asyncio.CancelledError())
        elif (error := pending.exception()) is not None:
            call.failed(error)
        else:
            call.answered(pending.result())

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the current task as a call in flight: a stop waits for this block, and cancels it after the grace."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = None
        try:
            yield
        finally:
            del self._under_way[task]

    async def finish(self, grace_ms: int) -> None:
        """Refuses new calls, waits for those in flight, and cancels the remaining ones after `grace_ms`."""
        self.is_stopping = True
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=grace_ms / 1000)
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=FLUSH_AT_STOP_MS / 1000)


def refused_frame(header: FrameHeader, text: str) -> bytes:
    """The answer to a call that does not begin."""
    return encode_frame(FrameHeader(correlation_id=header.correlation_id, failure=f"{NOT_STARTED_PREFIX}{text}"), ())


def _checked_frame(header: FrameHeader, payload: Payload) -> bytes:
    frame = encode_frame(header, payload)
    if len(frame) <= FRAME_BYTES_LIMIT:
        return frame
    failure = f"the answer's {len(frame)} bytes are more than a frame's {FRAME_BYTES_LIMIT}"
    return encode_frame(FrameHeader(correlation_id=header.correlation_id, failure=failure))
