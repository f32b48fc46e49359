"""The network of `--single-process`: the same port inside one event loop, with nothing between caller and handler.

Messages are handed over as they are, so neither side may change one that it sent or was given. As between processes, a
call runs in a task of its own and to its end even when its caller has stopped waiting; errors are those that the gRPC
network would raise. `traced` gives a node's own view of the network: its tracer records the calls that it serves.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message

from kshare_core.tracing import Tracer, current_traceparent
from kshare_rpc.call_server import HandlerError, begin_span, log_call, log_handler_error
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
)

FIRST_PICKED_PORT = 50_000
"""Where the numbers start that stand for port 0."""

_Result = tuple[Any, memoryview]
_NO_PAYLOAD = memoryview(b"")


class InProcessNetwork:
    """A `Network` of one event loop. Addresses are only names, "host:port" like everywhere."""

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
        """Takes the address (port 0: one that is free); OSError where somebody has it."""
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
        """Who serves the address now."""
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
        self._handlers: dict[str, Handler] = {
            method.path: handler for service in services for method, handler in service.handlers.items()
        }
        self._on_handler_error = on_handler_error
        self._release = release
        self._stopping = False
        self._under_way: dict[asyncio.Task[_Result], None] = {}

    @property
    def address(self) -> str:
        return self._address

    def start_call(self, method: Method[Any, Any], request: Message, payload: memoryview) -> asyncio.Task[_Result]:
        """The call's task; it raises CallFailed or one of its kinds."""
        if self._stopping:
            raise CallNotStarted(f"{method.path}: the server at {self._address} is stopping")
        handler = self._handlers.get(method.path)
        if handler is None:
            raise CallFailed(f"the server at {self._address} has no method {method.path!r}")
        task = asyncio.get_running_loop().create_task(self._run(method.path, handler, request, payload))
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)
        return task

    async def stop(self, grace_ms: int) -> None:
        if self._stopping:
            return
        self._stopping = True
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=grace_ms / 1000)
        rest = list(self._under_way)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self._release(self._address)

    async def _run(self, path: str, handler: Handler, request: Message, payload: memoryview) -> _Result:
        statistics, now = self._statistics.of_served(path), self._statistics.now
        started_at = statistics.started(now())
        traceparent = current_traceparent.get()
        span = begin_span(self._tracer, path, traceparent) if traceparent else None
        problem = ""
        try:
            result = await handler(request, payload)
            log_call(path, request, now() - started_at)
        except asyncio.CancelledError:
            statistics.failed(STOPPED)
            problem = f"{path}: the server at {self._address} stopped before it could answer"
            raise ChannelUnavailable(problem) from None
        except Exception as error:
            statistics.failed(HANDLER_FAILED)
            self._on_handler_error(path, error)
            problem = f"{path} at {self._address}: {type(error).__name__}: {error}"
            raise CallFailed(problem) from error
        finally:
            statistics.ended(now() - started_at)
            if span is not None:
                span.end(problem)
        message, pieces = result if isinstance(result, tuple) else (result, ())
        return message, _joined(pieces)


class InProcessChannel:
    """A `Channel` to whoever serves the address when a call is made."""

    def __init__(self, network: InProcessNetwork, address: str) -> None:
        self._network = network
        self._address = address
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._closed = False

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        if self._closed:
            raise ChannelUnavailable(f"the channel to {self._address} is closed")
        server = self._network.server(self._address)
        if server is None:
            raise CallNotStarted(f"{method.path}: nobody serves {self._address}")
        task = server.start_call(method, request, _joined(payload))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Response, memoryview]] = loop.create_future()
        self._waiting[answer] = None
        task.add_done_callback(partial(_hand_over, answer))
        path = method.path
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
            answer.set_exception(CallTimeout(f"{path} at {self._address} gave no answer in {timeout_ms} ms"))


def _hand_over(answer: asyncio.Future[Any], task: asyncio.Task[_Result]) -> None:
    """Gives a call's result to its caller, if that still waits."""
    # Asked for in any case: a failure that nobody waits for was logged by the server and is no news to asyncio.
    error = None if task.cancelled() else task.exception()
    if answer.done():
        return
    if task.cancelled():
        answer.set_exception(ChannelUnavailable("the call was cancelled before it began"))
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def _joined(pieces: Payload) -> memoryview:
    """The payload in one piece; a single one is not copied."""
    if not pieces:
        return _NO_PAYLOAD
    if len(pieces) == 1:
        return memoryview(pieces[0])
    return memoryview(b"".join(pieces))
