"""gRPC streaming over HTTP/2 on an asyncio transport: the common part of both ends of an `Exchange` stream.

grpcio moves every message through three threads; on two cores the thread switches cost more than all the work on a
small call. Calls between roles are small and one waits for the other, so their stream runs directly on the event loop.
`frames` reads and writes the frames; here are the transport, the keepalive and the end of a connection. On the
wire it is gRPC: any client can open the stream, and any server can answer it; tests check both ends against grpcio.

An `Http2Exchange` owns one connection. The complete messages of a stream are delivered in order. Sent messages wait
while the peer's flow-control window or the socket is full. A connection without a sign of life from the peer, not even
an answer to a ping, is closed after KEEPALIVE_INTERVAL_MS + KEEPALIVE_TIMEOUT_MS.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any, cast

import grpc

from kshare_rpc.exchange.frames import FrameError
from kshare_rpc.http2.frames import Http2Frames
from kshare_rpc.local_sockets import take_large_messages

KEEPALIVE_INTERVAL_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
CLOSE_TIMEOUT_MS = 200
_PING = b"kshare--"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Http2Exchange(asyncio.Protocol):
    """One connection; see the module's text. Subclasses define the meaning of streams and messages."""

    short_first = False
    """See `Http2Frames`."""

    def __init__(self, *, client_side: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = Http2Frames(self, client_side=client_side, short_first=self.short_first)
        self._transport: asyncio.Transport | None = None
        self._heard_at = self._loop.time()
        self._keepalive: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._abort: asyncio.TimerHandle | None = None
        self.is_lost = False

    # Implemented by subclasses

    @abstractmethod
    def stream_event(self, event: Any) -> None:
        """A request, response, trailers, or the end of a stream."""

    @abstractmethod
    def stream_message(self, stream_id: int, message: memoryview) -> None:
        """A message of an open stream; may raise FrameError."""

    @abstractmethod
    def stream_failed(self, stream_id: int, error: FrameError) -> None:
        """The stream's data is no valid message; the subclass ends the stream."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The connection is gone; called once."""

    def unsent_changed(self) -> None:
        """`unsent_bytes` may have changed: waiting data was sent or added."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages that wait for the peer's window or for the socket."""
        return self._frames.unsent_bytes

    @property
    def has_unsent(self) -> bool:
        return self._frames.has_unsent

    def send(self, stream_id: int, message: bytes, *, at_once: bool = False) -> None:
        """See `Http2Frames.send`."""
        self._frames.send(stream_id, message, at_once=at_once)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        take_large_messages(transport.get_extra_info("socket"))
        self._frames.start()
        self._keepalive = self._loop.call_later(KEEPALIVE_INTERVAL_MS / 1000, self._keep_alive)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._frames.receive(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        if self._abort is not None:
            self._abort.cancel()
        self._end(f"the connection was closed{f': {error}' if error else ''}")

    def pause_writing(self) -> None:
        self._frames.pause()

    def resume_writing(self) -> None:
        self._frames.resume()

    # Called by the frames

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # Ending

    def violated(self, reason: str) -> None:
        """The peer breaks HTTP/2."""
        self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Closes the connection; unsent messages are dropped, and written data after CLOSE_TIMEOUT_MS."""
        self._end(reason)
        if self._transport is None or self._abort is not None:
            return
        self._transport.close()
        # A peer that does not read would keep the socket open until the kernel's timeout: the keepalive has ended.
        self._abort = self._loop.call_later(CLOSE_TIMEOUT_MS / 1000, self._transport.abort)

    async def close(self, reason: str) -> None:
        """As `give_up`, and returns when the socket is closed."""
        self.give_up(reason)
        if self._transport is not None:
            await asyncio.wait([self._closed])

    def _end(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._frames.end()
        if self._keepalive is not None:
            self._keepalive.cancel()
        self.lost(reason)

    def _keep_alive(self) -> None:
        silence_ms = (self._loop.time() - self._heard_at) * 1000
        if silence_ms >= KEEPALIVE_INTERVAL_MS + KEEPALIVE_TIMEOUT_MS:
            if self._transport is not None:
                self._transport.abort()
            self._end(f"no data or ping response for {silence_ms / 1000:.0f} s")
            return
        if silence_ms >= KEEPALIVE_TIMEOUT_MS:
            self._frames.ping(_PING)
        self._keepalive = self._loop.call_later(KEEPALIVE_TIMEOUT_MS / 1000, self._keep_alive)


def status_text(code: str, message: str) -> str:
    """A gRPC status in words, such as "UNAVAILABLE the server is stopping"."""
    known = _CODES.get(int(code)) if code.isdecimal() else None
    return f"{known.name if known else code} {message}".strip()
