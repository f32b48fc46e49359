"""The C walks over records beside a naive reader in Python: the same answers for any bytes, and never a crash."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from typing import NamedTuple

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire import _records
from kshare_wire.decompression import GZIP, SNAPPY, CannotDecompress, DecompressesTooFar, decompressed
from kshare_wire.record_batches import read_produced_batch
from kshare_wire.record_checks import InvalidRecords, RecordRules, check_records
from support.wire.malformed_batches import cases
from support.wire.raw_batches import CODECS, compressed, plain_batch, record, varint
from support.wire.record_building import damage

FIRST_MS = 1_000
RULES = RecordRules("topic-0", False, False, -(1 << 63), (1 << 63) - 1, 1 << 27)


class NaiveRecord(NamedTuple):
    offset_delta: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Unreadable(Exception):
    pass


class NaiveReader:
    """Reads as the format is described, byte by byte."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.end = data, 0, len(data)

    def number(self, bytes_limit: int, bits: int) -> int:
        value = 0
        for index in range(bytes_limit):
            if self.at >= self.end:
                raise Unreadable
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                value &= (1 << bits) - 1
                return (value >> 1) ^ -(value & 1)
        raise Unreadable

    def sized(self) -> bytes | None:
        length = self.number(5, 32)
        if length < 0:
            return None
        if length > self.end - self.at:
            raise Unreadable
        self.at += length
        return self.data[self.at - length : self.at]

    def record(self) -> NaiveRecord:
        length = self.number(5, 32)
        if length < 1 or length > self.end - self.at:
            raise Unreadable
        whole_end, self.end = self.end, self.at + length
        self.at += 1
        delta_ms, offset_delta = self.number(10, 64), self.number(5, 32)
        key, value = self.sized(), self.sized()
        count = self.number(5, 32)
        if count < 0 or count > self.end - self.at:
            raise Unreadable
        for _ in range(count):
            if self.sized() is None:
                raise Unreadable
            self.sized()
        if self.at != self.end:
            raise Unreadable
        self.end = whole_end
        return NaiveRecord(offset_delta, wrapped(FIRST_MS + delta_ms), key, value)


def wrapped(value: int) -> int:
    """As Java's long."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def naive_records(data: bytes) -> list[NaiveRecord] | None:
    """All records, None where one of them cannot be read."""
    reader, found = NaiveReader(data), []
    try:
        while reader.at < reader.end:
            found.append(reader.record())
    except Unreadable:
        return None
    return found


OPTIONAL = st.none() | st.binary(max_size=20)
RECORDS = st.lists(
    st.builds(
        record,
        st.integers(-3, 5) | st.integers(-(1 << 31), (1 << 31) - 1),
        timestamp_delta=st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1),
        key=OPTIONAL,
        value=OPTIONAL,
        headers=st.lists(st.tuples(st.binary(max_size=5), OPTIONAL), max_size=3),
        length_added=st.sampled_from([0, 0, 0, 0, 0, 0, 0, 0, 1, -1]),
    ),
    max_size=8,
).map(b"".join)


@st.composite
def any_records(draw: st.DrawFn) -> bytes:
    """Records with a few bytes changed, put in or cut out; or noise."""
    data = bytearray(draw(RECORDS | st.binary(max_size=60)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@given(any_records(), st.integers(-1, 10), st.booleans(), st.integers(FIRST_MS - 6, FIRST_MS + 6))
def test_the_check_agrees_with_a_naive_reader(data: bytes, count: int, needs_keys: bool, lowest_ms: int) -> None:
    problem, _, wrong_offset, newest_ms, error_count, errors = _records.check(
        data, count, FIRST_MS, False, 0, needs_keys, True, lowest_ms, lowest_ms + 3, 100
    )
    found = naive_records(data)
    is_good = found is not None and len(found) == max(count, 0)
    assert (problem == 0) == is_good
    if found is None or not is_good:
        return
    wrong = [index for index, one in enumerate(found) if one.offset_delta != index]
    assert wrong_offset == (wrong[0] if wrong else -1)
    assert newest_ms == max([-1, *(one.timestamp_ms for one in found)])
    expected = [
        (index, 1 if needs_keys and one.key is None else 2, one.timestamp_ms)
        for index, one in enumerate(found)
        if (needs_keys and one.key is None)
        or (one.timestamp_ms != -1 and not lowest_ms <= one.timestamp_ms <= lowest_ms + 3)
    ]
    assert (error_count, errors) == (len(expected), expected)


@given(any_records(), st.integers(FIRST_MS - 6, FIRST_MS + 6), st.integers(-3, 5))
def test_look_ups_by_time_agree_with_a_naive_reader(data: bytes, wanted_ms: int, lowest_delta: int) -> None:
    found = naive_records(data)
    if found is None:
        with pytest.raises(ValueError, match="cannot be read"):
            _records.newest_time(data, FIRST_MS, lowest_delta)
        return
    late = [one for one in found if one.offset_delta >= lowest_delta]
    assert _records.newest_time(data, FIRST_MS, lowest_delta) == max([-1, *(one.timestamp_ms for one in late)])
    first = next(((one.offset_delta, one.timestamp_ms) for one in late if one.timestamp_ms >= wanted_ms), None)
    assert _records.find_time(data, FIRST_MS, wanted_ms, lowest_delta) == first


@given(any_records(), st.integers(1, 3), st.integers(1, 40))
def test_keys_come_in_pieces(data: bytes, records_limit: int, bytes_limit: int) -> None:
    found = naive_records(data)
    position, taken = 0, []
    try:
        while position < len(data):
            position, piece = _records.take_keys(data, position, records_limit, bytes_limit)
            assert 1 <= len(piece) <= records_limit
            taken += piece
    except ValueError:
        assert found is None
        return
    assert found is not None
    assert taken == [(one.offset_delta, one.key, one.value is None) for one in found]


@given(any_records(), st.integers(-3, 5), st.integers(0, 3))
def test_a_window_begins_at_an_offset_and_has_a_few_records(data: bytes, lowest_delta: int, limit: int) -> None:
    found = naive_records(data)
    if found is None:
        return  # the damage may lie behind the window
    begins_at, ends_at, count, too_long = _records.window(data, lowest_delta, limit, 1_000)
    assert too_long == -1
    late = next((index for index, one in enumerate(found) if one.offset_delta >= lowest_delta), len(found))
    assert naive_records(data[begins_at:ends_at]) == found[late : late + limit]
    assert count == len(found[late : late + limit])


@pytest.mark.parametrize(("limit", "count"), [(7, 3), (6, 3), (5, 2), (2, 1)])
def test_a_window_ends_before_the_record_with_one_header_too_many(limit: int, count: int) -> None:
    headers = [(b"k", None), (b"", b"v")]
    data = b"".join(record(delta, headers=headers) for delta in range(3))
    assert _records.window(data, 0, 10, limit)[2:] == (count, -1)
    assert _records.window(data, 1, 10, 1)[2:] == (0, 1)


@given(any_records(), st.data(), st.integers(-(1 << 62), 1 << 62))
def test_kept_records_are_the_same_with_times_from_another_first_one(
    data: bytes, draw: st.DataObject, new_first_ms: int
) -> None:
    found = naive_records(data)
    flags = draw.draw(
        st.binary(min_size=len(found or ()), max_size=len(found or ())).map(lambda b: bytes(x & 1 for x in b))
    )
    if found is None:
        with pytest.raises(ValueError, match="cannot be read"):
            _records.keep(data, flags, FIRST_MS, new_first_ms, False)
        return
    kept, count, newest_ms, first_ms = _records.keep(data, flags, FIRST_MS, new_first_ms, False)
    expected = [one for one, flag in zip(found, flags, strict=True) if flag]
    again = naive_records(kept)
    assert again is not None
    moved = [one._replace(timestamp_ms=wrapped(one.timestamp_ms - FIRST_MS + new_first_ms)) for one in again]
    assert moved == expected
    assert first_ms == new_first_ms
    if expected:
        assert _records.keep(data, flags, FIRST_MS, 0, True)[3] == expected[0].timestamp_ms
    assert (count, newest_ms) == (len(expected), max([-1, *(one.timestamp_ms for one in expected)]))
    with pytest.raises(ValueError, match="not as many"):
        _records.keep(data, flags + b"\1", FIRST_MS, new_first_ms, False)


@given(st.sampled_from([case.records for case in cases(1_000_000)]), st.data())
def test_no_batch_does_more_than_fail(records: bytes, draw: st.DataObject) -> None:
    changed = bytearray(records)
    if changed:
        at = draw.draw(st.integers(0, len(changed) - 1))
        changed[at] = draw.draw(st.integers(0, 255))
    for data in (records, bytes(changed)):
        try:
            check_records(memoryview(data), read_produced_batch(memoryview(data)), RULES)
        except KafkaError as error:
            assert error.message


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_decompresses_too_far_is_refused(codec: str) -> None:
    batch = memoryview(plain_batch(record(0, value=b"x" * 3_000_000), codec=codec))
    header = read_produced_batch(batch)
    assert check_records(batch, header, RULES) == 0
    with pytest.raises(KafkaError, match=r"kshare\.max\.decompressed\.batch\.bytes") as caught:
        check_records(batch, header, RULES._replace(limit_bytes=1_000_000))
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(DecompressesTooFar):
        check_records(batch, header, RULES, 1_000_000)


@pytest.mark.parametrize("says_log_append_time", [False, True])
def test_the_times_that_a_log_takes_are_in_the_range(says_log_append_time: bool) -> None:
    """A batch that says LogAppendTime has one time for all records, but a CreateTime topic takes their own."""
    far = 1 << 61
    batch = plain_batch(record(0, timestamp_delta=far))
    batch = damage(batch, 21, ">h", 8 if says_log_append_time else 0)
    rules = RULES._replace(lowest_ms=0, highest_ms=10_000)
    with pytest.raises(InvalidRecords) as caught:
        check_records(memoryview(batch), read_produced_batch(memoryview(batch)), rules)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP


def test_a_refusal_names_a_thousand_records_at_most() -> None:
    batch = memoryview(plain_batch(b"".join(record(delta, key=None) for delta in range(2_000)), count=2_000))
    with pytest.raises(InvalidRecords, match="due to 2000 record errors in total") as caught:
        check_records(batch, read_produced_batch(batch), RULES._replace(needs_keys=True))
    assert len(caught.value.record_errors) == 1_000


def test_many_small_streams_do_not_add_up() -> None:
    """Each gzip member and each snappy block costs a call, so their numbers have a limit."""
    with pytest.raises(CannotDecompress, match="more than 16 gzip members"):
        decompressed(memoryview(gzip.compress(b"") * 50_000), GZIP, 1 << 27)
    block = bytes(cramjam.snappy.compress_raw(b"x"))
    blocks = (struct.pack(">I", len(block)) + block) * 10_001
    with pytest.raises(CannotDecompress, match="more than 10000 snappy blocks"):
        decompressed(memoryview(compressed(b"", "snappy")[:16] + blocks), SNAPPY, 1 << 27)


def test_a_snappy_block_cannot_make_more_be_allocated_than_its_bytes_justify() -> None:
    with pytest.raises(CannotDecompress, match="declares 100000000"):
        decompressed(memoryview(varint(50_000_000) + b"abc"), SNAPPY, 1 << 27)


def test_gzip_copies_no_more_than_a_piece_of_what_it_reads() -> None:
    """zlib keeps a copy of what a call was given and did not read, which was all the rest, once for each 256 KiB."""
    plain = random.Random(1).randbytes(4 * 1024 * 1024)
    member = gzip.compress(plain, 1)
    tracemalloc.start()
    try:
        assert decompressed(memoryview(member), GZIP, 1 << 27) == plain
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 1.5 * len(plain)


@pytest.mark.parametrize("length", [0, 1, 256 * 1024 - 20, 256 * 1024, 600_000])
def test_gzip_members_and_the_bytes_behind_them(length: int) -> None:
    """A member may end anywhere in the pieces in which it is read."""
    plain = random.Random(length).randbytes(length)
    member = gzip.compress(plain, 0)
    assert decompressed(memoryview(member * 3 + b"no gzip"), GZIP, 1 << 27) == plain * 3
    assert decompressed(memoryview(gzip.compress(bytes(length))), GZIP, 1 << 27) == bytes(length)
    with pytest.raises(CannotDecompress, match="cut off"):
        decompressed(memoryview(member[:-1]), GZIP, 1 << 27)
