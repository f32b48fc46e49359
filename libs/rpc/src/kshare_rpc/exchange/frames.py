"""Codec of `Frame` (common.proto), the unit of every `Exchange` stream, without extra copies of the payload.

A frame is plain protobuf: `header_length` (fixed32, field 1), `header` (field 2), `payload` (field 3), each left out
when it is empty, exactly as protobuf writes it. The outer fields are encoded here by hand, because protobuf copies a
payload of a megabyte several times; the header is small and left to protobuf.

Decoding is stricter than protobuf: fields in this order, nothing behind them, and lengths that agree. Any other frame
was cut off or garbled, and its stream cannot be trusted any more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from kshare_rpc.generated.kshare.v1.common_pb2 import FrameHeader

FRAME_BYTES_LIMIT = 128 * 1024 * 1024
"""The largest frame of a stream; gRPC refuses a larger message."""

_HEADER_LENGTH_TAG = 0x0D
_HEADER_TAG = 0x12
_PAYLOAD_TAG = 0x1A
_HEADER_START = struct.Struct("<BIB")
_VARINT_BYTES_LIMIT = 5
_NO_PAYLOAD = memoryview(b"")


class FrameError(Exception):
    """The bytes are not a frame; the text says what is wrong, and where."""


def encode_frame(header: FrameHeader, payload: Sequence[bytes | memoryview] = ()) -> bytes:
    """The frame in one piece; the payload's pieces are copied into it once."""
    serialized = header.SerializeToString()
    header_length = len(serialized)
    if header_length:
        start = _HEADER_START.pack(_HEADER_LENGTH_TAG, header_length, _HEADER_TAG)
    else:
        start = bytes((_HEADER_TAG,))  # protobuf leaves out a header_length of zero
    size = bytes((header_length,)) if header_length < 0x80 else _varint(header_length)
    payload_length = sum(map(len, payload)) if payload else 0
    if not payload_length:
        return b"".join((start, size, serialized))
    return b"".join(
        (start, size, serialized, b"\x1a", _varint(payload_length), *payload),
    )


def decode_frame(data: bytes | memoryview) -> tuple[FrameHeader, memoryview]:
    """The header, and a view of the payload in `data`; FrameError where `data` is not exactly one frame."""
    header_at, header_end = _header_range(data)
    header = FrameHeader()
    try:
        header.ParseFromString(bytes(data[header_at:header_end]))
    except DecodeError as error:
        raise FrameError(
            f"the frame's header of {header_end - header_at} bytes is not a FrameHeader: {error}"
        ) from error
    if header_end == len(data):
        return header, _NO_PAYLOAD
    if data[header_end] != _PAYLOAD_TAG:
        raise FrameError(f"expected the payload (tag 0x1a) at byte {header_end}, found 0x{data[header_end]:02x}")
    payload_length, payload_at = _read_varint(data, header_end + 1)
    if payload_at + payload_length != len(data):
        raise FrameError(f"the payload says {payload_length} bytes, but {len(data) - payload_at} follow")
    return header, memoryview(data)[payload_at:]


def _header_range(data: bytes | memoryview) -> tuple[int, int]:
    """Where the header starts and ends in `data`."""
    if data[:2] == b"\x12\x00":
        return 2, 2
    if len(data) <= _HEADER_START.size:
        raise FrameError(f"cut off: a frame has more than {_HEADER_START.size} bytes, this one has {len(data)}")
    length_tag, header_length, header_tag = _HEADER_START.unpack_from(data)
    if length_tag != _HEADER_LENGTH_TAG or header_tag != _HEADER_TAG:
        raise FrameError(f"a frame starts with header_length and header, this one with {data[:8].hex()}")
    if header_length < 0x80 and data[_HEADER_START.size] == header_length:
        length, start = header_length, _HEADER_START.size + 1
    else:
        length, start = _read_varint(data, _HEADER_START.size)
    if length != header_length:
        raise FrameError(f"header_length says {header_length} bytes, but the header has {length}")
    if start + length > len(data):
        raise FrameError(f"cut off: the header says {length} bytes, but {len(data) - start} follow")
    return start, start + length


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    pieces = bytearray()
    while value >= 0x80:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at `at` and the place after it."""
    value = shift = 0
    for index in range(at, min(at + _VARINT_BYTES_LIMIT, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    raise FrameError(f"cut off or garbled: no length at byte {at} of {len(data)}")
