"""Walks over a stored batch's records that make no Python object for each record: look-ups by time, keys in pieces.

A batch is opened once, which decompresses it within a limit, and then walked over in C. Both release the GIL, so they
can run on a thread. Records that cannot be read are KafkaError CORRUPT_MESSAGE.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire import _records
from kshare_wire.decompression import CannotDecompress, decompressed
from kshare_wire.record_batches import HEADER_LENGTH, BatchHeader, read_header
from kshare_wire.record_checks import PROBLEMS

KEYS_AT_ONCE = 5_000
KEY_PIECE_BYTES = 256 * 1024
"""A piece of keys ends with the record that reaches one of the two limits; 5,000 records take about 1 ms."""


class OpenedBatch(NamedTuple):
    """A batch's header, and its records after decompression."""

    header: BatchHeader
    records: bytes | bytearray | memoryview


class KeyPiece(NamedTuple):
    """Offset deltas, keys and null-value flags of some records; `position` is where the next piece begins."""

    position: int
    entries: list[tuple[int, bytes | None, bool]]


def open_batch(batch: bytes | memoryview, limit_bytes: int) -> OpenedBatch:
    """Opens a batch. KafkaError CORRUPT_MESSAGE; DecompressesTooFar where it would decompress beyond `limit_bytes`."""
    header = read_header(batch)
    try:
        records = decompressed(memoryview(batch)[HEADER_LENGTH : header.size], header.compression, limit_bytes)
    except CannotDecompress as error:
        raise unreadable(header, error) from error
    return OpenedBatch(header, records)


def check_structure(opened: OpenedBatch) -> None:
    """KafkaError CORRUPT_MESSAGE where consumers cannot read the batch; gaps that compaction left are allowed."""
    header, records = opened
    count = header.record_count
    if count <= 0 or header.last_offset_delta < count - 1:
        raise unreadable(header, f"{count} records do not fit into {header.last_offset_delta + 1} offsets")
    problem, index, wrong_offset, *_ = _records.check(
        records, count, header.first_timestamp_ms, False, 0, False, False, 0, 0, 0
    )
    if problem:
        raise unreadable(header, f"record {index} of {count}: {PROBLEMS[problem]}")
    if wrong_offset >= 0 and header.last_offset_delta == count - 1:
        raise unreadable(header, f"record {wrong_offset} has another offset delta")


def first_record_at(opened: OpenedBatch, timestamp_ms: int, first_offset: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record from `first_offset` on at `timestamp_ms` or newer."""
    header, records = opened
    try:
        found = _records.find_time(records, header.first_timestamp_ms, timestamp_ms, first_offset - header.base_offset)
    except ValueError as error:
        raise unreadable(header, error) from error
    return None if found is None else (header.base_offset + found[0], found[1])


def newest_timestamp(opened: OpenedBatch, first_offset: int) -> int:
    """The newest timestamp of the records from `first_offset` on; -1 where none has one."""
    header, records = opened
    try:
        return _records.newest_time(records, header.first_timestamp_ms, first_offset - header.base_offset)
    except ValueError as error:
        raise unreadable(header, error) from error


def take_keys(opened: OpenedBatch, position: int) -> KeyPiece:
    """The next piece of keys; it is the last one where its `position` is the length of the records."""
    try:
        return KeyPiece(*_records.take_keys(opened.records, position, KEYS_AT_ONCE, KEY_PIECE_BYTES))
    except ValueError as error:
        raise unreadable(opened.header, error) from error


def unreadable(header: BatchHeader, why: object) -> KafkaError:
    text = f"the records of the batch at offset {header.base_offset} cannot be read: {why}"
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
