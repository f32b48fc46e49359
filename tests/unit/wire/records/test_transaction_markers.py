"""The control batch that ends a transaction: byte by byte, and as aiokafka and our own readers take it."""

from __future__ import annotations

import struct

from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from kshare_wire.record_batches import build_end_transaction_marker, check_crc, read_header
from kshare_wire.record_reading import open_records

WRITTEN_BY_KAFKA = bytes.fromhex(
    "00000000000004d2"  # base offset 1234
    "00000042"  # 66 bytes follow
    "00000009"  # partition leader epoch
    "02"  # magic
    "56ae2d00"  # CRC32C of the rest
    "0030"  # attributes: transactional, control
    "00000000"  # last offset delta
    "0000018bcfe5687b"  # first timestamp 1700000000123
    "0000018bcfe5687b"  # max timestamp
    "000000000000004d"  # producer id 77
    "0005"  # producer epoch
    "ffffffff"  # no sequence
    "00000001"  # one record
    "20000000"  # 16 bytes: attributes, timestamp delta, offset delta
    "0800000001"  # key of 4 bytes: version 0, COMMIT
    "0c00000000002a"  # value of 6 bytes: version 0, coordinator epoch 42
    "00"  # no headers
)
"""MemoryRecords.withEndTransactionMarker(1234, 1700000000123, 9, 77, 5, COMMIT, epoch 42) of kafka-clients 4.3.1."""


def test_kafkas_bytes() -> None:
    marker = build_end_transaction_marker(
        base_offset=1234,
        leader_epoch=9,
        timestamp_ms=1_700_000_000_123,
        producer_id=77,
        producer_epoch=5,
        committed=True,
        coordinator_epoch=42,
    )
    assert marker == WRITTEN_BY_KAFKA


@given(
    st.integers(0, 1 << 62),
    st.integers(0, (1 << 15) - 1),
    st.booleans(),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.booleans(),
)
def test_readers_understand_it(
    producer_id: int, producer_epoch: int, committed: bool, coordinator_epoch: int, log_append_time: bool
) -> None:
    marker = build_end_transaction_marker(
        base_offset=8,
        leader_epoch=3,
        timestamp_ms=1000,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=committed,
        coordinator_epoch=coordinator_epoch,
        log_append_time=log_append_time,
    )
    header = read_header(marker)
    check_crc(marker, header)
    assert header.size == len(marker)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (8, 8, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, producer_epoch, -1)
    assert (header.is_control, header.is_transactional, header.is_log_append_time) == (True, True, log_append_time)
    (record,) = open_records(marker)
    assert (record.offset, record.timestamp_ms, record.headers) == (8, 1000, [])
    assert record.key is not None
    assert ControlRecord.parse(record.key) == (COMMIT_MARKER if committed else ABORT_MARKER)
    assert record.value == struct.pack(">hi", 0, coordinator_epoch)
    batch = DefaultRecordBatch(marker)
    assert batch.validate_crc() and batch.is_control_batch and batch.is_transactional
