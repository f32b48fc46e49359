"""The batches of one log as they lie on disk: found by offset and by time, and what opening a log must know of them."""

from __future__ import annotations

from collections.abc import Iterator

from kshare_core.errors import KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_leader.log import keys
from kshare_leader.ports import StoredBatch, TimestampOffset
from kshare_runtime.ports import KeyValueStore
from kshare_wire.record_batches import NO_TIMESTAMP, BatchHeader, check_crc, read_header
from kshare_wire.record_reading import open_records

FIRST_OFFSET = 0
MAX_OFFSET = (1 << 63) - 1


class StoredBatches:
    """All reads of one log from the store; StorageFailure where the disk fails or a batch is damaged."""

    def __init__(self, store: KeyValueStore, key: TopicPartition) -> None:
        self._store = store
        self._name = f"{topic_id_text(key.topic_id)}-{key.partition}"
        self._prefix = keys.partition_prefix(key)
        self._prefix_end = keys.after_prefix(self._prefix)

    def from_offset(self, offset: int) -> Iterator[StoredBatch]:
        """Batches on disk from the one that holds `offset`, or the next."""
        start = keys.long_key(self._prefix, max(offset, 0))
        if 0 < offset < MAX_OFFSET:
            upper = keys.long_key(self._prefix, offset + 1)
            for key, data in self._store.scan(keys.LOG, self._prefix, upper, reverse=True):
                if self._stored_batch(key, data).last_offset >= offset:
                    start = key
                break
        for key, data in self._store.scan(keys.LOG, start, self._prefix_end):
            yield self._stored_batch(key, data)

    def _stored_batch(self, key: bytes, data: bytes) -> StoredBatch:
        base_offset = keys.number_of(key)
        try:
            header = read_header(data)
        except KafkaError as error:
            raise StorageFailure(f"the batch at offset {base_offset} of {self._name} is damaged: {error}") from error
        if header.base_offset != base_offset:
            text = f"the batch at offset {base_offset} of {self._name} says that it is at {header.base_offset}"
            raise StorageFailure(text)
        return StoredBatch(
            base_offset, header.last_offset, data, header.is_control, header.is_transactional, header.producer_id
        )

    def indexed_offset_before(self, timestamp_ms: int) -> int:
        """An offset below which every record is older than `timestamp_ms`, as near to its record as is known."""
        upper = keys.timestamp_key(self._prefix, timestamp_ms)
        for _, value in self._store.scan(keys.TIMESTAMPS, self._prefix, upper, reverse=True):
            return keys.parse_timestamp_value(value)[0]
        return FIRST_OFFSET

    def end_offset(self) -> int:
        """The offset after the last batch, which is checked in full; KafkaError where its bytes are damaged."""
        for key, data in self._store.scan(keys.LOG, self._prefix, self._prefix_end, reverse=True):
            batch = self._stored_batch(key, data)
            header = read_header(data)
            check_crc(data, header)
            return batch.last_offset + 1
        return FIRST_OFFSET

    def newest_timestamp(self) -> tuple[int, int, int]:
        """The newest timestamp, the base offset of its batch, and the bytes after the last entry of the index."""
        max_timestamp_ms, newest_base_offset, offset, unindexed_bytes = NO_TIMESTAMP, FIRST_OFFSET, FIRST_OFFSET, 0
        for key, value in self._store.scan(keys.TIMESTAMPS, self._prefix, self._prefix_end, reverse=True):
            max_timestamp_ms = keys.timestamp_of(key)
            offset, newest_base_offset = keys.parse_timestamp_value(value)
            break
        for batch in self.from_offset(offset):
            header = read_header(batch.data)
            unindexed_bytes += len(batch.data)
            if header.max_timestamp_ms > max_timestamp_ms:
                max_timestamp_ms, newest_base_offset = header.max_timestamp_ms, batch.base_offset
        return max_timestamp_ms, newest_base_offset, unindexed_bytes


def first_record(batch: StoredBatch, header: BatchHeader, timestamp_ms: int) -> TimestampOffset | None:
    """The batch's first record that is at `timestamp_ms` or newer; KafkaError CORRUPT_MESSAGE."""
    if header.is_log_append_time:
        return TimestampOffset(header.max_timestamp_ms, batch.base_offset)
    for record in open_records(batch.data):
        if record.timestamp_ms >= timestamp_ms:
            return TimestampOffset(record.timestamp_ms, record.offset)
    return None
