"""A reader of a batch's records as Python objects: for dead letters, traces, tools and tests.

The log itself works on headers (`record_batches`) and walks over records in C (`record_checks`, `record_walks`). Here
the records are decompressed within a limit, because a small batch may decompress to very much, and are then read by
aiokafka's C extension. All invalid bytes are KafkaError CORRUPT_MESSAGE.

aiokafka is loaded when the first batch is opened: with its clients it takes 4 to 7 MB, and most processes never open
one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire import _records
from kshare_wire.decompression import CannotDecompress, DecompressesTooFar, decompressed
from kshare_wire.record_batches import COMPRESSION_MASK, HEADER_LENGTH, BatchHeader, read_header

if TYPE_CHECKING:
    from aiokafka.record.default_records import DefaultRecordBatch

DECOMPRESSED_LIMIT_BYTES = 128 * 1024 * 1024
"""The largest batch that is opened, measured after decompression."""
HEADERS_LIMIT = 100_000
"""Headers of the records that are opened together. A header takes two bytes, thousands of which are compressed to one,
and becomes an object of 80."""

_ATTRIBUTES_AT = 21
_LENGTH_AT = 8


class TooManyHeaders(KafkaError):
    """A record that is not opened, although its batch can be read."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)
        self.offset = offset


class OpenedRecord(NamedTuple):
    """One record of a batch, with its offset in the log. `key` and `value` are None where they are null."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def open_records(batch: bytes | memoryview, *, limit_bytes: int = DECOMPRESSED_LIMIT_BYTES) -> Iterator[OpenedRecord]:
    """The records of one batch in order; KafkaError CORRUPT_MESSAGE where they cannot be read."""
    header, reader = _reader(batch, limit_bytes)
    for _ in range(header.record_count):
        try:
            record = next(reader)
        except StopIteration:
            return
        except _unreadable() as error:
            raise _corrupt(header, str(error)) from error
        yield OpenedRecord(record.offset, record.timestamp, record.key, record.value, record.headers)


def open_window(
    batch: bytes | memoryview,
    first_offset: int,
    records_limit: int,
    *,
    limit_bytes: int = DECOMPRESSED_LIMIT_BYTES,
    headers_limit: int = HEADERS_LIMIT,
) -> list[OpenedRecord]:
    """The records from `first_offset` on, at most `records_limit`; KafkaError CORRUPT_MESSAGE.

    They have at most `headers_limit` headers together; TooManyHeaders if the first one has more. Other records of the
    batch are skipped in C.
    """
    header = read_header(batch)
    view = memoryview(batch)
    records = memoryview(_decompressed(view[HEADER_LENGTH : header.size], header, limit_bytes))
    try:
        first_delta = first_offset - header.base_offset
        begins_at, ends_at, count, too_long = _records.window(records, first_delta, records_limit, headers_limit)
        if too_long >= 0:
            offset = header.base_offset + too_long
            raise TooManyHeaders(offset, f"the record at offset {offset} has more than {headers_limit} headers")
        reader = _reader_of(_without_compression(view, header, records[begins_at:ends_at]))
        found = list(islice(reader, count))
    except _unreadable() as error:
        raise _corrupt(header, str(error)) from None
    return [OpenedRecord(one.offset, one.timestamp, one.key, one.value, one.headers) for one in found]


def record_objects(batch: bytes | memoryview, *, limit_bytes: int = DECOMPRESSED_LIMIT_BYTES) -> list[Any]:
    """All records of a batch as the C extension's objects (offset, timestamp, key, value, headers).

    For readers of very many records: it takes a third of the time of `open_records` and has no generator.
    """
    header, reader = _reader(batch, limit_bytes)
    try:
        return list(reader)
    except _unreadable() as error:
        raise _corrupt(header, str(error)) from error


def _reader(batch: bytes | memoryview, limit_bytes: int) -> tuple[BatchHeader, DefaultRecordBatch]:
    header = read_header(batch)
    view = memoryview(batch)
    records = _decompressed(view[HEADER_LENGTH : header.size], header, limit_bytes)
    return header, _reader_of(_without_compression(view, header, records))


def _reader_of(batch: bytes) -> DefaultRecordBatch:
    from aiokafka.record.default_records import DefaultRecordBatch

    return DefaultRecordBatch(batch)


def _unreadable() -> tuple[type[Exception], ...]:
    """The exceptions for invalid bytes."""
    from aiokafka.errors import CorruptRecordException

    return CorruptRecordException, ValueError, OverflowError, EOFError


def _without_compression(view: memoryview, header: BatchHeader, records: bytes | bytearray | memoryview) -> bytes:
    start = bytearray(view[:HEADER_LENGTH])
    struct.pack_into(">i", start, _LENGTH_AT, HEADER_LENGTH - _LENGTH_AT - 4 + len(records))
    struct.pack_into(">h", start, _ATTRIBUTES_AT, header.attributes & ~COMPRESSION_MASK)
    return b"".join((start, records))


def _decompressed(records: memoryview, header: BatchHeader, limit_bytes: int) -> bytes | bytearray | memoryview:
    try:
        return decompressed(records, header.compression, limit_bytes)
    except (CannotDecompress, DecompressesTooFar) as error:
        raise _corrupt(header, str(error)) from error


def _corrupt(header: BatchHeader, why: str) -> KafkaError:
    text = f"the records of the batch at offset {header.base_offset} cannot be read: {why}"
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
