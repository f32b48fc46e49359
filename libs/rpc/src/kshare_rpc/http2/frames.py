"""HTTP/2 frames of gRPC streams, without sockets, clocks or an event loop: bytes in, messages out, and the reverse.

h2 handles the connection, its settings and headers, pings, resets and ends. The DATA frames of an open stream, nearly
all of the traffic, are read and written here, because h2's state machines cost more than the work of a small call. For
that this module reads and changes three things inside h2, which is why its version is bounded: the flow-control windows
of the connection and of a stream, the stream's state, and the table of streams. On the wire it is gRPC.

What breaks if it is wrong: a window that is counted too large makes the peer end the connection; one that is counted
too small makes a stream stand still. The switch is http2_frames (`kshare_fastpath.switches`): without it h2 reads and
writes DATA frames, too.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, Protocol

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h2.stream

from kshare_fastpath.switches import is_on
from kshare_rpc.exchange.frames import FRAME_BYTES_LIMIT, FrameError

WINDOW_BYTES = 64 * 1024 * 1024
"""The flow-control window: bytes that the peer may send before they are read, per stream and per connection."""
HTTP2_FRAME_BYTES = 512 * 1024
"""The largest HTTP/2 frame that is accepted; larger frames cost fewer steps per megabyte, and more memory."""
SMALL_MESSAGE_BYTES = 4 * 1024
JOINED_BYTES = 64 * 1024
"""Below this many bytes, copying the data behind its frame's head is cheaper than a second write."""
PREFIX_BYTES = 5
SWITCH = "http2_frames"

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


class FrameSink(Protocol):
    """The owner of the frames: it writes bytes to the peer, and hears what the peer said."""

    def write(self, data: bytes | memoryview) -> None:
        """Bytes for the peer, in order."""
        ...

    def stream_event(self, event: Any) -> None:
        """A request, response, trailers, or the end of a stream: an event of h2."""
        ...

    def stream_message(self, stream_id: int, message: memoryview) -> None:
        """A message of an open stream; may raise FrameError."""
        ...

    def stream_failed(self, stream_id: int, error: FrameError) -> None:
        """The stream's data is no valid message; the owner ends the stream."""
        ...

    def violated(self, reason: str) -> None:
        """The peer breaks the protocol; the owner calls `end`."""
        ...

    def give_up(self, reason: str) -> None:
        """The peer ended the connection; the owner calls `end`."""
        ...

    def unsent_changed(self) -> None:
        """`unsent_bytes` may have changed: waiting data was sent or added."""
        ...


class Http2Frames:
    """Both directions of one connection.

    `short_first`: short messages may overtake long ones that are completely unsent. That is allowed for answers, which
    have ids, but not for calls, which begin in the order in which they were made.
    """

    def __init__(self, sink: FrameSink, *, client_side: bool, short_first: bool) -> None:
        configuration = h2.config.H2Configuration(
            client_side=client_side,
            header_encoding="utf-8",
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._sink = sink
        self._h2 = h2.connection.H2Connection(configuration)
        self._is_fast = is_on(SWITCH)
        """Whether DATA frames bypass h2."""
        self._short_first = short_first
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
        self._is_ended = False

    def start(self) -> None:
        """Sends the preface and the settings."""
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

    def end(self) -> None:
        """The connection is over: nothing more is read or written, and unsent messages are dropped."""
        self._is_ended = True
        self._unsent.clear()
        self._unsent_long.clear()
        self.unsent_bytes = 0

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent or self._unsent_long)

    # Receiving

    def receive(self, data: bytes) -> None:
        """Takes bytes of the peer, cut anywhere."""
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
        while at < size and not self._is_ended:
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
                self._sink.give_up(f"the peer sent a frame of {length} bytes; at most {HTTP2_FRAME_BYTES} are allowed")
                return
            stream_id &= _STREAM_ID_MASK
            is_plain = kind == _DATA_TYPE and not flags & _END_STREAM_OR_PADDED
            if is_plain and self._is_fast and stream_id in self._open_streams:
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
        if (
            not self._is_fast
            or self._data_left
            or self._unread
            or not _MESSAGE_HEAD_BYTES <= size <= SMALL_MESSAGE_BYTES
        ):
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
            self._sink.stream_message(stream_id, memoryview(data)[_MESSAGE_HEAD_BYTES:])
        except FrameError as error:
            self._sink.stream_failed(stream_id, error)
        return True

    def _control(self, frame: bytes) -> None:
        """Passes a frame to h2: anything but the data of an open stream."""
        self._h2_has_spoken = True
        try:
            events = self._h2.receive_data(frame)
        except (h2.exceptions.ProtocolError, UnicodeDecodeError) as error:  # the latter: bytes in a header
            self.flush()
            self._sink.violated(f"the peer violated HTTP/2: {error}")
            return
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                self._take_from_h2(event)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self._sink.give_up(f"the peer sent GOAWAY ({event.error_code})")
                return
            elif not isinstance(event, h2.events.PingReceived | h2.events.PingAckReceived):
                self._sink.stream_event(event)

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
                    self._sink.stream_message(stream_id, message)
        except FrameError as error:
            self._sink.stream_failed(stream_id, error)

    # Sending

    def pause(self) -> None:
        """The socket has no room; messages wait."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.pump()

    def next_stream_id(self) -> int:
        return self._h2.get_next_available_stream_id()

    def send_headers(self, stream_id: int, headers: list[tuple[str, str]], *, end_stream: bool = False) -> None:
        """Raises h2.exceptions.ProtocolError where the stream has ended already."""
        self._h2.send_headers(stream_id, headers, end_stream=end_stream)
        self._h2_has_spoken = True

    def ping(self, data: bytes) -> None:
        self._h2.ping(data)
        self.flush()

    def send(self, stream_id: int, message: bytes, *, at_once: bool = False) -> None:
        """Sends a message, or queues it until the peer's window and the socket have room.

        `at_once` spares a small message the queue.
        """
        size = len(message)
        if at_once and self._is_fast and size <= SMALL_MESSAGE_BYTES and self._sends_at_once(stream_id, message):
            return
        prefix = size.to_bytes(PREFIX_BYTES, "big")
        if size < HTTP2_FRAME_BYTES // 16:
            self._unsent.append((stream_id, memoryview(prefix + message), True))
        else:
            queue = self._unsent_long if self._short_first else self._unsent
            queue.append((stream_id, memoryview(prefix), False))
            queue.append((stream_id, memoryview(message), True))
        self.unsent_bytes += PREFIX_BYTES + size
        self.pump()

    def _sends_at_once(self, stream_id: int, message: bytes) -> bool:
        """Writes a message in one frame to the socket, unless other data must go first or there is no room."""
        connection, stream = self._h2, self._h2.streams.get(stream_id)
        if self._unsent or self._unsent_long or self._h2_has_spoken or self._paused or stream is None or self._is_ended:
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
        self._sink.write(_MESSAGE_HEAD.pack(0, length, _DATA_TYPE, 0, stream_id, 0, size) + message)
        return True

    def pump(self) -> None:
        """Sends queued messages while the windows and the socket have room."""
        while not self._paused and not self._is_ended:
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
            self.unsent_bytes -= room
            if self._is_fast:
                connection.outbound_flow_control_window -= room
                stream.outbound_flow_control_window -= room
                self._write(_FRAME_HEAD.pack(room >> 16, room & 0xFFFF, _DATA_TYPE, 0, stream_id), data[:room])
            else:
                connection.send_data(stream_id, bytes(data[:room]))
                self.flush()
            if room < len(data):
                queue[0] = (stream_id, data[room:], is_last)
                self._is_in_long = is_long
            else:
                queue.popleft()
                self._is_in_long = is_long and not is_last
        if self._h2_has_spoken:
            self.flush()
        self._sink.unsent_changed()

    def _write(self, *pieces: bytes | memoryview) -> None:
        if self._h2_has_spoken:
            self.flush()  # h2's own frames go first
        self._sink.write(b"".join(pieces) if len(pieces[-1]) < JOINED_BYTES else pieces[0])
        if len(pieces[-1]) >= JOINED_BYTES:
            self._sink.write(pieces[-1])

    def flush(self) -> None:
        """Sends h2's pending frames; to be called after every call of h2 that may produce some."""
        self._h2_has_spoken = False
        data = self._h2.data_to_send()
        if data:
            self._sink.write(data)
