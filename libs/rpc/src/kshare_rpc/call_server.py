"""What every form of serving shares: the handlers, the calls under way, and how they end when the server stops.

Every call runs in a task of its own, so a slow one keeps nobody waiting. A call runs to its end even when its caller
has gone or has stopped waiting: what it does to the role's state must not depend on where it was cut off. An exception
that leaves a handler is answered as a failure and told to `on_handler_error`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import DecodeError

from kshare_core.identifiers import topic_id_text
from kshare_core.log_fields import REQUEST_ID_LIMIT, current_request_id, log_fields
from kshare_core.tracing import Span, Tracer, current_traceparent, is_sampled
from kshare_rpc.call_statistics import HANDLER_FAILED, MALFORMED, STOPPED, CallStatistics
from kshare_rpc.frames import FRAME_BYTES_LIMIT, encode_frame
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.grpc_channel import NOT_STARTED_PREFIX, REFUSED_PREFIX
from kshare_rpc.network import Handler, Method, Payload, Service

FLUSH_AT_STOP_MS = 200
"""How long a stopping server lets streams and unary calls send what they have after the last handler ended."""

LOGGED_PARTITIONS_LIMIT = 20
"""Partitions that the line of one call names."""

_log = logging.getLogger(__name__)

HandlerError = Callable[[str, BaseException], None]
"""Told of an exception that left a handler: the method's path and the exception."""


def log_handler_error(path: str, error: BaseException) -> None:
    _log.error("%s failed: %r", path, error, exc_info=error)


def log_call(path: str, request: Any, duration_s: float) -> None:
    """A line at level debug for each call that was answered; it has the client's request id, group and partitions."""
    if not _log.isEnabledFor(logging.DEBUG):
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
        _log.debug("%s was answered", path)


def begin_span(tracer: Tracer | None, path: str, traceparent: str) -> Span | None:
    """A call's part of its caller's trace. It runs in a task of its own, so nobody else's work gets into it."""
    if not is_sampled(traceparent):
        return None
    service, _, name = path.partition("/")
    span = None
    if tracer is not None:
        attributes = {"rpc.system": "grpc", "rpc.service": f"kshare.v1.{service}", "rpc.method": name}
        span = tracer.begin(path, attributes, parent=traceparent)
    current_traceparent.set(traceparent if span is None else span.traceparent)
    return span


class CallServer:
    """The calls of one server; see the module's text."""

    def __init__(
        self,
        services: Sequence[Service],
        on_handler_error: HandlerError,
        statistics: CallStatistics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.services = services
        self._tracer = tracer
        self.statistics = statistics or CallStatistics()
        self.on_handler_error = on_handler_error
        self.address = ""
        self.is_stopping = False
        self._handlers: dict[str, tuple[Method[Any, Any], Handler]] = {
            method.path: (method, handler) for service in services for method, handler in service.handlers.items()
        }
        self._under_way: dict[asyncio.Task[Any], None] = {}

    async def serve_frame(self, header: FrameHeader, payload: memoryview) -> bytes:
        """The frame that answers a frame."""
        answer = FrameHeader(correlation_id=header.correlation_id)
        answer_payload: Payload = ()
        found = self._handlers.get(header.method)
        if self.is_stopping:
            answer.failure = f"{NOT_STARTED_PREFIX}the server at {self.address} is stopping"
        elif found is None:
            answer.failure = f"the server at {self.address} has no method {header.method!r}"
        else:
            answer_payload = await self._serve(header, payload, found, answer)
        return _checked_frame(answer, answer_payload)

    async def _serve(
        self, header: FrameHeader, payload: memoryview, found: tuple[Method[Any, Any], Handler], answer: FrameHeader
    ) -> Payload:
        """Fills `answer` in, and returns its payload."""
        method, handler = found
        answer_payload: Payload = ()
        statistics, now = self.statistics.of_served(header.method), self.statistics.now
        started_at = statistics.started(now())
        if header.request_id:
            current_request_id.set(header.request_id[:REQUEST_ID_LIMIT])
        span = begin_span(self._tracer, header.method, header.traceparent) if header.traceparent else None
        try:
            request = method.request_type.FromString(header.message)
            result = await handler(request, payload)
            message, answer_payload = result if isinstance(result, tuple) else (result, ())
            log_call(header.method, request, now() - started_at)
            answer.message = message.SerializeToString()
        except DecodeError as error:
            statistics.failed(MALFORMED)
            answer.failure = f"the request is no {method.request_type.__name__}: {error}"
        except asyncio.CancelledError:
            statistics.failed(STOPPED)
            answer.failure = f"{REFUSED_PREFIX}the server at {self.address} stopped before it could answer"
        except Exception as error:
            statistics.failed(HANDLER_FAILED)
            answer.failure = f"{type(error).__name__}: {error}"
            self.on_handler_error(header.method, error)
        finally:
            statistics.ended(now() - started_at)
            if span is not None:
                span.end(answer.failure)
        return answer_payload

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a call in a task that the end of the server waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Makes the end of the server wait for the task that runs this block, and cancel it after the grace."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = None
        try:
            yield
        finally:
            del self._under_way[task]

    async def finish(self, grace_ms: int) -> None:
        """Refuses new calls, waits for those under way, cancels what is left after `grace_ms`."""
        self.is_stopping = True
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=grace_ms / 1000)
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=FLUSH_AT_STOP_MS / 1000)


def _checked_frame(header: FrameHeader, payload: Payload) -> bytes:
    frame = encode_frame(header, payload)
    if len(frame) <= FRAME_BYTES_LIMIT:
        return frame
    failure = f"the answer's {len(frame)} bytes are more than a frame's {FRAME_BYTES_LIMIT}"
    return encode_frame(FrameHeader(correlation_id=header.correlation_id, failure=failure))
