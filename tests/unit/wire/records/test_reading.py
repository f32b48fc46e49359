"""Opening batches: every codec, and hostile bytes."""

from __future__ import annotations

import struct
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire import record_batches
from kshare_wire.decompression import LZ4, CannotDecompress, decompressed
from kshare_wire.record_reading import open_records
from support.wire.record_building import build_batch, damage


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30), st.integers(0, 4), st.integers(0, 1 << 50))
def test_records_come_out_as_they_went_in(values: list[bytes], codec: int, base_offset: int) -> None:
    batch = record_batches.patch(build_batch(values, compression=codec), base_offset, 4)
    records = list(open_records(memoryview(batch)))
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(base_offset, base_offset + len(values)))
    assert [record.timestamp_ms for record in records] == list(range(1000, 1000 + len(values)))
    assert all(record.key is None and record.headers == [] for record in records)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_much_compressed_batches_open_within_the_limit_only(codec: int) -> None:
    batch = build_batch([b"x" * 3_000_000], compression=codec)
    assert len(batch) < 300_000
    assert [record.value for record in open_records(batch)] == [b"x" * 3_000_000]
    with pytest.raises(KafkaError) as caught:
        list(open_records(batch, limit_bytes=1_000_000))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@given(st.integers(0, 5), st.binary(max_size=100), st.integers(1, 40))
def test_garbage_instead_of_records_is_a_corrupt_message(codec: int, garbage: bytes, count: int) -> None:
    header = bytearray(build_batch([b"v"])[:61])
    batch = damage(bytes(header) + garbage, 21, ">h", codec)
    batch = damage(damage(batch, 57, ">i", count), 8, ">i", 49 + len(garbage))
    try:
        list(open_records(batch))
    except KafkaError as error:
        assert error.code == ErrorCode.CORRUPT_MESSAGE


def xxh32_of_few(data: bytes) -> int:
    """The xxHash (32 bits, seed 0) of less than 16 bytes."""
    mask, at = 0xFFFFFFFF, 0
    found = (374761393 + len(data)) & mask
    while at + 4 <= len(data):
        found = (found + int.from_bytes(data[at : at + 4], "little") * 3266489917) & mask
        found = ((found << 17 | found >> 15) * 668265263) & mask
        at += 4
    for byte in data[at:]:
        found = (found + byte * 374761393) & mask
        found = ((found << 11 | found >> 21) * 2654435761) & mask
    for shift, factor in ((15, 2246822519), (13, 3266489917), (16, 1)):
        found = ((found ^ found >> shift) * factor) & mask
    return found


def raw(block: bytes) -> bytes:
    """An lz4 block that is not compressed."""
    return struct.pack("<I", len(block) | 1 << 31) + block


def lz4_frame(*blocks: bytes, flags: int = 0x60, more: bytes = b"") -> bytes:
    descriptor = bytes([flags, 0x40]) + more
    checksum = xxh32_of_few(descriptor) >> 8 & 0xFF
    return b"\x04\x22\x4d\x18" + descriptor + bytes([checksum]) + b"".join(blocks) + b"\0\0\0\0"


def test_an_lz4_frame_of_raw_blocks_is_read() -> None:
    assert bytes(decompressed(memoryview(lz4_frame(raw(b"hello"), raw(b"world"))), LZ4, 100)) == b"helloworld"


@pytest.mark.parametrize(
    "frame",
    [
        lz4_frame(raw(b"hello"), flags=0x61, more=b"\0\0\0\0"),
        lz4_frame(raw(b"hello"), flags=0x62),
        lz4_frame(raw(b"hello"), b"\0\0\0\x80", raw(b"world")),
        lz4_frame(raw(b"hello"), b"\1\0\0\0\0", raw(b"world")),
    ],
)
def test_frames_that_kafkas_reader_refuses_or_ends_early(frame: bytes) -> None:
    """A dictionary, a reserved bit, and blocks that it takes for the end: what follows would be lost to its clients."""
    with pytest.raises(CannotDecompress):
        decompressed(memoryview(frame), LZ4, 100)


@pytest.mark.parametrize(
    ("codec", "compressed"),
    [
        (1, zlib.compress(b"not gzip but zlib")),
        (2, b"\xff\xff\xff\xff\x0f" + b"abc"),
        (2, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff"),
        (3, bytes(cramjam.lz4.compress(b"y" * 10_000))[:-20]),
        (4, bytes(cramjam.zstd.compress(b"y" * 10_000))[:-4]),
    ],
)
def test_broken_streams_are_corrupt_messages(codec: int, compressed: bytes) -> None:
    batch = damage(build_batch([b"v"])[:61] + compressed, 21, ">h", codec)
    batch = damage(batch, 8, ">i", 49 + len(compressed))
    with pytest.raises(KafkaError) as caught:
        list(open_records(batch))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
