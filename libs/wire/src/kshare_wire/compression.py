"""The compression of a batch's records, and batches whose records are compressed anew for a topic's compression.type.

What is written here is what Kafka's own clients read: lz4 frames with independent blocks, snappy in xerial's blocks.
Compression takes long for large batches, all of it in C without the GIL.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from crc32c import crc32c

from kshare_wire.decompression import GZIP, LZ4, SNAPPY, ZSTD, Bytes, decompressed
from kshare_wire.record_batches import COMPRESSION_MASK, HEADER_LENGTH, LENGTH_PREFIX, BatchHeader

_LENGTH_AT = 8
_CRC_AT = 17
_CHECKED_FROM = 21
_GZIP_WINDOW_BITS = 31
LZ4_DEFAULT_LEVEL = 9
"""compression.lz4.level"""


class Codec(NamedTuple):
    """How records are compressed.

    `compression` is an index of COMPRESSION_NAMES. `level` is that of compression.gzip.level, compression.lz4.level or
    compression.zstd.level; None: the default of Kafka's brokers.
    """

    compression: int
    level: int | None = None


def compressed(records: Bytes, codec: Codec) -> Bytes:
    """The records of a batch in this codec."""
    from aiokafka import codec as codecs  # loaded when it is needed; see record_reading

    if codec.compression == 0:
        return records
    if codec.compression == GZIP:
        level = zlib.Z_DEFAULT_COMPRESSION if codec.level is None else codec.level
        compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
        return compressor.compress(records) + compressor.flush()
    if codec.compression == SNAPPY:
        return bytes(codecs.snappy_encode(records))
    if codec.compression == LZ4:
        level = LZ4_DEFAULT_LEVEL if codec.level is None else codec.level
        return bytes(codecs.lz4_encode(bytes(records), level))  # it takes nothing but bytes
    if codec.compression == ZSTD:
        return bytes(codecs.zstd_encode(records, codec.level))
    raise ValueError(f"compression type {codec.compression} is unknown")


def recompressed(batch: memoryview, header: BatchHeader, codec: Codec, limit_bytes: int) -> tuple[bytes, BatchHeader]:
    """The batch with its records in another codec, and its new header; all but length, codec and CRC stays.

    CannotDecompress, DecompressesTooFar as `decompressed`.
    """
    records = compressed(decompressed(batch[HEADER_LENGTH : header.size], header.compression, limit_bytes), codec)
    checked = bytearray(batch[_CHECKED_FROM:HEADER_LENGTH])
    attributes = header.attributes & ~COMPRESSION_MASK | codec.compression
    struct.pack_into(">h", checked, 0, attributes)
    crc = crc32c(records, crc32c(checked))
    length = HEADER_LENGTH - LENGTH_PREFIX + len(records)
    start = bytearray(batch[:_CHECKED_FROM])
    struct.pack_into(">i", start, _LENGTH_AT, length)
    struct.pack_into(">I", start, _CRC_AT, crc)
    changed = header._replace(batch_length=length, attributes=attributes, crc=crc)
    return b"".join((start, checked, records)), changed
