"""The control records of a fenced log: claims, marks and resignations, in a batch of their own each."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from kshare_wire.record_batches import BatchHeader
from kshare_wire.record_reading import open_records
from kshare_wire.record_writing import BatchWriter, ProducerSequence

CONTROL_KEY = struct.pack(">hh", 0x7F00, 0)
"""A record type that no record of Kafka's share coordinator has, and its version."""
INCARNATION_LENGTH = 16
_VALUE = struct.Struct(">hbqii16s")
_VERSION = 0
_BATCH_LIMIT_BYTES = 1024


class ControlKind(IntEnum):
    """What a control record says about its writer."""

    CLAIM = 1
    """From here on batches with this batch's producer id count."""
    MARK = 2
    """The claim of the owner again, so that what is before it may be deleted."""
    RESIGN = 3
    """The owner writes nothing more; a successor need not wait for a lease."""


class Claim(NamedTuple):
    """Who owns a log. Of two claims the one with the higher (epoch, attempt) wins."""

    epoch: int
    attempt: int
    """Grows with each claim of the same epoch: the outcome of the one before is unknown, or it lost."""
    node_id: int
    incarnation: bytes
    """16 random bytes of the owner's process."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.epoch, self.attempt


class ControlRecord(NamedTuple):
    """A control record."""

    kind: ControlKind
    claim: Claim


class UnknownControlRecord(Exception):
    """A control record of a later kshare, or damaged: this version cannot tell which batches count."""


def control_batch(record: ControlRecord, producer: ProducerSequence, now_ms: int) -> bytes:
    """A batch with this record alone."""
    writer = BatchWriter(_BATCH_LIMIT_BYTES, producer=producer)
    writer.append(now_ms, CONTROL_KEY, _VALUE.pack(_VERSION, record.kind, *record.claim), ())
    return writer.build()


def control_record(batch: bytes | memoryview, header: BatchHeader) -> ControlRecord | None:
    """The control record of a batch, None if it is a batch of data; UnknownControlRecord.

    Batches of several records, and compressed ones, are data.
    """
    if header.record_count != 1 or header.compression or header.is_control:
        return None
    (record,) = open_records(batch)
    if record.key != CONTROL_KEY:
        return None
    value = record.value or b""
    if len(value) < _VALUE.size:
        raise UnknownControlRecord(f"the control record at offset {record.offset} has {len(value)} bytes")
    version, kind, epoch, attempt, node_id, incarnation = _VALUE.unpack_from(value)
    if version != _VERSION or kind not in ControlKind.__members__.values():
        raise UnknownControlRecord(
            f"the control record at offset {record.offset} has version {version} and kind {kind}, of a later kshare"
        )
    return ControlRecord(ControlKind(kind), Claim(epoch, attempt, node_id, incarnation))
