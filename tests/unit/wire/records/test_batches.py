"""Headers of record batches: their fields, refused values, and how a batch gets its place in a log."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire import record_batches
from kshare_wire.record_batches import HEADER_LENGTH, check_crc, read_header, read_headers, read_produced_batch
from support.wire.record_building import build_batch, damage

VALUES = st.lists(st.binary(max_size=200), min_size=1, max_size=20)
CODECS = st.integers(0, 4)


@given(VALUES, CODECS, st.data())
def test_header_says_what_the_builder_was_told(values: list[bytes], codec: int, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 1 << 40), min_size=len(values), max_size=len(values)))
    sequence = data.draw(st.integers(0, (1 << 31) - 1))
    batch = build_batch(
        values, compression=codec, timestamps_ms=times, producer_id=7, producer_epoch=3, base_sequence=sequence
    )
    header = read_produced_batch(memoryview(batch))
    assert header.size == len(batch)
    assert header.record_count == len(values)
    assert header.last_offset_delta == header.last_offset == len(values) - 1
    assert (header.first_timestamp_ms, header.max_timestamp_ms) == (times[0], max(times))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, sequence)
    # the builder stores a batch uncompressed where compression would make it longer
    assert header.compression in (0, codec)
    assert not (header.is_control or header.is_transactional or header.is_log_append_time)


@given(st.lists(VALUES, max_size=5), CODECS)
def test_headers_of_many_batches_are_read_in_one_pass(groups: list[list[bytes]], codec: int) -> None:
    batches = [build_batch(values, compression=codec) for values in groups]
    headers = read_headers(memoryview(b"".join(batches)))
    assert [header.record_count for header in headers] == [len(values) for values in groups]
    assert [header.position for header in headers] == [sum(map(len, batches[:index])) for index in range(len(batches))]


@given(VALUES, CODECS, st.integers(0, (1 << 63) - 1000), st.integers(0, (1 << 31) - 1))
def test_patch_changes_offset_and_epoch_only(values: list[bytes], codec: int, offset: int, epoch: int) -> None:
    batch = build_batch(values, compression=codec)
    patched = record_batches.patch(memoryview(batch), offset, epoch)
    header = read_header(patched)
    check_crc(patched, header)
    assert (header.base_offset, header.partition_leader_epoch) == (offset, epoch)
    assert (patched[8:12], patched[16:]) == (batch[8:12], batch[16:])
    assert DefaultRecordBatch(patched).validate_crc()


@given(VALUES, CODECS, st.integers(0, 1 << 50))
def test_log_append_time_is_under_a_new_crc(values: list[bytes], codec: int, now_ms: int) -> None:
    batch = build_batch(values, compression=codec)
    patched = record_batches.patch_times(memoryview(batch), 500, 2, now_ms, log_append_time=True)
    header = read_header(patched)
    check_crc(patched, header)
    assert (header.base_offset, header.partition_leader_epoch) == (500, 2)
    assert header.max_timestamp_ms == now_ms and header.is_log_append_time
    assert header.compression == read_header(batch).compression
    assert patched[HEADER_LENGTH:] == batch[HEADER_LENGTH:]
    assert [record.timestamp for record in DefaultRecordBatch(patched)] == [now_ms] * len(values)


THREE = build_batch([b"a", b"b", b"c"])

BAD: list[tuple[str, Callable[[], bytes], ErrorCode]] = [
    ("nothing", lambda: b"", ErrorCode.INVALID_RECORD),
    ("two batches", lambda: THREE + THREE, ErrorCode.INVALID_RECORD),
    ("a few bytes", lambda: THREE[:16], ErrorCode.INVALID_RECORD),
    ("half a header", lambda: THREE[:60], ErrorCode.INVALID_RECORD),
    ("the last byte missing", lambda: THREE[:-1], ErrorCode.INVALID_RECORD),
    ("a flipped bit", lambda: damage(THREE, 70, "B", THREE[70] ^ 1, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("length 2^31-1", lambda: damage(THREE, 8, ">i", (1 << 31) - 1), ErrorCode.INVALID_RECORD),
    ("length 0", lambda: damage(THREE, 8, ">i", 0), ErrorCode.CORRUPT_MESSAGE),
    ("length -1", lambda: damage(THREE, 8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    ("length 48", lambda: damage(THREE, 8, ">i", 48), ErrorCode.CORRUPT_MESSAGE),
    ("magic 0", lambda: damage(THREE, 16, "b", 0), ErrorCode.INVALID_RECORD),
    ("magic 1", lambda: damage(THREE, 16, "b", 1), ErrorCode.INVALID_RECORD),
    ("magic 3", lambda: damage(THREE, 16, "b", 3), ErrorCode.CORRUPT_MESSAGE),
    ("magic -1", lambda: damage(THREE, 16, "b", -1), ErrorCode.CORRUPT_MESSAGE),
    ("base offset 1", lambda: damage(THREE, 0, ">q", 1), ErrorCode.INVALID_RECORD),
    ("last offset delta 2^31-1", lambda: damage(THREE, 23, ">i", (1 << 31) - 1), ErrorCode.INVALID_RECORD),
    ("last offset delta -1", lambda: damage(THREE, 23, ">i", -1), ErrorCode.INVALID_RECORD),
    ("count 0", lambda: damage(THREE, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    ("count -1", lambda: damage(THREE, 57, ">i", -1), ErrorCode.INVALID_RECORD),
    ("count 4", lambda: damage(THREE, 57, ">i", 4), ErrorCode.INVALID_RECORD),
    ("compression 5", lambda: damage(THREE, 21, ">h", 5), ErrorCode.UNKNOWN_SERVER_ERROR),
    ("control", lambda: damage(THREE, 21, ">h", 0x20), ErrorCode.INVALID_RECORD),
    ("a producer without sequence", lambda: damage(THREE, 43, ">q", 9), ErrorCode.INVALID_RECORD),
]


@pytest.mark.parametrize(("make", "code"), [pytest.param(make, code, id=name) for name, make, code in BAD])
def test_bad_batches_get_kafkas_codes(make: Callable[[], bytes], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        read_produced_batch(memoryview(make()))
    assert caught.value.code == code
    assert caught.value.message


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_no_bytes_do_more_than_fail(noise: bytes, cut: int, at: int) -> None:
    for records in (noise, THREE[:cut], THREE[:at] + noise + THREE[at:], noise[:16] + THREE[16:]):
        try:
            header = read_produced_batch(memoryview(records))
        except KafkaError as error:
            assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
        else:
            assert header.size <= len(records) and header.crc == read_header(THREE).crc


@pytest.mark.parametrize("after", [b"x", b"\0" * 11, struct.pack(">qi", 0, 1000) + b"\2" * 200])
def test_bytes_after_the_batch_that_are_no_batch_are_not_part_of_it(after: bytes) -> None:
    assert read_produced_batch(memoryview(THREE + after)).size == len(THREE)


def test_a_batch_that_is_too_large_is_refused_before_its_crc_is_computed() -> None:
    broken = memoryview(damage(THREE, len(THREE) - 1, "B", 1, fix_crc=False))
    with pytest.raises(KafkaError) as caught:
        read_produced_batch(broken, len(THREE) - 1)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_every_flipped_bit_under_the_crc_is_found() -> None:
    for at in range(17, len(THREE)):
        for bit in range(8):
            with pytest.raises(KafkaError):
                read_produced_batch(memoryview(damage(THREE, at, "B", THREE[at] ^ (1 << bit), fix_crc=False)))
