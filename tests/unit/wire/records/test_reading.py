"""Opening batches: every codec, and hostile bytes."""

from __future__ import annotations

import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire import record_batches
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
