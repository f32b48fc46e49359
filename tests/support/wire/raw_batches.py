"""Record batches built byte by byte, so that each of their fields may be wrong while the CRC is right.

The layout is that of Kafka's DefaultRecordBatch and DefaultRecord (message format v2).
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence

import cramjam
from crc32c import crc32c

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def varint(number: int) -> bytes:
    """The zigzag encoding of a signed number of up to 64 bits."""
    value = (number << 1) ^ (number >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(data: bytes | None, length: int | None = None) -> bytes:
    """A length, which may be untrue, and the bytes."""
    found = (-1 if data is None else len(data)) if length is None else length
    return varint(found) + (data or b"")


def record(
    offset_delta: int = 0,
    *,
    timestamp_delta: int = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    header_count: int | None = None,
    key_length: int | None = None,
    value_length: int | None = None,
    length_added: int = 0,
    after: bytes = b"",
) -> bytes:
    """One record; `length_added` makes its length untrue, `after` comes behind its headers and counts."""
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta)
    body += sized(key, key_length) + sized(value, value_length)
    body += varint(len(headers) if header_count is None else header_count)
    body += b"".join(sized(name) + sized(data) for name, data in headers) + after
    return varint(len(body) + length_added) + body


def compressed(data: bytes, codec: str) -> bytes:
    """As Java's producer compresses: snappy in the frames of the xerial library."""
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "snappy":
        block = bytes(cramjam.snappy.compress_raw(data))
        return _XERIAL_HEADER + struct.pack(">I", len(block)) + block
    if codec == "lz4":
        return lz4_frame(data)
    return bytes(cramjam.zstd.compress(data)) if codec == "zstd" else data


def lz4_frame(data: bytes, *, independent_blocks: bool = True) -> bytes:
    """A frame of blocks of up to 64 KiB, without checksums of the contents, as Kafka writes them."""
    start = b"\x60\x40\x82" if independent_blocks else b"\x40\x40\xc0"
    frame = bytearray(struct.pack("<I", 0x184D2204) + start)
    for position in range(0, len(data), 65_536):
        block = bytes(cramjam.lz4.compress_block(data[position : position + 65_536], store_size=False))
        frame += struct.pack("<I", len(block)) + block
    return bytes(frame + struct.pack("<I", 0))


def raw_batch(
    records: bytes,
    *,
    count: int = 1,
    last_offset_delta: int | None = None,
    codec: str = "none",
    attributes: int | None = None,
    extra_attributes: int = 0,
    first_timestamp_ms: int,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    crc_added: int = 0,
    length_added: int = 0,
) -> bytes:
    """A batch around `records`, which are compressed already where they are to be."""
    found = CODECS.index(codec) if attributes is None else attributes
    checked = struct.pack(
        ">hiqqqhii",
        found | extra_attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        first_timestamp_ms,
        first_timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    checked += records
    crc = (crc32c(checked) + crc_added) & 0xFFFFFFFF
    length = 4 + 1 + 4 + len(checked) + length_added
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, crc) + checked


def plain_batch(records: bytes, *, codec: str = "none", **fields: int) -> bytes:
    """`raw_batch` that compresses the records."""
    fields.setdefault("first_timestamp_ms", 0)
    return raw_batch(compressed(records, codec), codec=codec, **fields)


def zstd_bomb(count: int = 16_000_000, **fields: int) -> bytes:
    """A valid batch of `count` records of 8 or 9 bytes that is a few kilobytes per million of them.

    All have the same key; the offset deltas are right only where `count` is 1, so no log takes it.
    """
    fields.setdefault("first_timestamp_ms", 0)
    return plain_batch(record(0, key=b"k", value=None) * count, codec="zstd", count=count, **fields)
