"""The server of `Exchange` streams from other roles, on the event loop (see http2).

When CALLS_PER_STREAM_LIMIT calls of a connection are in flight, the connection is not read until one ends: HTTP/2 flow
control then holds the caller back. A garbled frame ends its stream, because the data behind it cannot be trusted.

Calls that may wait long (`Method.may_wait_long`) do not count there, because they would hold back all others for
minutes. They go on after their caller has given them up, so their number can grow beyond the caller's own limit. Above
LONG_WAITS_PER_STREAM_LIMIT another one is refused.

Calls with long answers (`Method.has_long_answer`) begin only while their caller reads. Those of a connection are held
while UNREAD_ANSWERS_BYTES of its answers are unsent. They are also held while any of its answers are unsent and all
connections together exceed the service's limit. So a process holds at most that limit and one answer per connection.
Other calls overtake held calls.

A caller may end its side of a stream after its last call. The stream then ends when all of its calls are answered,
those too that had not started, and their answers are sent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc
import h2.events
import h2.exceptions

from kshare_rpc.call_server import FLUSH_AT_STOP_MS, CallServer, refused_frame
from kshare_rpc.exchange.caller_streams import STREAM_HEADER, CallerStream, CallerStreams, caller_stream_of
from kshare_rpc.exchange.frames import FrameError, decode_frame
from kshare_rpc.exchange.tls import ANYBODY, HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S, ExchangeTls, caller_of
from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader
from kshare_rpc.grpc_channel import cast_headers
from kshare_rpc.http2.exchange import Http2Exchange
from kshare_rpc.local_sockets import every_address_socket, listening_socket

UNREAD_ANSWERS_BYTES = 16 * 1024 * 1024
"""Unsent answers of one connection above which long calls are held. A caller that reads takes them in some 30 ms; the
answers of small calls wait behind them."""
LONG_CALLS_PER_TURN = 4
"""Calls with long answers that one connection begins per turn of the event loop: then their answers are counted."""
CALLS_PER_STREAM_LIMIT = 16_384
"""The calls in flight of one connection at most, without those that may wait long."""
LONG_WAITS_PER_STREAM_LIMIT = 16_384
"""The calls in flight of one connection at most that may wait long."""


class _ServedStream:
    """One stream of a connection."""

    __slots__ = ("caller_ended", "unanswered")

    def __init__(self) -> None:
        self.unanswered = 0
        """Calls that were received and have no answer yet, whether they have started or not."""
        self.caller_ended = False


class ServerExchange(Http2Exchange):
    """One caller's connection."""

    short_first = True

    def __init__(
        self,
        calls: CallServer,
        connections: dict[ServerExchange, None],
        caller_streams: CallerStreams,
        *,
        requires_roles: bool = False,
    ) -> None:
        super().__init__(client_side=False)
        self._caller_streams = caller_streams
        self.caller_stream: CallerStream | None = None
        """The newest of this connection; None: its caller does not say."""
        self._requires_roles = requires_roles
        self._caller = ANYBODY
        self._peer = "localhost"
        self._calls = calls
        self._connections = connections
        self._streams: dict[int, _ServedStream] = {}
        self._waiting: deque[tuple[int, FrameHeader, memoryview]] = deque()
        self._under_way = 0
        self._long_waits = 0
        """The calls under way that may wait long."""
        self._held: deque[tuple[int, FrameHeader, memoryview]] = deque()
        """Held calls: those with long answers that wait until the caller has read more."""
        self._ended_by_caller: dict[int, None] = {}
        """The streams that end with their last answer."""
        self._ending: asyncio.Handle | None = None
        self._counted_unsent = 0
        self._long_begun = 0
        """Calls with long answers that began in this turn of the event loop."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections[self] = None
        peer = transport.get_extra_info("peername")
        host = self._peer = str(peer[0]) if isinstance(peer, tuple) else "localhost"
        tls = transport.get_extra_info("ssl_object")
        self._caller = caller_of(tls, host, is_required=self._requires_roles)
        super().connection_made(transport)

    def stream_event(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._open(event)
        elif isinstance(event, h2.events.StreamEnded) and event.stream_id in self._streams:
            self._streams[event.stream_id].caller_ended = True
            self._ended_by_caller[event.stream_id] = None
            self._end_if_done(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self._forget_stream(event.stream_id or 0)
            self._frames.close_stream(event.stream_id or 0)

    def stream_message(self, stream_id: int, message: memoryview) -> None:
        self._waiting.append((stream_id, *decode_frame(message)))
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.unanswered += 1
        self._start_waiting()

    def stream_failed(self, stream_id: int, error: FrameError) -> None:
        text = "closing a stream of %s, which sent an invalid frame: %s"
        self._calls.lines.warning("invalid frame", text, self._peer, error)
        self._end_stream(stream_id, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def violated(self, reason: str) -> None:
        self._calls.lines.warning("violation", "closing the connection of %s: %s", self._peer, reason)
        self.give_up(reason)

    def lost(self, reason: str) -> None:
        self._connections.pop(self, None)
        self._streams.clear()
        self._ended_by_caller.clear()
        self._waiting.clear()
        self._held.clear()
        self._calls.holding.pop(self, None)
        self.unsent_changed()

    def unsent_changed(self) -> None:
        calls = self._calls
        calls.unsent_bytes += self.unsent_bytes - self._counted_unsent
        calls.statistics.unread_answer_bytes += self.unsent_bytes - self._counted_unsent
        self._counted_unsent = self.unsent_bytes
        if calls.holding:
            calls.let_go_soon()
        if self._ended_by_caller and self._ending is None and not self.has_unsent:
            self._ending = self._loop.call_soon(self._end_those_done)  # not within a write of the frames

    def start_held(self) -> None:
        """Starts held calls as long as the caller reads."""
        while self._held and self._may_answer_long():
            stream_id, header, payload = self._held.popleft()
            self._start(stream_id, header, payload)
        if not self._held:
            self._calls.holding.pop(self, None)

    def _turn_is_over(self) -> None:
        self._long_begun = 0
        if self._held:
            self.start_held()
        if self._waiting and not self.is_lost:
            self._start_waiting()

    def _may_answer_long(self) -> bool:
        calls, unsent = self._calls, self.unsent_bytes
        if self._long_begun >= LONG_CALLS_PER_TURN:
            return False
        if unsent >= UNREAD_ANSWERS_BYTES:
            return False
        return not unsent or calls.unread_answers_bytes is None or calls.unsent_bytes < calls.unread_answers_bytes

    def finish(self) -> None:
        """Ends all streams in order, so that answers written before still reach the caller."""
        for stream_id in list(self._streams):
            self._end_stream(stream_id, grpc.StatusCode.UNAVAILABLE, f"the server at {self._calls.address} stopped")

    def _open(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        assert stream_id is not None
        headers = dict(cast_headers(event.headers))
        path = headers.get(":path", "")
        self._frames.send_headers(stream_id, [(":status", "200"), ("content-type", "application/grpc")])
        self._streams[stream_id] = _ServedStream()
        self._frames.open_stream(stream_id)
        if not path.endswith("/Exchange"):
            text = f"this address serves only Exchange streams; {path} is served at the operations address"
            self._end_stream(stream_id, grpc.StatusCode.UNIMPLEMENTED, text)
        elif STREAM_HEADER in headers:
            self._take_caller_stream(stream_id, headers[STREAM_HEADER])

    def _take_caller_stream(self, stream_id: int, text: str) -> None:
        """Ends the older streams of the caller's channel, or this one where another is newer."""
        try:
            opened = caller_stream_of(text)
        except ValueError as error:
            self._calls.lines.warning("invalid header", "closing a stream of %s: %s", self._peer, error)
            self._end_stream(stream_id, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        if not self._caller_streams.opened(opened):
            self._end_stream(stream_id, grpc.StatusCode.ABORTED, "its caller has a newer stream")
            return
        self.caller_stream = opened
        for other in list(self._connections):
            older = other.caller_stream
            if older is not None and older.channel_id == opened.channel_id and older.number < opened.number:
                other.give_up("its caller has a newer stream")

    def _start_waiting(self) -> None:
        """Starts waiting calls, up to the limit of calls in flight."""
        waiting = self._waiting
        while waiting and self._under_way - self._long_waits < CALLS_PER_STREAM_LIMIT:
            stream_id, header, payload = waiting[0]
            is_long = self._calls.has_long_answer(header.method)
            if is_long and self._long_begun >= LONG_CALLS_PER_TURN:
                break  # later calls also wait for the next turn: calls begin in order
            waiting.popleft()
            if is_long and (self._held or not self._may_answer_long()):
                self._held.append((stream_id, header, payload))
                self._calls.holding[self] = None
            else:
                self._start(stream_id, header, payload)
        assert self._transport is not None
        if waiting:
            self._transport.pause_reading()
        elif not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()

    def _start(self, stream_id: int, header: FrameHeader, payload: memoryview) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            waits_long = self._calls.may_wait_long(header.method)
            if waits_long and self._long_waits >= LONG_WAITS_PER_STREAM_LIMIT:
                self._refuse(stream_id, stream, header)
                return
            self._under_way += 1
            self._long_waits += waits_long
            if self._calls.has_long_answer(header.method):
                self._long_begun += 1
                if self._long_begun == 1:
                    # Two turns on, because handlers begin in the next turn.
                    self._loop.call_soon(self._loop.call_soon, self._turn_is_over)
            self._calls.start(header, payload, partial(self._answer, stream_id, stream, waits_long), self._caller)

    def _refuse(self, stream_id: int, stream: _ServedStream, header: FrameHeader) -> None:
        """Refuses a call that may wait long."""
        stream.unanswered -= 1
        text = f"{LONG_WAITS_PER_STREAM_LIMIT} calls of the caller already wait for records or members"
        self.send(stream_id, refused_frame(header, text))
        if stream.caller_ended:
            self._end_if_done(stream_id)

    def _answer(self, stream_id: int, stream: _ServedStream, waited_long: bool, frame: bytes) -> None:
        """Sends a call's answer; at once if no other call is in flight, whose answer may be waiting already."""
        self._under_way -= 1
        self._long_waits -= waited_long
        stream.unanswered -= 1
        if self._streams.get(stream_id) is stream:  # else the caller has reset it, or has disconnected
            self.send(stream_id, frame, at_once=not self._under_way)
            if stream.caller_ended:
                self._end_if_done(stream_id)
        if self._waiting:
            self._start_waiting()

    def _end_if_done(self, stream_id: int) -> None:
        stream = self._streams[stream_id]
        if stream.caller_ended and not stream.unanswered and not self.has_unsent:
            self._end_stream(stream_id, grpc.StatusCode.OK, "")

    def _end_those_done(self) -> None:
        """Ends the streams whose last answer was unsent before."""
        self._ending = None
        for stream_id in list(self._ended_by_caller):
            if stream_id in self._ended_by_caller:
                self._end_if_done(stream_id)

    def _forget_stream(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self._ended_by_caller.pop(stream_id, None)

    def _end_stream(self, stream_id: int, code: grpc.StatusCode, message: str) -> None:
        self._forget_stream(stream_id)
        self._frames.close_stream(stream_id)
        trailers = [("grpc-status", str(code.value[0]))]
        if message:
            trailers.append(("grpc-message", quote(message, safe=" ")))
        try:
            self._frames.send_headers(stream_id, trailers, end_stream=True)
        except h2.exceptions.ProtocolError:
            return  # it has ended already
        self._frames.flush()


class ExchangeListener:
    """The listening sockets and their connections; `local_sockets`: also on Unix sockets (see local_sockets)."""

    def __init__(self, calls: CallServer, tls: ExchangeTls | None = None, *, local_sockets: bool = True) -> None:
        self._calls = calls
        self._tls = None if tls is None else tls.server
        self._requires_roles = tls is not None and tls.requires_roles
        self._has_local_sockets = local_sockets and tls is None
        self._local_server: asyncio.Server | None = None
        self._connections: dict[ServerExchange, None] = {}
        self._caller_streams = CallerStreams()
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listens on "host:port" (port 0: any free one); returns it with the bound port. OSError if it cannot."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await self._listening(host, int(port))
        except OSError as error:
            text = f"cannot listen on {address!r}: the port is taken, or the host is not this machine's ({error})"
            raise OSError(errno.EADDRINUSE, text) from error
        bound = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        if self._has_local_sockets:
            await self._listen_locally(bound)
        return bound

    async def _listening(self, host: str, port: int) -> asyncio.Server:
        def exchange() -> ServerExchange:
            return ServerExchange(
                self._calls, self._connections, self._caller_streams, requires_roles=self._requires_roles
            )

        loop, tls = asyncio.get_running_loop(), self._tls
        handshake_s, shutdown_s = (None, None) if tls is None else (HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S)
        every = every_address_socket(host, port)
        if every is not None:
            return await loop.create_server(
                exchange, sock=every, ssl=tls, ssl_handshake_timeout=handshake_s, ssl_shutdown_timeout=shutdown_s
            )
        return await loop.create_server(
            exchange,
            host.strip("[]"),
            port,
            ssl=tls,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=shutdown_s,
        )

    async def _listen_locally(self, address: str) -> None:
        try:
            local = listening_socket(address)
        except OSError as error:
            logging.getLogger(__name__).warning("%s is served over TCP only: %s", address, error)
            return
        if local is not None:
            loop = asyncio.get_running_loop()
            self._local_server = await loop.create_unix_server(
                lambda: ServerExchange(self._calls, self._connections, self._caller_streams), sock=local
            )

    async def stop(self) -> None:
        """Lets connections send pending answers for FLUSH_AT_STOP_MS, then closes everything."""
        assert self._server is not None
        if self._local_server is not None:
            self._local_server.close()
        self._server.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FLUSH_AT_STOP_MS / 1000
        while any(connection.has_unsent for connection in self._connections) and loop.time() < deadline:
            await asyncio.sleep(0.005)
        connections = list(self._connections)
        for connection in connections:
            connection.finish()
        await asyncio.gather(*(connection.close("the server stopped") for connection in connections))
