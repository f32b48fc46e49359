"""The frames and request headers of the Kafka protocol.

A frame is a length of four bytes and that many bytes. `FrameReader` keeps received chunks and joins the chunks of a
frame once, when the last one has arrived. A client that declares 100 MiB and sends nothing costs nothing. A client that
sends it byte by byte costs no more than its bytes, because small chunks are gathered in one growing buffer. Frames are
pulled one by one, so a chunk with thousands of tiny requests is not parsed faster than they are served.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from kshare_wire.messages import MalformedRequest

LENGTH_SIZE = 4
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_INT16 = struct.Struct(">h")
SMALL_CHUNK_SIZE = 4096
FIRST_PRODUCE_WITH_TRANSACTIONAL_ID = 3
FIRST_FLEXIBLE_PRODUCE = 9
MINIMUM_FRAME_LENGTH = 8
"""The length of the shortest request header: key, version and correlation id."""
MAXIMUM_HEADER_TAGGED_FIELDS = 100
"""Tagged fields of one request header; no client of Kafka 4.3 sends any."""


class FrameReader:
    """A reader that cuts a stream of bytes into frames of at most `maximum_length`, which `config` sets."""

    def __init__(self, maximum_length: int, config: str = "socket.request.max.bytes") -> None:
        self._minimum_length = MINIMUM_FRAME_LENGTH
        self._maximum_length = maximum_length
        self._config = config
        self._chunks: deque[memoryview] = deque()
        self._small_chunks = bytearray()
        self._received = 0
        self._needed = LENGTH_SIZE
        self._length_is_known = False

    @property
    def is_ready(self) -> bool:
        """Whether the bytes for the next step have arrived: a frame, or the length of one."""
        return self._received >= self._needed

    @property
    def missing_bytes(self) -> int:
        """Bytes of a partly received frame that have not arrived; 0 between two frames."""
        return self._needed - self._received if self._length_is_known or self._received else 0

    def set_limits(self, maximum_length: int, config: str, minimum_length: int = MINIMUM_FRAME_LENGTH) -> None:
        """Limits of the frames whose length was not read yet."""
        self._minimum_length, self._maximum_length, self._config = minimum_length, maximum_length, config

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        if len(data) < SMALL_CHUNK_SIZE:
            self._small_chunks += data
            return
        self._gather()
        self._chunks.append(memoryview(data))

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None; MalformedRequest where its length is not allowed."""
        if self._received < self._needed:
            return None
        small = self._small_chunks
        if not self._chunks and not self._length_is_known and len(small) > MINIMUM_FRAME_LENGTH:
            (length,) = _LENGTH.unpack_from(small)
            if self._minimum_length <= length <= self._maximum_length and len(small) == LENGTH_SIZE + length:
                self._small_chunks, self._received = bytearray(), 0
                return memoryview(small)[LENGTH_SIZE:]
        self._gather()
        if not self._length_is_known:
            (length,) = _LENGTH.unpack(self._take(LENGTH_SIZE))
            if not self._minimum_length <= length <= self._maximum_length:
                raise MalformedRequest(
                    f"a request of {length} bytes; allowed are {self._minimum_length} to {self._maximum_length} "
                    f"({self._config})"
                )
            self._needed, self._length_is_known = int(length), True
            if self._received < self._needed:
                return None
        frame = self._take(self._needed)
        self._needed, self._length_is_known = LENGTH_SIZE, False
        return frame

    def _gather(self) -> None:
        if self._small_chunks:
            self._chunks.append(memoryview(self._small_chunks))
            self._small_chunks = bytearray()

    def _take(self, count: int) -> memoryview:
        self._received -= count
        first = self._chunks.popleft()
        if len(first) >= count:
            if len(first) > count:
                self._chunks.appendleft(first[count:])
            return first[:count]
        pieces = [first]
        missing = count - len(first)
        while missing:
            chunk = self._chunks.popleft()
            if len(chunk) > missing:
                self._chunks.appendleft(chunk[missing:])
                chunk = chunk[:missing]
            pieces.append(chunk)
            missing -= len(chunk)
        return memoryview(b"".join(pieces))


class RequestHeader(NamedTuple):
    """A request header; `body_offset` is where the body begins in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body_offset: int


def peek_request(frame: memoryview) -> tuple[int, int, int]:
    """API key, version and correlation id, with which every version of the header begins."""
    api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
    return api_key, version, correlation_id


def parse_header(frame: memoryview, *, flexible: bool) -> RequestHeader:
    """The request header, version 2 where the API's version is flexible, else 1; the client id is a legacy string."""
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
        position = _HEADER.size
        if length < -1 or position + length > len(frame):
            raise MalformedRequest(f"a client id of {length} bytes in a request of {len(frame)}")
        client_id = str(frame[position : position + length], "utf-8") if length > 0 else ""
        position += max(0, length)
        if flexible:
            position = _skip_tags(frame, position)
    except (struct.error, IndexError):
        raise MalformedRequest(f"the request header ends after {len(frame)} bytes") from None
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a client id that is not UTF-8: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def _skip_tags(frame: memoryview, position: int) -> int:
    count, position = _varint(frame, position)
    if count > MAXIMUM_HEADER_TAGGED_FIELDS:
        raise MalformedRequest(
            f"{count} tagged fields in a request header; allowed are 0 to {MAXIMUM_HEADER_TAGGED_FIELDS}"
        )
    for _ in range(count):
        _, position = _varint(frame, position)
        length, position = _varint(frame, position)
        position += length
        if position > len(frame):
            raise MalformedRequest(f"a tagged field of {length} bytes in a request of {len(frame)}")
    return position


def _varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise MalformedRequest("a varint in the request header is longer than five bytes")


def produce_acks(frame: memoryview, version: int) -> int:
    """The field acks of a Produce request, which says whether there is a response; MalformedRequest."""
    position = parse_header(frame, flexible=version >= FIRST_FLEXIBLE_PRODUCE).body_offset
    try:
        if version >= FIRST_FLEXIBLE_PRODUCE:
            length, position = _varint(frame, position)
            position += max(0, length - 1)
        elif version >= FIRST_PRODUCE_WITH_TRANSACTIONAL_ID:
            (length,) = _INT16.unpack_from(frame, position)
            position += 2 + max(0, length)
        (acks,) = _INT16.unpack_from(frame, position)
    except (struct.error, IndexError):
        raise MalformedRequest(f"a Produce request ends after {len(frame)} bytes") from None
    return int(acks)
