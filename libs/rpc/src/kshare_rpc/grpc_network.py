"""The network between processes: gRPC, with one persistent stream of frames from each caller to each address.

A `Channel` keeps one `Exchange` stream open and puts all its calls on it, told apart by correlation ids; that costs a
third of a gRPC call each. Per channel one task runs: it opens the stream when there is something to send, reads
answers, and has a second task that writes. When the stream is lost, every call on it fails with ChannelUnavailable, and
the next call opens a new one, after a short back-off so that a dead address is not hammered.

A server answers every method in two forms: on the stream, and unary (typed messages, for grpcurl and any other client;
a payload travels in the message's `payload` field). Every call runs in a task of its own, so a slow one keeps nobody
waiting; when CALLS_PER_STREAM_LIMIT are under way the stream is not read until one ends, and gRPC's flow control holds
the caller back. A call runs to its end even when its caller has gone or has stopped waiting: what it does to the role's
state must not depend on where it was cut off.

A frame that is garbled ends its stream, because what follows cannot be trusted. An exception that leaves a handler is
answered as a failure and told to `on_handler_error`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kshare_rpc.frames import FRAME_BYTES_LIMIT, FrameError, decode_frame, encode_frame
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.network import (
    CallFailed,
    CallTimeout,
    ChannelUnavailable,
    Handler,
    Method,
    Payload,
    Request,
    Response,
    Service,
)

CALLS_PER_STREAM_LIMIT = 16_384
"""Calls under way that a server takes from one stream."""
CALLS_PER_CHANNEL_LIMIT = 8_192
"""Calls under way that a channel takes; another one fails with ChannelUnavailable and nothing is sent."""
RECONNECT_INTERVAL_MS = 100
HEALTH_INTERVAL_MS = 1_000
FLUSH_AT_STOP_MS = 200
"""How long a stopping server lets streams and unary calls send what they have after the last handler ended."""

PACKAGE = "kshare.v1"
REFUSED_PREFIX = "refused: "
"""A failure that starts so means: the call did not start, and calling again, here or elsewhere, may help."""

_COMMON_OPTIONS = (
    ("grpc.max_send_message_length", FRAME_BYTES_LIMIT),
    ("grpc.max_receive_message_length", FRAME_BYTES_LIMIT),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
_CHANNEL_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_INTERVAL_MS),
    ("grpc.max_reconnect_backoff_ms", 2 * RECONNECT_INTERVAL_MS),
    # This one is also the time that one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    # Two processes on one port would share its connections without a word.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

HandlerError = Callable[[str, BaseException], None]
"""Told of an exception that left a handler: the method's path and the exception."""


def log_handler_error(path: str, error: BaseException) -> None:
    logging.getLogger(__name__).error("%s failed: %r", path, error, exc_info=error)


class GrpcNetwork:
    """A `Network` between processes. Addresses are "host:port"."""

    def __init__(self, *, on_handler_error: HandlerError = log_handler_error) -> None:
        self._on_handler_error = on_handler_error

    def connect(self, address: str) -> GrpcChannel:
        return GrpcChannel(address)

    async def serve(self, address: str, services: Sequence[Service]) -> GrpcServer:
        """Listens on `address` (port 0: any free one); OSError where that is not possible."""
        server = GrpcServer(services, self._on_handler_error)
        await server.start(address)
        return server


class _Call(Generic[Response]):
    """A call that waits for its answer."""

    __slots__ = ("frame", "future", "method", "timer")

    def __init__(
        self, method: Method[Any, Response], frame: bytes, future: asyncio.Future[tuple[Response, memoryview]]
    ) -> None:
        self.method = method
        self.frame: bytes | None = frame
        self.future = future


class GrpcChannel:
    """A `Channel` over one stream; see the module's text."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._calls: dict[int, _Call[Any]] = {}
        self._unsent: deque[int] = deque()
        self._correlation_ids = itertools.count(1)
        self._wake: asyncio.Future[None] | None = None
        self._grpc_channel: grpc.aio.Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        if self._closed:
            raise ChannelUnavailable(f"the channel to {self._address} is closed")
        if len(self._calls) >= CALLS_PER_CHANNEL_LIMIT:
            raise ChannelUnavailable(f"{CALLS_PER_CHANNEL_LIMIT} calls to {self._address} are under way already")
        correlation_id = next(self._correlation_ids)
        header = FrameHeader(correlation_id=correlation_id, method=method.path, message=request.SerializeToString())
        frame = encode_frame(header, payload)
        if len(frame) > FRAME_BYTES_LIMIT:
            raise CallFailed(f"{method.path}: {len(frame)} bytes are more than a frame's {FRAME_BYTES_LIMIT}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Response, memoryview]] = loop.create_future()
        self._calls[correlation_id] = _Call(method, frame, future)
        self._unsent.append(correlation_id)
        if self._wake is not None:
            if not self._wake.done():
                self._wake.set_result(None)
        elif self._task is None:
            self._task = loop.create_task(self._run(), name=f"channel-{self._address}")
        timer = loop.call_later(timeout_ms / 1000, self._time_out, correlation_id, timeout_ms)
        try:
            return await future
        finally:
            timer.cancel()
            self._calls.pop(correlation_id, None)

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all(f"the channel to {self._address} was closed")
        if self._grpc_channel is not None:
            await self._grpc_channel.close()

    def _time_out(self, correlation_id: int, timeout_ms: int) -> None:
        call = self._calls.pop(correlation_id, None)
        if call is not None and not call.future.done():
            text = f"{call.method.path} at {self._address} gave no answer in {timeout_ms} ms"
            call.future.set_exception(CallTimeout(text))

    async def _run(self) -> None:
        """Opens a stream whenever there is something to send; runs as long as the channel is open."""
        self._grpc_channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        while True:
            await self._work()
            service = self._calls[self._unsent[0]].method.service
            exchange: Any = self._grpc_channel.stream_stream(f"/{PACKAGE}.{service}/Exchange")
            await self._exchange(exchange(), service)
            await asyncio.sleep(RECONNECT_INTERVAL_MS / 1000)

    async def _exchange(self, stream: Any, service: str) -> None:
        """Carries calls of any service on the stream of one, until it ends and all that wait have failed."""
        writer = asyncio.get_running_loop().create_task(self._write(stream), name=f"channel-{self._address}-writer")
        try:
            reason = await self._read(stream, service)
            # Before anything else runs: a call that is made from now on belongs to the next stream.
            self._fail_all(f"the stream to {self._address} was lost: {reason}")
        finally:
            writer.cancel()
            stream.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _read(self, stream: Any, service: str) -> str:
        """Hands out answers until the stream ends; returns why it did."""
        try:
            while (data := await stream.read()) is not grpc.aio.EOF:
                self._answered(data)
            return "the other side ended it"
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._fail_unserved(service)
            return f"{error.code().name} {error.details()}"
        except FrameError as error:
            return f"the answer is no frame: {error}"

    async def _write(self, stream: Any) -> None:
        try:
            while True:
                await self._work()
                call = self._calls.get(self._unsent.popleft())
                if call is not None and call.frame is not None:
                    frame, call.frame = call.frame, None
                    await stream.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream ended; its reader knows why

    async def _work(self) -> None:
        """Returns when a call that somebody still waits for is to be sent."""
        while True:
            while self._unsent:
                if self._unsent[0] in self._calls:
                    return
                self._unsent.popleft()
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    def _answered(self, data: bytes) -> None:
        header, payload = decode_frame(data)
        call = self._calls.get(header.correlation_id)
        if call is None or call.future.done():
            return  # nobody waits any more
        if header.failure:
            kind = ChannelUnavailable if header.failure.startswith(REFUSED_PREFIX) else CallFailed
            call.future.set_exception(kind(f"{call.method.path} at {self._address}: {header.failure}"))
            return
        try:
            call.future.set_result((call.method.response_type.FromString(header.message), payload))
        except DecodeError as error:
            text = f"{call.method.path} at {self._address}: the answer is no {call.method.response_type.__name__}"
            call.future.set_exception(CallFailed(f"{text}: {error}"))

    def _fail_unserved(self, service: str) -> None:
        """Fails the calls of a service that the other side does not have, for good."""
        for call in self._calls.values():
            if call.method.service == service and not call.future.done():
                text = f"the server at {self._address} has no method {call.method.path!r}"
                call.future.set_exception(CallFailed(text))

    def _fail_all(self, text: str) -> None:
        calls, self._calls = self._calls, {}
        self._unsent.clear()
        for call in calls.values():
            if not call.future.done():
                call.future.set_exception(ChannelUnavailable(f"{call.method.path}: {text}"))


class GrpcServer:
    """A `Server` of gRPC services, with health and reflection; made by `GrpcNetwork.serve`."""

    def __init__(self, services: Sequence[Service], on_handler_error: HandlerError) -> None:
        self._services = services
        self._on_handler_error = on_handler_error
        self._handlers: dict[str, tuple[Method[Any, Any], Handler]] = {
            method.path: (method, handler) for service in services for method, handler in service.handlers.items()
        }
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        self._health_task: asyncio.Task[None] | None = None
        self._address = ""
        self._stopping = False
        self._under_way: dict[asyncio.Task[Any], None] = {}
        self._streams: dict[_ServerStream, None] = {}

    @property
    def address(self) -> str:
        return self._address

    async def start(self, address: str) -> None:
        for service in self._services:
            name = f"{PACKAGE}.{service.name}"
            self._server.add_generic_rpc_handlers((self._rpc_handlers(name, service),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [f"{PACKAGE}.{service.name}" for service in self._services]
        reflection.enable_server_reflection(
            [*names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME], self._server
        )
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            text = f"cannot listen on {address!r}: the port is taken, or the host is not this machine's ({error})"
            raise OSError(errno.EADDRINUSE, text) from error
        self._address = f"{address.rpartition(':')[0]}:{port}"
        await self._refresh_health()
        await self._server.start()
        self._health_task = asyncio.get_running_loop().create_task(self._watch_health(), name="health")

    async def stop(self, grace_ms: int) -> None:
        if self._stopping:
            return
        self._stopping = True
        await self._health.enter_graceful_shutdown()
        if self._health_task is not None:
            self._health_task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=grace_ms / 1000)
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=FLUSH_AT_STOP_MS / 1000)
        for stream in list(self._streams):
            stream.finish()
        await self._server.stop(FLUSH_AT_STOP_MS / 1000)

    async def serve_frame(self, header: FrameHeader, payload: memoryview) -> bytes:
        """The frame that answers a frame."""
        answer = FrameHeader(correlation_id=header.correlation_id)
        answer_payload: Payload = ()
        found = self._handlers.get(header.method)
        if self._stopping:
            answer.failure = f"{REFUSED_PREFIX}the server at {self._address} is stopping"
        elif found is None:
            answer.failure = f"the server at {self._address} has no method {header.method!r}"
        else:
            method, handler = found
            try:
                request = method.request_type.FromString(header.message)
                result = await handler(request, payload)
                message, answer_payload = result if isinstance(result, tuple) else (result, ())
                answer.message = message.SerializeToString()
            except DecodeError as error:
                answer.failure = f"the request is no {method.request_type.__name__}: {error}"
            except asyncio.CancelledError:
                answer.failure = f"{REFUSED_PREFIX}the server at {self._address} stopped before it could answer"
            except Exception as error:
                answer.failure = f"{type(error).__name__}: {error}"
                self._on_handler_error(header.method, error)
        return _checked_frame(answer, answer_payload)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a call in a task that `stop` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = None
        task.add_done_callback(self._under_way.pop)

    def _rpc_handlers(self, name: str, service: Service) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._unary(method, handler),
                request_deserializer=method.request_type.FromString,
                response_serializer=method.response_type.SerializeToString,
            )
            for method, handler in service.handlers.items()
        }
        handlers["Exchange"] = grpc.stream_stream_rpc_method_handler(self._serve_stream)
        return grpc.method_handlers_generic_handler(name, handlers)

    def _unary(self, method: Method[Any, Any], handler: Handler) -> Callable[[Any, Any], Awaitable[Message]]:
        async def serve(request: Any, context: Any) -> Message:
            if self._stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"the server at {self._address} is stopping")
            payload = b""
            if method.has_payload and "payload" in method.request_type.DESCRIPTOR.fields_by_name:
                payload = request.payload
                request.ClearField("payload")
            task = asyncio.current_task()
            assert task is not None
            self._under_way[task] = None
            try:
                result = await handler(request, memoryview(payload))
            except Exception as error:
                self._on_handler_error(method.path, error)
                await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
                raise
            finally:
                del self._under_way[task]
            message, pieces = result if isinstance(result, tuple) else (result, ())
            return _with_payload(message, pieces)

        return serve

    async def _serve_stream(self, _: Any, context: Any) -> None:
        stream = _ServerStream(self, context)
        self._streams[stream] = None
        try:
            await stream.run()
        finally:
            del self._streams[stream]

    async def _watch_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_MS / 1000)
            await self._refresh_health()

    async def _refresh_health(self) -> None:
        statuses = {f"{PACKAGE}.{service.name}": service.healthy() for service in self._services}
        statuses[""] = all(statuses.values())
        for name, healthy in statuses.items():
            status = health_pb2.HealthCheckResponse
            await self._health.set(name, status.SERVING if healthy else status.NOT_SERVING)


class _ServerStream:
    """One `Exchange` stream at the server."""

    def __init__(self, server: GrpcServer, context: Any) -> None:
        self._server = server
        self._context = context
        self._answers: deque[bytes] = deque()
        self._writing = False
        self._ended = False
        self._under_way = 0
        self._ebb: asyncio.Future[None] | None = None
        """Done when fewer calls are under way."""
        self._task = asyncio.current_task()
        self._finishing = False

    def finish(self) -> None:
        """Ends the stream in order: what was written before reaches the caller."""
        self._finishing = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        try:
            while (data := await self._context.read()) is not grpc.aio.EOF:
                header, payload = decode_frame(data)
                self._under_way += 1
                self._server.start_task(self._serve(header, payload))
                await self._below(CALLS_PER_STREAM_LIMIT)
            await self._below(1)  # the caller ended its side, and still waits for what is under way
        except FrameError as error:
            logging.getLogger(__name__).warning("%s sent what is no frame: %s", self._context.peer(), error)
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            if not self._finishing:
                raise
        finally:
            self._ended = True

    async def _below(self, limit: int) -> None:
        while self._under_way >= limit:
            self._ebb = asyncio.get_running_loop().create_future()
            await self._ebb

    async def _serve(self, header: FrameHeader, payload: memoryview) -> None:
        self._answers.append(await self._server.serve_frame(header, payload))
        if not self._writing:
            await self._write()

    async def _write(self) -> None:
        """Sends what there is to send; whoever comes first does it for all, because gRPC takes one at a time."""
        self._writing = True
        try:
            while self._answers:
                frame = self._answers.popleft()
                if not self._ended:
                    await self._context.write(frame)
                self._under_way -= 1
                if self._ebb is not None and not self._ebb.done():
                    self._ebb.set_result(None)
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            self._ended = True  # the caller has gone; `run` is cancelled by gRPC
            self._answers.clear()
        finally:
            self._writing = False


def _with_payload(message: Any, pieces: Payload) -> Message:
    """The unary form of an answer: a copy with the payload in it, because the message is still its handler's."""
    whole = message
    if pieces:
        whole = type(message)()
        whole.CopyFrom(message)
        whole.payload = b"".join(pieces)
    filled: Message = whole
    return filled


def _checked_frame(header: FrameHeader, payload: Payload) -> bytes:
    frame = encode_frame(header, payload)
    if len(frame) <= FRAME_BYTES_LIMIT:
        return frame
    failure = f"the answer's {len(frame)} bytes are more than a frame's {FRAME_BYTES_LIMIT}"
    return encode_frame(FrameHeader(correlation_id=header.correlation_id, failure=failure))
