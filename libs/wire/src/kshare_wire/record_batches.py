"""The headers of Kafka record batches (message format v2), read and changed without opening the records.

A batch is a header of 61 bytes and its records, compressed or not. The header has all that a log needs, so the normal
path never reads the records: no decompression, and no cost that grows with the records apart from the CRC.

Base offset, batch length and partition leader epoch are before the CRC's range, so `patch` changes the offset and the
epoch with one copy of the batch and no new CRC. Log append time is within that range: `patch_times` computes a new CRC.
The layout is that of Kafka's DefaultRecordBatch; the errors of a produced batch are those of
ProduceRequest.validateRecords, LogValidator.validateBatch and UnifiedLog.analyzeAndValidateRecords of Kafka 4.3.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from kshare_core.errors import ErrorCode, KafkaError

HEADER_LENGTH = 61
"""Bytes of a batch before its records."""

LENGTH_PREFIX = 12
"""Bytes that `batch_length` does not count: the base offset and the length itself."""

MAGIC = 2
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20

COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names by the number in the attributes."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BATCH_START = struct.Struct(">qiibI")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_LEADER_EPOCH_AT = 12
_MAGIC_AT = 16
_CRC_AT = 17
_LEAST_LENGTH = 14
"""The shortest batch of message format v0 (LegacyRecord.RECORD_OVERHEAD_V0), which Kafka compares every length with."""
_CHECKED_FROM = 21
_CHECKED_HEADER = struct.Struct(">hiqqqhii")
_END_TRANSACTION = struct.Struct(">BBBBBhhBhiB")
_MAX_TIMESTAMP_AT = 35
_ATTRIBUTES_AND_TIMES = struct.Struct(">hiqq")
_ATTRIBUTES_AT = 21
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43


class BatchHeader(NamedTuple):
    """The header of one batch. `position` is where the batch begins within the bytes that were parsed."""

    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_PREFIX + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        """The number of the codec, see COMPRESSION_NAMES; not checked."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def read_header(records: bytes | memoryview, position: int = 0) -> BatchHeader:
    """The header of the batch that begins at `position`.

    KafkaError: CORRUPT_MESSAGE where the bytes end within the batch, its length is impossible or its magic was never
    used; INVALID_RECORD for the message formats v0 and v1, which Produce refuses since version 3.
    """
    remaining = len(records) - position
    if remaining <= _MAGIC_AT:
        raise _corrupt(f"a record batch was cut off: only {remaining} bytes of it are there")
    magic = records[position + _MAGIC_AT]
    if magic < MAGIC:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record batches must have magic version 2, not {magic}")
    if magic > MAGIC:
        raise _corrupt(f"a record batch has magic {magic}; 2 is the only one that is known")
    if remaining < HEADER_LENGTH:
        raise _corrupt(f"a record batch was cut off: {remaining} bytes are less than its header's {HEADER_LENGTH}")
    header = BatchHeader(position, *_HEADER.unpack_from(records, position))
    if header.size < HEADER_LENGTH:
        raise _corrupt(f"a record batch has length {header.batch_length}, less than its header alone")
    if header.size > remaining:
        raise _corrupt(f"a record batch was cut off: it has {header.size} bytes, of which {remaining} are there")
    return header


def leader_epoch_of(batch: bytes | memoryview) -> int:
    """The leader epoch in which a stored batch was written (partitionLeaderEpoch); -1 where it is too short for one."""
    if len(batch) < _LEADER_EPOCH_AT + _EPOCH.size:
        return -1
    (leader_epoch,) = _EPOCH.unpack_from(batch, _LEADER_EPOCH_AT)
    return int(leader_epoch)


def first_record_time_ms(batch: bytes | memoryview) -> int:
    """The time of the first record of a stored batch by its timestamp type; NO_TIMESTAMP where it has none."""
    attributes, _, first_ms, max_ms = _ATTRIBUTES_AND_TIMES.unpack_from(batch, _ATTRIBUTES_AT)
    time_ms: int = max_ms if attributes & TIMESTAMP_TYPE_MASK else first_ms
    return time_ms


def read_headers(records: bytes | memoryview) -> list[BatchHeader]:
    """The headers of all batches, one after the other; KafkaError as `read_header` for the first invalid one."""
    headers: list[BatchHeader] = []
    position = 0
    while position < len(records):
        header = read_header(records, position)
        headers.append(header)
        position += header.size
    return headers


def computed_crc(records: bytes | memoryview, header: BatchHeader) -> int:
    """The CRC32C computed from the batch's bytes."""
    view = memoryview(records)
    return crc32c(view[header.position + _CHECKED_FROM : header.position + header.size])


def check_crc(records: bytes | memoryview, header: BatchHeader) -> None:
    """KafkaError CORRUPT_MESSAGE where the batch's CRC does not match its bytes."""
    found = computed_crc(records, header)
    if found != header.crc:
        raise _corrupt(f"Record is corrupt (stored crc = {header.crc}, computed crc = {found})")


def read_produced_batch(records: bytes | memoryview, max_bytes: int | None = None) -> BatchHeader:
    """The header of the one batch that a producer sent for a partition; KafkaError where it is invalid.

    Bytes after the batch that are no whole batch are not part of it, as in Kafka: take `header.size` bytes. A batch of
    more than `max_bytes` (max.message.bytes) is MESSAGE_TOO_LARGE. `record_checks` checks the records.
    """
    position = _next_batch(records, 0)
    if position is None:
        raise _invalid("a Produce request must have exactly one record batch per partition; there is none")
    if records[_MAGIC_AT] != MAGIC:
        raise _invalid(f"record batches must have magic version 2, not {records[_MAGIC_AT]}")
    if position < HEADER_LENGTH:
        raise _corrupt(f"a record batch has {position} bytes, less than its header's {HEADER_LENGTH}")
    if _next_batch(records, position) is not None:
        raise _invalid("a Produce request must have exactly one record batch per partition; there are more")
    header = BatchHeader(0, *_HEADER.unpack_from(records, 0))
    if header.base_offset != 0:
        raise _invalid(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    if max_bytes is not None and header.size > max_bytes:
        text = f"the record batch has {header.size} bytes; max.message.bytes allows {max_bytes}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
    check_crc(records, header)
    _check_produced(header)
    return header


def _next_batch(records: bytes | memoryview, position: int) -> int | None:
    """The end of the batch at `position`; None where no whole batch is left (ByteBufferLogInputStream).

    KafkaError CORRUPT_MESSAGE for an impossible length or magic.
    """
    remaining = len(records) - position
    if remaining < LENGTH_PREFIX:
        return None
    (length,) = _EPOCH.unpack_from(records, position + 8)
    if length < _LEAST_LENGTH:
        raise _corrupt(f"Record size {length} is less than the minimum record overhead ({_LEAST_LENGTH})")
    if remaining <= _MAGIC_AT:
        return None
    magic = records[position + _MAGIC_AT]
    if magic > MAGIC:
        raise _corrupt(f"Invalid magic found in record: {magic if magic < 128 else magic - 256}")
    end: int = position + LENGTH_PREFIX + length
    return end if end <= len(records) else None


def _check_produced(header: BatchHeader) -> None:
    compression = header.attributes & COMPRESSION_MASK
    if compression >= len(COMPRESSION_NAMES):
        known = ", ".join(f"{code} {name}" for code, name in enumerate(COMPRESSION_NAMES))
        text = f"compression type {compression} is unknown; there are {known}"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    if header.record_count <= 0:
        raise _invalid(f"a produced batch must have records; its count is {header.record_count}")
    if header.last_offset_delta != header.record_count - 1:
        raise _invalid(
            f"a produced batch with {header.record_count} records must have the last offset delta "
            f"{header.record_count - 1}, not {header.last_offset_delta}"
        )
    if header.attributes & CONTROL_MASK:
        raise _invalid("clients are not allowed to write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise _invalid(f"a batch of producer {header.producer_id} must have a sequence, not {header.base_sequence}")


def patch(batch: bytes | memoryview, base_offset: int, leader_epoch: int) -> bytes:
    """The batch with its base offset and partition leader epoch. One copy; the CRC stays valid."""
    view = memoryview(batch)
    return b"".join((_OFFSET.pack(base_offset), view[8:12], _EPOCH.pack(leader_epoch), view[16:]))


def patch_times(
    batch: bytes | memoryview, base_offset: int, leader_epoch: int, max_timestamp_ms: int, *, log_append_time: bool
) -> bytes:
    """As `patch`; sets max timestamp, timestamp type and CRC too (DefaultRecordBatch.setMaxTimestamp).

    For message.timestamp.type=LogAppendTime, and for headers whose times differ from those of their records.
    """
    view = memoryview(batch)
    checked = bytearray(view[_CHECKED_FROM:HEADER_LENGTH])
    checked[1] = checked[1] | TIMESTAMP_TYPE_MASK if log_append_time else checked[1] & ~TIMESTAMP_TYPE_MASK
    _OFFSET.pack_into(checked, _MAX_TIMESTAMP_AT - _CHECKED_FROM, max_timestamp_ms)
    records = view[HEADER_LENGTH:]
    crc = crc32c(records, crc32c(checked))
    return b"".join(
        (
            _OFFSET.pack(base_offset),
            view[8:12],
            _EPOCH.pack(leader_epoch),
            view[_MAGIC_AT:_CRC_AT],
            _CRC.pack(crc),
            checked,
            records,
        )
    )


def patch_producer(batch: bytes | memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The batch as one of a transaction of this producer, whose first record has `base_sequence`; with a new CRC."""
    view = memoryview(batch)
    checked = bytearray(view[_CHECKED_FROM:HEADER_LENGTH])
    checked[1] |= TRANSACTIONAL_MASK
    _PRODUCER.pack_into(checked, _PRODUCER_AT - _CHECKED_FROM, producer_id, producer_epoch, base_sequence)
    crc = crc32c(view[HEADER_LENGTH:], crc32c(checked))
    return b"".join((view[:_CRC_AT], _CRC.pack(crc), checked, view[HEADER_LENGTH:]))


def build_end_transaction_marker(
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    committed: bool,
    coordinator_epoch: int,
    log_append_time: bool = False,
) -> bytes:
    """The control batch that ends a transaction (MemoryRecords.withEndTransactionMarker, EndTransactionMarker).

    Its one record has the key version (0) and type (0 ABORT, 1 COMMIT), 2 bytes each; the value version (0), 2 bytes,
    and the coordinator epoch, 4 bytes. `log_append_time` sets the timestamp type.
    """
    attributes = TRANSACTIONAL_MASK | CONTROL_MASK | (TIMESTAMP_TYPE_MASK if log_append_time else 0)
    # Lengths and deltas are zigzag varints: 32 is a length of 16 bytes, 8 of 4, 12 of 6.
    record = _END_TRANSACTION.pack(32, 0, 0, 0, 8, 0, int(committed), 12, 0, coordinator_epoch, 0)
    header = _CHECKED_HEADER.pack(
        attributes, 0, timestamp_ms, timestamp_ms, producer_id, producer_epoch, NO_SEQUENCE, 1
    )
    checked = header + record
    length = HEADER_LENGTH + len(record) - LENGTH_PREFIX
    start = _BATCH_START.pack(base_offset, length, leader_epoch, MAGIC, crc32c(checked))
    return start + checked


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
