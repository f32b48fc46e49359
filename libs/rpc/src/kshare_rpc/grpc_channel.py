"""The client side of calls between processes: one persistent stream of frames to an address.

A `GrpcChannel` multiplexes all its calls on one `Exchange` stream by correlation ids. The first call opens the stream.
When it is lost, every call on it fails with ChannelUnavailable. The next call opens a new one, after a short back-off
that protects a dead address from a retry loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import secrets
import ssl
from collections.abc import Callable
from typing import Any, Generic
from urllib.parse import unquote

import h2.events
from google.protobuf.message import DecodeError

from kshare_core.log_fields import current_request_id
from kshare_core.tracing import current_traceparent
from kshare_rpc.call_statistics import CallStatistics
from kshare_rpc.exchange.caller_streams import CallerStream
from kshare_rpc.exchange.frames import FRAME_BYTES_LIMIT, FrameError, decode_frame, encode_frame
from kshare_rpc.exchange.tls import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.http2.exchange import Http2Exchange, status_text
from kshare_rpc.local_sockets import connected_socket
from kshare_rpc.names import LookUp, look_up
from kshare_rpc.network import (
    CallFailed,
    CallNotStarted,
    CallTimeout,
    ChannelUnavailable,
    ConnectTimeout,
    Method,
    Payload,
    Request,
    Response,
)

CALLS_PER_CHANNEL_LIMIT = 8_192
"""The calls in flight of a channel at most; another call fails with ChannelUnavailable and nothing is sent."""
LONG_WAITS_PER_CHANNEL_LIMIT = 8_192
"""The same for calls that may wait long (`Method.may_wait_long`). Clients decide how many there are, and they must not
keep out commits, heartbeats and the catalog, nor a Fetch without a wait, which ends the wait of another."""
RECONNECT_INTERVAL_MS = 100
CONNECT_TIMEOUT_MS = 1_000
"""The timeout of one connection attempt. A new attempt finds a process that was restarted elsewhere, or whose address
was gone for a while: the kernel repeats an unanswered attempt only after 1, 3 and 7 s."""

PACKAGE = "kshare.v1"
REFUSED_PREFIX = "refused: "
"""The prefix of failures of a stopping server: a retry, here or elsewhere, may help."""
NOT_STARTED_PREFIX = REFUSED_PREFIX + "not started: "
"""The prefix of those failures whose call had no effect."""


class ClientExchange(Http2Exchange):
    """The connection of a channel, with its one stream."""

    def __init__(
        self,
        address: str,
        service: str,
        caller_stream: CallerStream,
        on_message: Callable[[memoryview], None],
        on_lost: Callable[[ClientExchange, str], None],
    ) -> None:
        super().__init__(client_side=True)
        self._address = address
        self._service = service
        self._caller_stream = caller_stream
        self._on_message = on_message
        self._on_lost = on_lost
        self._stream_id = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._stream_id = self._frames.next_stream_id()
        self._frames.send_headers(
            self._stream_id,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{PACKAGE}.{self._service}/Exchange"),
                (":authority", self._address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                self._caller_stream.header(),
            ],
        )
        self._frames.flush()

    def send_message(self, message: bytes, *, at_once: bool = False) -> None:
        """`at_once`: see `send`."""
        self.send(self._stream_id, message, at_once=at_once)

    def stream_event(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self._frames.open_stream(self._stream_id)
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            headers: dict[str, str] = dict(cast_headers(event.headers))
            if headers.get(":status", "200") != "200":
                self.give_up(f"HTTP status {headers[':status']}")
            elif "grpc-status" in headers:
                text = status_text(headers["grpc-status"], unquote(headers.get("grpc-message", "")))
                self.give_up("the peer ended it" if headers["grpc-status"] == "0" else text)
        elif isinstance(event, h2.events.StreamReset):
            self.give_up(f"the peer reset it (error code {event.error_code})")
        elif isinstance(event, h2.events.StreamEnded):
            self.give_up("the peer ended it")

    def stream_message(self, stream_id: int, message: memoryview) -> None:
        self._on_message(message)

    def stream_failed(self, stream_id: int, error: FrameError) -> None:
        self.give_up(f"the response is not a valid frame: {error}")

    def lost(self, reason: str) -> None:
        self._on_lost(self, reason)


def cast_headers(headers: Any) -> list[tuple[str, str]]:
    """Headers as h2 gives them with `header_encoding` set."""
    return [(str(name), str(value)) for name, value in headers or ()]


class _Call(Generic[Response]):
    """A call in flight."""

    __slots__ = ("frame", "future", "method")

    def __init__(
        self, method: Method[Any, Response], frame: bytes, future: asyncio.Future[tuple[Response, memoryview]]
    ) -> None:
        self.method = method
        self.frame: bytes | None = frame
        self.future = future


class GrpcChannel:
    """A `Channel` over one stream; see the module's text."""

    def __init__(
        self,
        address: str,
        statistics: CallStatistics | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        local_sockets: bool = True,
        look_up: LookUp = look_up,
    ) -> None:
        self._address = address
        self._look_up = look_up
        self._tls = tls
        self._has_local_sockets = local_sockets and tls is None
        self._statistics = statistics or CallStatistics()
        self._calls: dict[int, _Call[Any]] = {}
        self._long_waits = 0
        """Calls in flight that may wait long."""
        self._correlation_ids = itertools.count(1)
        self._id = secrets.token_hex(16)
        self._stream_numbers = itertools.count(1)
        self._exchange: ClientExchange | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self._streams_lost = 0

    @property
    def streams_lost(self) -> int:
        return self._streams_lost

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        if self._closed:
            raise ChannelUnavailable(f"the channel to {self._address} is closed")
        waits_long = method.may_wait_long and getattr(request, "max_wait_ms", 1) > 0
        self._check_limit(waits_long=waits_long)
        correlation_id = next(self._correlation_ids)
        header = FrameHeader(
            correlation_id=correlation_id,
            method=method.path,
            message=request.SerializeToString(),
            traceparent=current_traceparent.get(),
            request_id=current_request_id.get(),
        )
        frame = encode_frame(header, payload)
        if len(frame) > FRAME_BYTES_LIMIT:
            raise CallFailed(f"{method.path}: {len(frame)} bytes are more than a frame's {FRAME_BYTES_LIMIT}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Response, memoryview]] = loop.create_future()
        call = self._calls[correlation_id] = _Call(method, frame, future)
        timer = loop.call_later(timeout_ms / 1000, self._time_out, correlation_id, timeout_ms)
        if self._exchange is not None:
            call.frame = None
            self._exchange.send_message(frame, at_once=len(self._calls) == 1)
        elif self._connecting is None:
            self._connecting = loop.create_task(self._connect(), name=f"channel-{self._address}")
        del header, frame  # each is a copy of the request, and the call may wait long
        now, statistics = self._statistics.now, self._statistics.of_made(method.path)
        started_at = statistics.started(now())
        self._long_waits += waits_long
        try:
            return await future
        except CallFailed as failure:
            statistics.failed(type(failure).__name__)
            raise
        finally:
            statistics.ended(now() - started_at)
            timer.cancel()
            self._calls.pop(correlation_id, None)
            self._long_waits -= waits_long

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        exchange = self._exchange
        if exchange is not None:
            await exchange.close("the channel was closed")
        self._fail_all(f"the channel to {self._address} was closed")

    def _check_limit(self, *, waits_long: bool) -> None:
        """ChannelUnavailable if too many calls of this kind are in flight."""
        if waits_long:
            if self._long_waits >= LONG_WAITS_PER_CHANNEL_LIMIT:
                text = f"{LONG_WAITS_PER_CHANNEL_LIMIT} calls that wait for records or members"
                raise ChannelUnavailable(f"{text} at {self._address} are already in flight")
        elif len(self._calls) - self._long_waits >= CALLS_PER_CHANNEL_LIMIT:
            raise ChannelUnavailable(f"{CALLS_PER_CHANNEL_LIMIT} calls to {self._address} are already in flight")

    def _time_out(self, correlation_id: int, timeout_ms: int) -> None:
        call = self._calls.pop(correlation_id, None)
        if call is not None and not call.future.done():
            path, address = call.method.path, self._address
            if call.frame is None:
                failure = CallTimeout(f"{path} at {address} did not respond within {timeout_ms} ms")
            else:  # it is no longer among the calls that a connection sends
                failure = ConnectTimeout(f"{path}: no connection to {address} within {timeout_ms} ms")
            call.future.set_exception(failure)

    async def _connect(self) -> None:
        """Connects and sends the waiting calls; retries while calls wait."""
        while self._calls:
            service = next(iter(self._calls.values())).method.service
            stream = CallerStream(self._id, next(self._stream_numbers))
            exchange = ClientExchange(self._address, service, stream, self._answered, self._lost)
            try:
                await self._reach(exchange)
            except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the last two: a malformed address
                self._fail_all(f"cannot connect to {self._address}: {error or 'no response in time'}")
                await asyncio.sleep(RECONNECT_INTERVAL_MS / 1000)
                continue
            if exchange.is_lost:
                await asyncio.sleep(RECONNECT_INTERVAL_MS / 1000)
                continue
            self._exchange = exchange
            for call in list(self._calls.values()):
                if call.frame is not None:
                    frame, call.frame = call.frame, None
                    exchange.send_message(frame)
            break
        self._connecting = None

    async def _reach(self, exchange: ClientExchange) -> None:
        """Connects over a Unix socket, else to the name's first address that answers; OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        local = connected_socket(self._address) if self._has_local_sockets else None
        if local is not None:
            await loop.create_unix_connection(lambda: exchange, sock=local)
            return
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        hosts = [host]
        if not _is_ip_address(host):
            hosts = list(await self._look_up(host, int(port)))
        for number, each in enumerate(hosts, 1):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000 + (HANDSHAKE_TIMEOUT_S if self._tls else 0)):
                    await loop.create_connection(
                        lambda: exchange,
                        each,
                        int(port),
                        ssl=self._tls,
                        server_hostname=None if self._tls is None else host,
                        ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_TIMEOUT_S,
                        ssl_shutdown_timeout=None if self._tls is None else SHUTDOWN_TIMEOUT_S,
                    )
                return
            except (OSError, TimeoutError):
                if number == len(hosts):
                    raise

    def _lost(self, exchange: ClientExchange, reason: str) -> None:
        self._fail_all(f"the stream to {self._address} was lost: {reason}")
        if exchange is self._exchange:
            self._exchange = None
            if not self._closed:
                self._connecting = asyncio.get_running_loop().create_task(self._connect_later())

    async def _connect_later(self) -> None:
        await asyncio.sleep(RECONNECT_INTERVAL_MS / 1000)
        await self._connect()

    def _answered(self, data: memoryview) -> None:
        header, payload = decode_frame(data)
        call = self._calls.get(header.correlation_id)
        if call is None or call.future.done():
            return  # the caller no longer waits
        if header.failure:
            call.future.set_exception(
                _failure_kind(header.failure)(f"{call.method.path} at {self._address}: {header.failure}")
            )
            return
        try:
            call.future.set_result((call.method.response_type.FromString(header.message), payload))
        except DecodeError as error:
            text = f"{call.method.path} at {self._address}: malformed {call.method.response_type.__name__}"
            call.future.set_exception(CallFailed(f"{text}: {error}"))

    def _fail_all(self, text: str) -> None:
        self._streams_lost += 1
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.future.done():
                kind = ChannelUnavailable if call.frame is None else CallNotStarted
                call.future.set_exception(kind(f"{call.method.path}: {text}"))


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _failure_kind(failure: str) -> type[CallFailed]:
    if failure.startswith(NOT_STARTED_PREFIX):
        return CallNotStarted
    return ChannelUnavailable if failure.startswith(REFUSED_PREFIX) else CallFailed
