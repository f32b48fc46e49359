"""Record batches for tests, built by aiokafka as a producer would."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from kshare_leader.log.batch_validation import CheckedBatch, ProducedBatch, rules_of
from kshare_leader.log.topic_settings import TopicSettings


def build_batch(
    values: Sequence[bytes | None] = (b"value",),
    *,
    keys: Sequence[bytes | None] | None = None,
    compression: int = 0,
    timestamps_ms: Sequence[int] | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One batch with base offset 0; `timestamps_ms` defaults to 1000, 1001, …"""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 30,
    )
    times = timestamps_ms if timestamps_ms is not None else range(1000, 1000 + len(values))
    for index, (value, timestamp_ms) in enumerate(zip(values, times, strict=True)):
        builder.append(index, timestamp_ms, keys[index] if keys is not None else None, value, [])
    return bytes(builder.build())


def damage(batch: bytes, at: int, form: str, value: int, *, fix_crc: bool = True) -> bytes:
    """The batch with the field at byte `at` (a struct format) set to `value`, its CRC made right again or not."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    if fix_crc:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def checked(batch: bytes, settings: TopicSettings, now_ms: int) -> CheckedBatch:
    """A produced batch after its validation, for a topic with these settings."""
    produced = ProducedBatch(memoryview(batch), rules_of(settings, "topic-0", now_ms), settings.max_message_bytes)
    return produced.check()
