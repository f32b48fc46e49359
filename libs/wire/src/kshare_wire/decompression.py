"""The decompression of a batch's records within a limit, accepting what Kafka 4.3's readers of the codecs accept.

A few kilobytes can decompress to gigabytes, so `limit_bytes` bounds the output. No more is allocated than that,
whatever a header declares. The work is done in C without the GIL, and the buffers are never filled with zeros first, so
a large batch can be decompressed on a thread while the event loop continues.

Like Kafka's readers it accepts several gzip members, several zstd frames, and xerial streams and raw blocks of snappy.
An lz4 frame must have independent blocks. Bytes after a gzip stream are ignored. Bytes after an lz4 frame are refused
although Kafka ignores them, because other clients' consumers fail on them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam

from kshare_wire import _records

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

Bytes = bytes | bytearray | memoryview

_XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_HEADER_LENGTH = len(_XERIAL_HEADER)
_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_WINDOW_BITS = 31
_GZIP_PIECE_BYTES = 256 * 1024
"""The most that one call of zlib reads, and the most that it writes."""
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_FLAGS_AT = 4
_LZ4_VERSION_AND_INDEPENDENT_BLOCKS = 0x60
_LZ4_CHECKED_FLAGS = 0xE3
"""The version, and three bits that Kafka's reader (Lz4BlockInputStream.FLG) checks."""
_FIRST_GUESS = 4
_SMALLEST_GUESS_BYTES = 256
GZIP_MEMBERS_LIMIT = 16
SNAPPY_BLOCKS_LIMIT = 10_000
"""Members or blocks of one batch: each costs a Python call; producers write one member, and blocks of 32 KiB."""

_SNAPPY_GREATEST_RATIO = 32
"""The greatest ratio of snappy: an element of three bytes copies at most 64; a block that declares more is invalid."""


class CannotDecompress(ValueError):
    """The bytes are invalid for the codec."""


class BytesAfterStream(CannotDecompress):
    """Bytes follow after the end of the compressed stream."""


class DecompressesTooFar(ValueError):
    """The output would exceed `limit_bytes`."""


def decompressed(records: memoryview, compression: int, limit_bytes: int) -> bytes | bytearray | memoryview:
    """Decompressed records; `compression` is an index of COMPRESSION_NAMES. CannotDecompress, DecompressesTooFar."""
    if compression == 0:
        return records
    decompress = _DECOMPRESSORS.get(compression)
    if decompress is None:
        raise CannotDecompress(f"compression type {compression} is unknown")
    try:
        return decompress(records, limit_bytes)
    except (cramjam.DecompressionError, zlib.error, struct.error) as error:
        raise CannotDecompress(str(error)) from error


def _too_far(limit_bytes: int) -> DecompressesTooFar:
    return DecompressesTooFar(f"the records decompress to more than {limit_bytes} bytes")


def _gzip(records: memoryview, limit_bytes: int) -> bytes | bytearray:
    opened = bytearray()
    position = 0
    for _ in range(GZIP_MEMBERS_LIMIT):
        decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)
        rest: Bytes = b""
        while not decompressor.eof:
            if not rest:
                # In pieces, because zlib copies what it was given and has not read yet, at each call.
                rest = records[position : position + _GZIP_PIECE_BYTES]
                position += len(rest)
            is_at_end = not rest
            piece = decompressor.decompress(rest, _GZIP_PIECE_BYTES)
            opened += piece
            if len(opened) > limit_bytes:
                raise _too_far(limit_bytes)
            if is_at_end and not piece and not decompressor.eof:
                raise CannotDecompress("the gzip stream was cut off")
            rest = decompressor.unconsumed_tail
        position -= len(decompressor.unused_data)
        if records[position : position + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return opened
    raise CannotDecompress(f"there are more than {GZIP_MEMBERS_LIMIT} gzip members")


def _snappy(records: memoryview, limit_bytes: int) -> bytes | bytearray:
    if records[:_XERIAL_HEADER_LENGTH] != _XERIAL_HEADER:
        return _snappy_block(records, limit_bytes)
    opened = bytearray()
    position = 0
    for _ in range(SNAPPY_BLOCKS_LIMIT):
        if position == len(records):
            return opened
        if records[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # another stream follows
            position += _XERIAL_HEADER_LENGTH
            continue
        (length,) = struct.unpack_from(">I", records, position)
        position += 4
        if length > len(records) - position:
            raise CannotDecompress("the snappy stream was cut off")
        opened += _snappy_block(records[position : position + length], limit_bytes - len(opened))
        position += length
    raise CannotDecompress(f"there are more than {SNAPPY_BLOCKS_LIMIT} snappy blocks")


def _snappy_block(block: memoryview, limit_bytes: int) -> bytes | bytearray:
    length = _snappy_length(block)
    if length > _SNAPPY_GREATEST_RATIO * len(block):
        raise CannotDecompress(f"a snappy block of {len(block)} bytes declares {length}")
    if length > limit_bytes:
        raise _too_far(limit_bytes)
    opened = _records.uninitialized(length)
    if cramjam.snappy.decompress_raw_into(block, opened) != length:
        raise CannotDecompress("a snappy block holds less than it declares")
    return opened


def _snappy_length(block: memoryview) -> int:
    """The length that a raw snappy block declares at its start, as a varint of at most five bytes."""
    length = 0
    for index, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length
    raise CannotDecompress("a snappy block has no length")


def _lz4(records: memoryview, limit_bytes: int) -> memoryview:
    if records[: len(_LZ4_MAGIC)] != _LZ4_MAGIC:
        raise CannotDecompress("the records contain no lz4 frame")
    length = _records.lz4_frame_length(records)
    if length < 0:
        raise CannotDecompress("the lz4 frame was cut off, or has a block that Kafka takes for its end")
    flags = records[_LZ4_FLAGS_AT]
    if flags & _LZ4_CHECKED_FLAGS != _LZ4_VERSION_AND_INDEPENDENT_BLOCKS:
        text = "an lz4 frame must have version 1, blocks that are independent of each other, and no dictionary"
        raise CannotDecompress(text)
    if length != len(records):
        raise BytesAfterStream(f"{len(records) - length} bytes follow the lz4 frame")
    return _into_buffer(cramjam.lz4.decompress_into, records, limit_bytes)


def _zstd(records: memoryview, limit_bytes: int) -> memoryview:
    if not records:
        return memoryview(b"")
    return _into_buffer(cramjam.zstd.decompress_into, records, limit_bytes)


def _into_buffer(
    decompress_into: Callable[[memoryview, bytearray], int], records: memoryview, limit_bytes: int
) -> memoryview:
    """Decompresses into a buffer that grows up to the limit."""
    size = min(limit_bytes, max(_SMALLEST_GUESS_BYTES, _FIRST_GUESS * len(records)))
    while True:
        opened = _records.uninitialized(size)
        try:
            return memoryview(opened)[: decompress_into(records, opened)]
        except cramjam.DecompressionError as error:
            del opened  # before a larger one is allocated, and out of the tracebacks of errors
            # cramjam has one exception for all errors; only this text means that the buffer was too small.
            if "whole buffer" not in str(error):
                raise
            if size >= limit_bytes:
                raise _too_far(limit_bytes) from error
        size = min(limit_bytes, size * _FIRST_GUESS)


_DECOMPRESSORS: dict[int, Callable[[memoryview, int], bytes | bytearray | memoryview]] = {
    GZIP: _gzip,
    SNAPPY: _snappy,
    LZ4: _lz4,
    ZSTD: _zstd,
}
