"""gRPC streaming over HTTP/2 on an asyncio transport: the common part of both ends of an `Exchange` stream.

grpcio moves every message through three threads; on two cores the thread switches cost more than all the work on a
small call. Calls between roles are small and one waits for the other, so their stream runs directly on the event loop.
h2 handles the connection, its settings and headers, pings, resets and ends. The DATA frames of an open stream, nearly
all of the traffic, are read and written here, because h2's state machines cost more than the work of a small call. On
the wire it is gRPC: any client can open the stream, and any server can answer it; tests check both ends against grpcio.

An `Http2Exchange` owns one connection. The complete messages of a stream are delivered in order. Sent messages wait
while the peer's flow-control window or the socket is full. A connection without a sign of life from the peer, not even
an answer to a ping, is closed after KEEPALIVE_INTERVAL_MS + KEEPALIVE_TIMEOUT_MS.
"""

from __future__ import annotations

import asyncio
import struct
from abc import abstractmethod
from collections import deque
from typing import Any, cast

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h2.stream

from kshare_core.prompt_writing import PromptWriter
from kshare_rpc.frames import FRAME_BYTES_LIMIT, FrameError

WINDOW_BYTES = 64 * 1024 * 1024
"""The flow-control window: bytes that the peer may send before they are read, per stream and per connection."""
HTTP2_FRAME_BYTES = 512 * 1024
"""The largest HTTP/2 frame that is accepted; larger frames cost fewer steps per megabyte, and more memory."""
KEEPALIVE_INTERVAL_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
CLOSE_TIMEOUT_MS = 200

SMALL_MESSAGE_BYTES = 4 * 1024
JOINED_BYTES = 64 * 1024
"""Below this many bytes, copying the data behind its frame's head is cheaper than a second write."""

PREFIX_BYTES = 5
_PING = b"kshare--"


_FRAME_HEAD = struct.Struct(">BHBBL")
"""An HTTP/2 frame's head: length (1 + 2 bytes), type, flags, stream id (RFC 9113, section 4.1)."""
_WINDOW_UPDATE = struct.Struct(">BHBBLL")
_FRAME_HEAD_BYTES = 9
_MESSAGE_HEAD = struct.Struct(">BHBBLBL")
"""The head of a DATA frame, then the head of the message at its start: compressed, length."""
_MESSAGE_HEAD_BYTES = 14
_PREFACE_BYTES = 24
_DATA_TYPE, _WINDOW_UPDATE_TYPE = 0, 8
_END_STREAM_OR_PADDED = 0x1 | 0x8
_PLAIN_DATA = (0, _DATA_TYPE, 0, 0)
"""Expected fields of _MESSAGE_HEAD: a length below 64 KiB, DATA, no flags, not compressed."""
_STREAM_ID_MASK = 0x7FFFFFFF
_STREAM_CLOSED = h2.stream.StreamState.CLOSED
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class MessageReader:
    """Cuts the bytes of one stream into messages: a flag byte, four bytes of length, the message."""

    __slots__ = ("_needed", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []
        self._size = 0
        self._needed = PREFIX_BYTES

    @property
    def is_between_messages(self) -> bool:
        """Whether the next byte begins a message."""
        return not self._size

    def feed(self, data: bytes | memoryview) -> list[memoryview]:
        """The messages that `data` completes; FrameError as for `_message_end`.

        They are views of one copy: a reference to one keeps in memory only the messages that came with it.
        """
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return []
        if self._needed == PREFIX_BYTES:
            prefix = bytes(data[:PREFIX_BYTES]) if len(self._pieces) == 1 else b"".join(self._pieces)[:PREFIX_BYTES]
            self._needed = _message_end(prefix)
            if self._size < self._needed:
                return []
        return self._cut()

    def _cut(self) -> list[memoryview]:
        messages: list[memoryview] = []
        view = memoryview(b"".join(self._pieces))
        while len(view) >= PREFIX_BYTES and (end := _message_end(view)) <= len(view):
            messages.append(view[PREFIX_BYTES:end])
            view = view[end:]
        rest = bytes(view)
        self._pieces, self._size = [rest] if rest else [], len(rest)
        self._needed = PREFIX_BYTES if len(rest) < PREFIX_BYTES else _message_end(rest)
        return messages


def _message_end(data: bytes | memoryview) -> int:
    """The end of the first message, from its prefix; FrameError for compression or a message above the limit."""
    if data[0]:
        raise FrameError("the message is compressed; frames are sent as they are")
    length = int.from_bytes(data[1:PREFIX_BYTES], "big")
    if length > FRAME_BYTES_LIMIT:
        raise FrameError(f"a message of {length} bytes is more than a frame's {FRAME_BYTES_LIMIT}")
    return PREFIX_BYTES + length


class _OpenStream:
    """The receive state of a stream: bytes for which the peer's window was not widened yet, and the message reader."""

    __slots__ = ("reader", "unacked")

    def __init__(self) -> None:
        self.reader = MessageReader()
        self.unacked = 0


_Piece = tuple[int, memoryview, bool]
"""A stream's id, bytes to send, and whether a message ends with them."""


class Http2Exchange(asyncio.Protocol):
    """One connection; see the module's text. Subclasses define the meaning of streams and messages."""

    short_first = False
    """Whether short messages may overtake long ones that are completely unsent: allowed for answers, which have ids,
    but not for calls, which begin in the order in which they were made."""

    def __init__(self, *, client_side: bool) -> None:
        self._loop = asyncio.get_running_loop()
        configuration = h2.config.H2Configuration(
            client_side=client_side,
            header_encoding="utf-8",
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = h2.connection.H2Connection(configuration)
        self._transport: asyncio.Transport | None = None
        self._writer: PromptWriter | None = None
        self._unsent: deque[_Piece] = deque()
        self._unsent_long: deque[_Piece] = deque()
        """Long messages, which short ones may overtake; see `short_first`."""
        self._is_in_long = False
        """Whether a part of the first long message was sent."""
        self.unsent_bytes = 0
        """Bytes of messages that wait for the peer's window or for the socket."""
        self._unread = b""
        self._preface_left = 0 if client_side else _PREFACE_BYTES
        self._data_stream = self._data_left = 0
        self._connection_unacked = 0
        self._open_streams: dict[int, _OpenStream] = {}
        self._paused = False
        self._h2_has_spoken = True
        """Whether h2 may have something to send that was not flushed."""
        self._heard_at = self._loop.time()
        self._keepalive: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
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

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = PromptWriter(self._transport)
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=self._h2.config.client_side,
            initial_values={
                codes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                codes.MAX_FRAME_SIZE: HTTP2_FRAME_BYTES,
                codes.ENABLE_PUSH: 0,
                codes.MAX_CONCURRENT_STREAMS: 100,
                codes.MAX_HEADER_LIST_SIZE: 65_536,
            },
        )
        self._h2.max_inbound_frame_size = HTTP2_FRAME_BYTES
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW_BYTES)
        self.flush()
        self._keepalive = self._loop.call_later(KEEPALIVE_INTERVAL_MS / 1000, self._keep_alive)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if not self._takes_small_message(data):
            self._take_frames(self._unread + data if self._unread else data)
        if self._unsent or self._unsent_long or self._h2_has_spoken:
            self.pump()

    def _take_frames(self, data: bytes) -> None:
        """Processes all frames in `data`, and keeps an incomplete frame, other than stream data, at its end."""
        at, size = 0, len(data)
        if self._preface_left:
            at = min(self._preface_left, size)
            self._preface_left -= at
            self._control(data[:at])
        while at < size and not self.is_lost:
            if self._data_left:
                end = min(size, at + self._data_left)
                self._data_left -= end - at
                self._take(self._data_stream, memoryview(data)[at:end])
                at = end
                continue
            if size - at < _FRAME_HEAD_BYTES:
                break
            high, low, kind, flags, stream_id = _FRAME_HEAD.unpack_from(data, at)
            length = high << 16 | low
            if length > HTTP2_FRAME_BYTES:
                self.give_up(f"the peer sent a frame of {length} bytes; at most {HTTP2_FRAME_BYTES} are allowed")
                return
            stream_id &= _STREAM_ID_MASK
            if kind == _DATA_TYPE and not flags & _END_STREAM_OR_PADDED and stream_id in self._open_streams:
                self._data_stream, self._data_left = stream_id, length
                at += _FRAME_HEAD_BYTES
                continue
            end = at + _FRAME_HEAD_BYTES + length
            if end > size:
                break
            self._control(data[at:end])
            at = end
        self._unread = data[at:]

    def _takes_small_message(self, data: bytes) -> bool:
        """The fast path for exactly one message in one frame, as sequential calls arrive; False for other data."""
        size = len(data)
        if self._data_left or self._unread or not _MESSAGE_HEAD_BYTES <= size <= SMALL_MESSAGE_BYTES:
            return False
        high, low, kind, flags, stream_id, is_compressed, length = _MESSAGE_HEAD.unpack_from(data)
        stream = self._open_streams.get(stream_id)
        if (
            stream is None
            or (high, kind, flags, is_compressed) != _PLAIN_DATA
            or not low - PREFIX_BYTES == length == size - _MESSAGE_HEAD_BYTES
            or not stream.reader.is_between_messages
        ):
            return False
        self._count(stream_id, stream, low)
        try:
            self.stream_message(stream_id, memoryview(data)[_MESSAGE_HEAD_BYTES:])
        except FrameError as error:
            self.stream_failed(stream_id, error)
        return True

    def _control(self, frame: bytes) -> None:
        """Passes a frame to h2: anything but the data of an open stream."""
        self._h2_has_spoken = True
        try:
            events = self._h2.receive_data(frame)
        except h2.exceptions.ProtocolError as error:
            self.flush()
            self.give_up(f"the peer violated HTTP/2: {error}")
            return
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self._take_from_h2(event)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.give_up(f"the peer sent GOAWAY ({event.error_code})")
                return
            elif not isinstance(event, h2.events.PingReceived | h2.events.PingAckReceived):
                self.stream_event(event)

    def open_stream(self, stream_id: int) -> None:
        """The stream has its headers: from now on its data is read and acknowledged here, not by h2."""
        self._open_streams[stream_id] = _OpenStream()

    def close_stream(self, stream_id: int) -> None:
        """The stream is over; h2 handles data that still arrives for it."""
        self._open_streams.pop(stream_id, None)

    def _take(self, stream_id: int, data: memoryview) -> None:
        stream = self._open_streams.get(stream_id)
        if stream is None:  # it ended between two pieces of a frame
            return
        self._count(stream_id, stream, len(data))
        self._read(stream_id, stream, data)

    def _count(self, stream_id: int, stream: _OpenStream, size: int) -> None:
        """Widens the peer's windows, of the stream and of the connection, once half of a window is used."""
        stream.unacked += size
        self._connection_unacked += size
        if stream.unacked >= WINDOW_BYTES // 2:
            self._write(_WINDOW_UPDATE.pack(0, 4, _WINDOW_UPDATE_TYPE, 0, stream_id, stream.unacked))
            stream.unacked = 0
        if self._connection_unacked >= WINDOW_BYTES // 2:
            self._write(_WINDOW_UPDATE.pack(0, 4, _WINDOW_UPDATE_TYPE, 0, 0, self._connection_unacked))
            self._connection_unacked = 0

    def _take_from_h2(self, event: h2.events.DataReceived) -> None:
        stream_id = event.stream_id
        assert stream_id is not None
        if event.flow_controlled_length:
            self._h2.acknowledge_received_data(event.flow_controlled_length, stream_id)
        stream = self._open_streams.get(stream_id)
        if event.data and stream is not None:
            self._read(stream_id, stream, event.data)

    def _read(self, stream_id: int, stream: _OpenStream, data: bytes | memoryview) -> None:
        try:
            for message in stream.reader.feed(data):
                if self._open_streams.get(stream_id) is stream:
                    self.stream_message(stream_id, message)
        except FrameError as error:
            self.stream_failed(stream_id, error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._end(f"the connection was closed{f': {error}' if error else ''}")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    # Sending

    def send(self, stream_id: int, message: bytes, *, at_once: bool = False) -> None:
        """Sends a message, or queues it until the peer's window and the socket have room.

        Messages of one turn of the event loop go to the socket together, at the turn's end; with `at_once`, now.
        """
        size = len(message)
        if at_once and size <= SMALL_MESSAGE_BYTES and self._sends_at_once(stream_id, message):
            return
        prefix = size.to_bytes(PREFIX_BYTES, "big")
        if size < HTTP2_FRAME_BYTES // 16:
            self._unsent.append((stream_id, memoryview(prefix + message), True))
        else:
            queue = self._unsent_long if self.short_first else self._unsent
            queue.append((stream_id, memoryview(prefix), False))
            queue.append((stream_id, memoryview(message), True))
        self.unsent_bytes += PREFIX_BYTES + size
        self.pump()

    def _sends_at_once(self, stream_id: int, message: bytes) -> bool:
        """Writes a message in one frame to the socket, unless other data must go first or there is no room."""
        connection, stream, writer = self._h2, self._h2.streams.get(stream_id), self._writer
        if (
            self._unsent
            or self._unsent_long
            or self._h2_has_spoken
            or self._paused
            or stream is None
            or writer is None
            or self.is_lost
        ):
            return False
        size = len(message)
        length = PREFIX_BYTES + size
        if (
            length > connection.outbound_flow_control_window
            or length > stream.outbound_flow_control_window
            or length > connection.max_outbound_frame_size
            or stream.state_machine.state is _STREAM_CLOSED
        ):
            return False
        connection.outbound_flow_control_window -= length
        stream.outbound_flow_control_window -= length
        writer.write(_MESSAGE_HEAD.pack(0, length, _DATA_TYPE, 0, stream_id, 0, size) + message)
        return True

    def pump(self) -> None:
        """Sends queued messages while the windows and the socket have room."""
        while not self._paused and not self.is_lost:
            is_long = self._is_in_long or (not self._unsent and bool(self._unsent_long))
            queue = self._unsent_long if is_long else self._unsent
            if not queue:
                break
            stream_id, data, is_last = queue[0]
            connection, stream = self._h2, self._h2.streams.get(stream_id)
            if stream is None or stream.state_machine.state is _STREAM_CLOSED:  # its reader knows why
                queue.popleft()
                self._is_in_long = is_long and not is_last
                self.unsent_bytes -= len(data)
                continue
            window = min(connection.outbound_flow_control_window, stream.outbound_flow_control_window)
            room = min(window, connection.max_outbound_frame_size, len(data))
            if room <= 0:
                break
            connection.outbound_flow_control_window -= room
            stream.outbound_flow_control_window -= room
            self.unsent_bytes -= room
            self._write(_FRAME_HEAD.pack(room >> 16, room & 0xFFFF, _DATA_TYPE, 0, stream_id), data[:room])
            if room < len(data):
                queue[0] = (stream_id, data[room:], is_last)
                self._is_in_long = is_long
            else:
                queue.popleft()
                self._is_in_long = is_long and not is_last
        if self._h2_has_spoken:
            self.flush()
        self.unsent_changed()

    def _write(self, *pieces: bytes | memoryview) -> None:
        if self._h2_has_spoken:
            self.flush()  # h2's own frames go first
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(pieces) if len(pieces[-1]) < JOINED_BYTES else pieces[0])
            if len(pieces[-1]) >= JOINED_BYTES:
                self._transport.write(pieces[-1])

    def flush(self) -> None:
        """Sends h2's pending frames; to be called after every call of h2 that may produce some."""
        self._h2_has_spoken = False
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent or self._unsent_long)

    # Ending

    def give_up(self, reason: str) -> None:
        """Closes the connection; unsent messages are dropped."""
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    async def close(self, reason: str) -> None:
        """As `give_up`, and returns when the socket is closed; data unsent after CLOSE_TIMEOUT_MS is dropped."""
        self.give_up(reason)
        if self._transport is None:
            return
        await asyncio.wait([self._closed], timeout=CLOSE_TIMEOUT_MS / 1000)
        if not self._closed.done():
            self._transport.abort()
            await self._closed

    def _end(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._unsent.clear()
        self._unsent_long.clear()
        self.unsent_bytes = 0
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
            self._h2.ping(_PING)
            self.flush()
        self._keepalive = self._loop.call_later(KEEPALIVE_TIMEOUT_MS / 1000, self._keep_alive)


def status_text(code: str, message: str) -> str:
    """A gRPC status in words, such as "UNAVAILABLE the server is stopping"."""
    known = _CODES.get(int(code)) if code.isdecimal() else None
    return f"{known.name if known else code} {message}".strip()
