"""A writer of record batches from single records, for records that a role itself writes; never on the normal path.

The batch has base offset 0, and no producer id unless it is given one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kshare_wire.record_batches import COMPRESSION_NAMES, NO_PRODUCER_ID, NO_SEQUENCE

Header = tuple[str, bytes | None]


class ProducerSequence(NamedTuple):
    """The producer of a batch, and the sequence number of its first record (KIP-98)."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE


NO_PRODUCER = ProducerSequence()


class BatchWriter:
    """A batch under construction, limited to `limit_bytes`.

    The first record always fits, so that a caller sees by `size_bytes` that it alone is too large. `compression` is a
    name of `COMPRESSION_NAMES`; sizes are those before compression.
    """

    def __init__(self, limit_bytes: int, compression: str = "none", producer: ProducerSequence = NO_PRODUCER) -> None:
        from aiokafka.record.default_records import DefaultRecordBatchBuilder  # see record_reading

        self.count = 0
        self._builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=COMPRESSION_NAMES.index(compression),
            is_transactional=0,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.base_sequence,
            batch_size=limit_bytes,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return int(self._builder.size())

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        *,
        offset_delta: int | None = None,
    ) -> bool:
        """Adds a record; False, and nothing changes, where it does not fit.

        `offset_delta` is the record's distance from the base offset, for batches with gaps; it must grow from record
        to record. Without it the records are numbered from 0.
        """
        delta = self.count if offset_delta is None else offset_delta
        if self._builder.append(delta, timestamp_ms, key, value, list(headers)) is None:
            return False
        self.count += 1
        return True

    def build(self) -> bytes:
        return bytes(self._builder.build())
