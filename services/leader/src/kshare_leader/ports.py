"""The interface of a topic partition's log; the embedded engine implements it on RocksDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kshare_core.identifiers import TopicPartition
from kshare_core.leader_epochs import EpochEntry


class StoredBatch(NamedTuple):
    """A record batch as stored in the log: `data` is the whole batch with its own base offset and epoch."""

    base_offset: int
    last_offset: int
    data: bytes
    is_control: bool = False
    is_transactional: bool = False
    producer_id: int = -1

    @property
    def length(self) -> int:
        return len(self.data)


class AbortedTransaction(NamedTuple):
    """A transaction that ended with ABORT: the producer's transactional batches from `first_offset` to `last_offset`
    (its marker) are not to be delivered to readers of committed records."""

    producer_id: int
    first_offset: int
    last_offset: int


class TimestampOffset(NamedTuple):
    """The result of a look-up by time: the record's timestamp in milliseconds, and its offset."""

    timestamp_ms: int
    offset: int


class ReadableBatches(NamedTuple):
    """Batches that consumers can read; from `end_offset` on, unless None, this is not known yet."""

    batches: list[StoredBatch]
    end_offset: int | None


class TopicLog(Protocol):
    """The log of one topic partition. `read` returns only durable batches. Used on the event loop only."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """The end offset: the offset of the next record."""
        ...

    @property
    def leader_epochs(self) -> Sequence[EpochEntry]:
        """From which offset on each leader epoch wrote, oldest first; the last entry is of the epoch that leads now,
        from the log's end on where it has not appended yet."""
        ...

    def encoded_leader_epochs(self) -> bytes:
        """The newest leader epochs as bytes (`kshare_core.leader_epochs`)."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, else the high watermark."""
        ...

    @property
    def validated_from(self) -> int:
        """Batches that begin here or later can be read by consumers: they were validated when they were appended."""
        ...

    def readable(self, batches: Sequence[StoredBatch]) -> ReadableBatches:
        """Those of `batches`, which ascend, that consumers can read; listeners are called when more is known."""
        ...

    def read(self, fetch_offset: int, max_bytes: int) -> list[StoredBatch]:
        """Whole batches in order, the first one being the one that holds `fetch_offset` or the next after it.

        At most `max_bytes`, but at least one batch where there is one. Raises StorageFailure.
        """
        ...

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records at first_offset..end_offset - 1, by their last offsets.

        Complete below the last stable offset. Raises StorageFailure.
        """
        ...

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record whose timestamp is `timestamp_ms` or later; None if there is none.

        Other requests are served meanwhile. Raises StorageFailure, and KafkaError CORRUPT_MESSAGE if records on the
        way cannot be opened.
        """
        ...

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """`listener` is called after each append that became readable; the result removes it again."""
        ...


class TopicLogs(Protocol):
    """The logs that this leader owns by the newest catalog."""

    def find(self, key: TopicPartition) -> TopicLog | None: ...
