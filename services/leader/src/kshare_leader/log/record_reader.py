"""The reader of records in stored batches, for look-ups by time: small batches at once, large ones on a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kshare_core.errors import KafkaError
from kshare_leader.log.aside import Aside
from kshare_leader.log.batch_validation import COMPRESSION_COST, DEFAULT_DECOMPRESSED_BYTES
from kshare_leader.ports import StoredBatch, TimestampOffset
from kshare_wire.decompression import DecompressesTooFar
from kshare_wire.record_batches import BatchHeader, read_header
from kshare_wire.record_walks import OpenedBatch, first_record_at, newest_timestamp, open_batch, unreadable

DEFAULT_INLINE_BYTES = 1024 * 1024
LOWEST_TIMESTAMP = -(1 << 63)
Result = TypeVar("Result")


class RecordReader:
    """The reader of a node; `inline_bytes` (kshare.leader.inline.batch.bytes) and `limit_bytes` are decompressed."""

    def __init__(
        self,
        aside: Aside | None = None,
        *,
        inline_bytes: int = DEFAULT_INLINE_BYTES,
        limit_bytes: int = DEFAULT_DECOMPRESSED_BYTES,
    ) -> None:
        self.aside = aside or Aside("record-reader")
        self._inline_bytes = min(inline_bytes, limit_bytes)
        self._limit_bytes = limit_bytes

    async def first_record(
        self, batch: StoredBatch, header: BatchHeader, timestamp_ms: int, first_offset: int = 0
    ) -> TimestampOffset | None:
        """The batch's first record from `first_offset` on at `timestamp_ms` or newer; KafkaError CORRUPT_MESSAGE.

        Records with LogAppendTime all have the header's timestamp, which must not be older.
        """
        is_log_append_time = header.is_log_append_time
        if is_log_append_time and header.record_count > header.last_offset_delta:  # compaction removed none
            return TimestampOffset(header.max_timestamp_ms, max(batch.base_offset, first_offset))
        own_timestamp_ms = LOWEST_TIMESTAMP if is_log_append_time else timestamp_ms
        found = await self._read(batch, lambda opened: first_record_at(opened, own_timestamp_ms, first_offset))
        if found is None:
            return None
        return TimestampOffset(header.max_timestamp_ms if is_log_append_time else found[1], found[0])

    async def newest_timestamp(self, batch: StoredBatch, first_offset: int) -> int:
        """The newest timestamp of the records from `first_offset` on; -1 where none has one."""
        return await self._read(batch, lambda opened: newest_timestamp(opened, first_offset))

    async def _read(self, batch: StoredBatch, read: Callable[[OpenedBatch], Result]) -> Result:
        opened = self.try_open(batch)
        if opened is not None:
            return read(opened)
        return await self.aside.run(lambda: read(self.open(batch)))

    def try_open(self, batch: StoredBatch) -> OpenedBatch | None:
        """The opened batch; None where it is too large for the event loop. KafkaError CORRUPT_MESSAGE."""
        if len(batch.data) > self._inline_bytes:
            return None
        try:
            return open_batch(batch.data, self._inline_bytes)
        except DecompressesTooFar:
            return None

    def compresses_long(self, opened: OpenedBatch) -> bool:
        """Whether the records, of a batch that fits, take too long for the event loop to be compressed again."""
        return bool(opened.header.compression) and len(opened.records) > self._inline_bytes // COMPRESSION_COST

    def open(self, batch: StoredBatch) -> OpenedBatch:
        """The opened batch; this may take long. KafkaError CORRUPT_MESSAGE, also where it decompresses too far."""
        try:
            return open_batch(batch.data, self._limit_bytes)
        except DecompressesTooFar as error:
            raise _too_far(batch, error) from error


def _too_far(batch: StoredBatch, error: DecompressesTooFar) -> KafkaError:
    return unreadable(read_header(batch.data), f"{error} (kshare.max.decompressed.batch.bytes)")
