"""The rewriting of a record batch with some of its records removed, for compaction.

These stay: base offset and last offset (so batches still follow each other without a gap), leader epoch, producer id,
epoch and first sequence, codec, and each kept record with its own offset, time, key, value and headers. These change:
the count, the newest timestamp, the CRC. A **delete horizon** replaces the first timestamp, to which the records'
timestamps are relative: after it, tombstones of the batch (or the transaction marker that it is) may be removed. The
layout is that of MemoryRecords.filterTo and DefaultRecordBatch of Kafka 4.3.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from kshare_wire import _records
from kshare_wire.compression import Codec, compressed
from kshare_wire.record_batches import (
    HEADER_LENGTH,
    LENGTH_PREFIX,
    MAGIC,
    BatchHeader,
)
from kshare_wire.record_walks import OpenedBatch, unreadable

DELETE_HORIZON_MASK = 0x40

_START = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """The time after which the batch's tombstones may be removed; None where compaction has not processed one yet."""
    return header.first_timestamp_ms if header.attributes & DELETE_HORIZON_MASK else None


def batch_with_records(opened: OpenedBatch, flags: bytes | bytearray, horizon_ms: int | None) -> bytes:
    """The batch with the records whose flag (a byte for each) is not 0, and with a delete horizon where one is given.

    At least one record must stay. For a large batch this takes long, all of it without the GIL. KafkaError
    CORRUPT_MESSAGE where the records cannot be read.
    """
    header = opened.header
    try:
        encoded, count, newest_ms, first_timestamp_ms = _records.keep(
            opened.records, flags, header.first_timestamp_ms, horizon_ms or 0, horizon_ms is None
        )
    except ValueError as error:
        raise unreadable(header, error) from error
    if header.compression:
        encoded = bytes(compressed(encoded, Codec(header.compression)))
    attributes = header.attributes & ~DELETE_HORIZON_MASK
    checked = _CHECKED.pack(
        attributes if horizon_ms is None else attributes | DELETE_HORIZON_MASK,
        header.last_offset_delta,
        first_timestamp_ms,
        header.max_timestamp_ms if header.is_log_append_time else newest_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    crc = crc32c(encoded, crc32c(checked))
    length = HEADER_LENGTH - LENGTH_PREFIX + len(encoded)
    start = _START.pack(header.base_offset, length, header.partition_leader_epoch, MAGIC, crc)
    return b"".join((start, checked, encoded))
