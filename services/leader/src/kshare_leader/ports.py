"""The interface of a topic partition's log.

The embedded engine implements it on RocksDB (`log`), the kafka engine on an existing cluster (`upstream`). There a read
may return nothing although there are records: they are fetched then, and listeners are called when they are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kshare_core.identifiers import TopicPartition
from kshare_core.leader_epochs import EpochEntry

STORED_BATCH_OVERHEAD_BYTES = 220
"""What a cache of batches needs for each, beside its data: objects, and a place in a list. Measured: 203 to 234."""


class StoredBatch(NamedTuple):
    """A record batch as stored in the log: `data` is the whole batch with its own base offset and epoch."""

    base_offset: int
    last_offset: int
    data: bytes
    is_control: bool = False
    is_transactional: bool = False
    producer_id: int = -1
    is_unreadable: bool = False
    """Whether no consumer can read it; known of batches of an existing cluster only."""

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
    def has_brokers_epochs(self) -> bool:
        """Whether `leader_epochs` are those of an existing cluster's brokers, and not of this node."""
        ...

    async def diverging_offset(self, known: Sequence[EpochEntry], end_offset: int) -> int | None:
        """The first offset below `end_offset` whose record is not that of a copy with the epoch history `known`.

        None if there is no such offset. An empty history is one that is not known: then only the log's end counts.
        Raises StorageFailure, and KafkaError if it cannot be told now.
        """
        ...

    async def refresh(self) -> None:
        """Returns when the log is open and its start and end are not older than this call; KafkaError if they are."""
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

    def read(self, fetch_offset: int, max_bytes: int, *, read_committed: bool = False) -> list[StoredBatch]:
        """Whole batches in order, the first one being the one that holds `fetch_offset` or the next after it.

        At most `max_bytes`, but at least one batch where there is one. `read_committed` says that the reader needs
        `aborted_transactions` of the batches; it changes nothing else. Raises StorageFailure.
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

    def add_listener(self, listener: Callable[[], None], *, read_committed: bool = False) -> Callable[[], None]:
        """`listener` is called after each append that became readable; the result removes it again.

        It is also called when records that a read lacked are here.
        """
        ...


class ServedLog(TopicLog, Protocol):
    """A log as the handlers of Fetch, ListOffsets and DescribeLogDirs use it."""

    @property
    def name(self) -> str:
        """The partition's name in log and error texts: topic id and number."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of this node for the partition."""
        ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def appended_bytes(self) -> int:
        """Bytes that became readable since the log was opened; a waiting fetch measures new data by it."""
        ...

    @property
    def stable_bytes(self) -> int:
        """`appended_bytes` up to the last stable offset."""
        ...

    @property
    def size_bytes(self) -> int:
        """The bytes of the log on this node's disk."""
        ...

    def read(
        self, fetch_offset: int, max_bytes: int, *, at_least_one: bool = True, read_committed: bool = False
    ) -> list[StoredBatch]:
        """See TopicLog; without `at_least_one` nothing is returned where the first batch is above `max_bytes`."""
        ...

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at `offset`; the newest epoch at the log's end."""
        ...

    async def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record of the greatest timestamp; None where no record has one. Errors as by time."""
        ...


class TopicLogs(Protocol):
    """The logs that this leader owns by the newest catalog."""

    def find(self, key: TopicPartition) -> TopicLog | None: ...

    def find_opening(self, key: TopicPartition) -> TopicLog | None:
        """As `find`, and also a log that is still being opened: `refresh` waits for that."""
        ...


class ServedLogs(TopicLogs, Protocol):
    """The logs of this leader as its handlers and a scrape use them."""

    @property
    def offline_count(self) -> int:
        """How many partitions placed here cannot be opened."""
        ...

    def all_logs(self) -> Sequence[ServedLog]:
        """All open logs; none while the lease may be lost."""
        ...

    def find(self, key: TopicPartition) -> ServedLog | None: ...

    def lookup(self, key: TopicPartition) -> ServedLog:
        """The log, else KafkaError: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER and others."""
        ...

    def current_leader(self, key: TopicPartition) -> tuple[int, int]:
        """The leader's node id and epoch in the newest catalog; (-1, -1) where the partition is unknown."""
        ...
