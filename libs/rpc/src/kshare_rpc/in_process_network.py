"""The network of `--single-process`: the same port inside one event loop, with direct calls of handlers.

Messages are passed by reference, so neither side may change a message that it sent or received. As between processes, a
call runs to its end even when its caller has stopped waiting, a coroutine handler in its own task; errors are those
that the gRPC network would raise. `traced` gives a node's own view of the network: its tracer records the calls that
it serves.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from logging import DEBUG
from typing import Any

from google.protobuf.message import Message

from kshare_core.tracing import Tracer, current_traceparent
from kshare_fastpath.prompt_future import when_ended
from kshare_rpc.call_server import HandlerError, begin_span, call_log, log_call, log_handler_error
from kshare_rpc.call_statistics import HANDLER_FAILED, STOPPED, CallStatistics
from kshare_rpc.network import (
    CallFailed,
    CallNotStarted,
    CallTimeout,
    ChannelUnavailable,
    Handler,
    Method,
    Payload,
    Request,
    Response,
    Service,
    is_coroutine_handler,
)

FIRST_PICKED_PORT = 50_000
"""The first number that is picked for port 0."""

_Result = tuple[Any, memoryview]
_NO_PAYLOAD = memoryview(b"")


class InProcessNetwork:
    """A `Network` of one event loop. Addresses are only names, in the form "host:port" as everywhere."""

    def __init__(
        self, *, on_handler_error: HandlerError = log_handler_error, statistics: CallStatistics | None = None
    ) -> None:
        self.statistics = statistics or CallStatistics()
        self._servers: dict[str, InProcessServer] = {}
        self._on_handler_error = on_handler_error
        self._next_port = FIRST_PICKED_PORT

    def connect(self, address: str) -> InProcessChannel:
        return InProcessChannel(self, address)

    def traced(self, tracer: Tracer | None) -> TracedNetwork:
        """The same network, for a node whose calls `tracer` records."""
        return TracedNetwork(self, tracer)

    async def serve(self, address: str, services: Sequence[Service], tracer: Tracer | None = None) -> InProcessServer:
        """Serves at the address (port 0: any free one); OSError if it is taken."""
        host, _, port = address.rpartition(":")
        while port == "0" and (address.endswith(":0") or address in self._servers):
            address = f"{host}:{self._next_port}"
            self._next_port += 1
        if address in self._servers:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {address!r}: the port is taken")
        server = InProcessServer(address, services, self._on_handler_error, self._release, self.statistics, tracer)
        self._servers[address] = server
        return server

    def server(self, address: str) -> InProcessServer | None:
        """The server at the address; None if there is none."""
        return self._servers.get(address)

    def _release(self, address: str) -> None:
        del self._servers[address]


class TracedNetwork:
    """A `Network`; see `InProcessNetwork.traced`."""

    def __init__(self, network: InProcessNetwork, tracer: Tracer | None) -> None:
        self._network = network
        self._tracer = tracer
        self.statistics = network.statistics

    def connect(self, address: str) -> InProcessChannel:
        return self._network.connect(address)

    async def serve(self, address: str, services: Sequence[Service]) -> InProcessServer:
        return await self._network.serve(address, services, self._tracer)


class InProcessServer:
    """A `Server` in this event loop; made by `InProcessNetwork.serve`."""

    def __init__(
        self,
        address: str,
        services: Sequence[Service],
        on_handler_error: HandlerError,
        release: Callable[[str], None],
        statistics: CallStatistics,
        tracer: Tracer | None = None,
    ) -> None:
        self._address = address
        self._tracer = tracer
        self._statistics = statistics
        self._handlers: dict[str, tuple[Handler, bool]] = {
            method.path: (handler, is_coroutine_handler(handler))
            for service in services
            for method, handler in service.handlers.items()
        }
        self._on_handler_error = on_handler_error
        self._release = release
        self._stopping = False
        self._under_way: dict[asyncio.Future[Any], None] = {}
        self._not_begun = 0
        """Calls whose task has not begun; a new call must not overtake them."""

    @property
    def address(self) -> str:
        return self._address

    def start_call(
        self, method: Method[Any, Any], request: Message, payload: memoryview, result: asyncio.Future[_Result]
    ) -> None:
        """Begins a call; `result` gets its result, or CallFailed or a subclass, unless the caller stopped waiting.

        Calls begin in the order in which they are started.
        """
        path = method.path
        if self._stopping:
            raise CallNotStarted(f"{path}: the server at {self._address} is stopping")
        found = self._handlers.get(path)
        if found is None:
            raise CallFailed(f"the server at {self._address} has no method {path!r}")
        handler, is_coroutine = found
        if is_coroutine or self._not_begun or current_traceparent.get():
            self._not_begun += 1
            task = asyncio.get_running_loop().create_task(self._run(path, handler, request, payload))
            self._under_way[task] = None
            task.add_done_callback(partial(self._task_ended, result))
        else:
            self._begin_plain(path, handler, request, payload, result)

    def _begin_plain(
        self, path: str, handler: Handler, request: Message, payload: memoryview, result: asyncio.Future[_Result]
    ) -> None:
        statistics, now = self._statistics.of_served(path), self._statistics.now
        started_at = statistics.started(now())
        context = copy_context()

        def ended(begun: asyncio.Future[Any]) -> None:
            self._under_way.pop(begun, None)
            duration_s = now() - started_at
            statistics.ended(duration_s)
            error = asyncio.CancelledError() if begun.cancelled() else begun.exception()
            failure = None if error is None else self._failure(path, error)
            if result.done():
                return
            if failure is not None:
                result.set_exception(failure)
            else:
                result.set_result(_result(begun.result()))
                if call_log.isEnabledFor(DEBUG):
                    context.copy().run(log_call, path, request, duration_s)

        try:
            begun = context.run(handler, request, payload)
            assert isinstance(begun, asyncio.Future), f"the handler of {path} returned no Future"
        except Exception as error:
            begun = asyncio.get_running_loop().create_future()
            begun.set_exception(error)
        self._under_way[begun] = None
        when_ended(begun, ended)

    def _task_ended(self, result: asyncio.Future[_Result], task: asyncio.Task[Any]) -> None:
        """Gives a call's result to its caller, if the caller still waits."""
        self._under_way.pop(task, None)
        # Always retrieved: the server has already reported the failure, so asyncio must not log it as unretrieved.
        error = None if task.cancelled() else task.exception()
        if result.done():
            return
        if task.cancelled():
            result.set_exception(ChannelUnavailable("the call was cancelled before it began"))
        elif error is not None:
            result.set_exception(error)
        else:
            result.set_result(_result(task.result()))

    async def stop(self, grace_ms: int) -> None:
        if self._stopping:
            return
        self._stopping = True
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=grace_ms / 1000)
        rest = list(self._under_way)
        for call in rest:
            call.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self._release(self._address)

    async def _run(self, path: str, handler: Handler, request: Message, payload: memoryview) -> Any:
        self._not_begun -= 1
        statistics, now = self._statistics.of_served(path), self._statistics.now
        started_at = statistics.started(now())
        traceparent = current_traceparent.get()
        span = begin_span(self._tracer, path, traceparent) if traceparent else None
        problem = ""
        try:
            result = await handler(request, payload)
            log_call(path, request, now() - started_at)
        except (asyncio.CancelledError, Exception) as error:
            failure = self._failure(path, error)
            problem = str(failure)
            raise failure from (None if isinstance(error, asyncio.CancelledError) else error)
        finally:
            statistics.ended(now() - started_at, "" if span is None else span.traceparent)
            if span is not None:
                span.end(problem)
        return result

    def _failure(self, path: str, error: BaseException) -> CallFailed:
        """The caller's exception for an exception that left a handler; counts and reports the latter."""
        statistics = self._statistics.of_served(path)
        if isinstance(error, asyncio.CancelledError):
            statistics.failed(STOPPED)
            return ChannelUnavailable(f"{path}: the server at {self._address} stopped before it could answer")
        statistics.failed(HANDLER_FAILED)
        self._on_handler_error(path, error)
        failure = CallFailed(f"{path} at {self._address}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


class InProcessChannel:
    """A `Channel` to the server that has the address when a call is made."""

    def __init__(self, network: InProcessNetwork, address: str) -> None:
        self._network = network
        self._address = address
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._closed = False

    @property
    def streams_lost(self) -> int:
        return 0

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        if self._closed:
            raise ChannelUnavailable(f"the channel to {self._address} is closed")
        server = self._network.server(self._address)
        if server is None:
            raise CallNotStarted(f"{method.path}: no server listens on {self._address}")
        path = method.path
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Response, memoryview]] = loop.create_future()
        server.start_call(method, request, _joined(payload) if payload else _NO_PAYLOAD, answer)
        self._waiting[answer] = None
        timer = loop.call_later(timeout_ms / 1000, self._time_out, path, answer, timeout_ms)
        now, statistics = self._network.statistics.now, self._network.statistics.of_made(path)
        started_at = statistics.started(now())
        try:
            return await answer
        except CallFailed as failure:
            statistics.failed(type(failure).__name__)
            raise
        finally:
            statistics.ended(now() - started_at)
            timer.cancel()
            self._waiting.pop(answer, None)

    async def close(self) -> None:
        self._closed = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ChannelUnavailable(f"the channel to {self._address} was closed"))

    def _time_out(self, path: str, answer: asyncio.Future[Any], timeout_ms: int) -> None:
        if not answer.done():
            answer.set_exception(CallTimeout(f"{path} at {self._address} did not respond within {timeout_ms} ms"))


def _result(answer: Any) -> _Result:
    if not isinstance(answer, tuple):
        return answer, _NO_PAYLOAD
    message, pieces = answer
    return message, _joined(pieces)


def _joined(pieces: Payload) -> memoryview:
    """The payload in one piece; a single piece is not copied."""
    if not pieces:
        return _NO_PAYLOAD
    if len(pieces) == 1:
        return memoryview(pieces[0])
    return memoryview(b"".join(pieces))
