"""A record batch with some of its records, as compaction leaves it.

What stays: base offset and last offset (so batches still follow each other without a gap), leader epoch, producer id,
epoch and first sequence, codec, and each kept record with its own offset, time, key, value and headers. What changes:
the count, the newest timestamp, the CRC. A **delete horizon** takes the place of the first timestamp, which the records
count from: when it is over, tombstones of the batch (or the transaction marker that it is) may go. That is the layout
of MemoryRecords.filterTo and DefaultRecordBatch of Kafka 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from kshare_wire.record_batches import (
    COMPRESSION_NAMES,
    HEADER_LENGTH,
    LENGTH_PREFIX,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
)
from kshare_wire.record_reading import OpenedRecord

DELETE_HORIZON_MASK = 0x40

_NO_PRODUCER = -1
_BUILDER_LIMIT_BYTES = (1 << 31) - 1
_START = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")

_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip_encode,
    "snappy": snappy_encode,
    "lz4": lz4_encode,
    "zstd": zstd_encode,
}


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """When the batch's tombstones may go; None where compaction has not yet met one in it."""
    return header.first_timestamp_ms if header.attributes & DELETE_HORIZON_MASK else None


def batch_with_records(header: BatchHeader, records: Sequence[OpenedRecord], horizon_ms: int | None) -> bytes:
    """The batch of `header` with `records` only, which are at least one, and a delete horizon where one is given."""
    first_timestamp_ms = records[0].timestamp_ms if horizon_ms is None else horizon_ms
    encoded = _encoded(header, records, first_timestamp_ms)
    if header.compression:
        encoded = _COMPRESSORS[COMPRESSION_NAMES[header.compression]](encoded)
    attributes = header.attributes & ~DELETE_HORIZON_MASK
    newest_ms = max([record.timestamp_ms for record in records])
    checked = _CHECKED.pack(
        attributes if horizon_ms is None else attributes | DELETE_HORIZON_MASK,
        header.last_offset_delta,
        first_timestamp_ms,
        header.max_timestamp_ms if header.is_log_append_time else max(newest_ms, NO_TIMESTAMP),
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(records),
    )
    crc = crc32c(encoded, crc32c(checked))
    length = HEADER_LENGTH - LENGTH_PREFIX + len(encoded)
    start = _START.pack(header.base_offset, length, header.partition_leader_epoch, MAGIC, crc)
    return b"".join((start, checked, encoded))


def _encoded(header: BatchHeader, records: Sequence[OpenedRecord], first_timestamp_ms: int) -> bytes:
    """The records one after the other, as they lie in a batch with this first timestamp."""
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=0,
        is_transactional=0,
        producer_id=_NO_PRODUCER,
        producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER,
        batch_size=_BUILDER_LIMIT_BYTES,
    )
    # The builder counts times from its first record's; that record only says where from, and is cut off again.
    leading = builder.append(0, first_timestamp_ms, None, None, [])
    for record in records:
        offset_delta = record.offset - header.base_offset
        builder.append(offset_delta, record.timestamp_ms, record.key, record.value, record.headers)
    return bytes(memoryview(builder.build())[HEADER_LENGTH + leading.size :])
