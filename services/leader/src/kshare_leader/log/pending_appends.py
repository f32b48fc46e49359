"""What a turn of appends will change in one log: collected by its checks, written, then committed or thrown away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_leader.log.producers import ProducerEntry
from kshare_leader.log.segments import PendingSegments
from kshare_leader.log.transactions import TransactionChanges
from kshare_leader.ports import StoredBatch

INDEX_INTERVAL_BYTES = 1024 * 1024
"""How many bytes of batches lie between two entries of the index of timestamps."""


class Appended(NamedTuple):
    """Where a batch lies in the log. `log_append_time_ms` is -1 unless the topic's message.timestamp.type sets it."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


@dataclass(slots=True)
class PendingAppends:
    """What a turn of appends will change in one log, once it is durable."""

    next_offset: int
    max_timestamp_ms: int
    unindexed_bytes: int
    segments: PendingSegments
    batches: list[StoredBatch] = field(default_factory=list)
    size_bytes: int = 0
    """Of the batches."""
    producers: dict[int, ProducerEntry | None] = field(default_factory=dict)
    """New entries; None: the producer made room for another one."""
    added_producers: int = 0
    """By how many entries the table of producers grows."""
    index: dict[int, int] = field(default_factory=dict)
    """New entries of the index of timestamps: below which offset no record is newer than the timestamp."""

    transactions: TransactionChanges | None = None
    """None in turns without transactional batches."""

    def transaction_changes(self) -> TransactionChanges:
        """`transactions`, begun where there is none."""
        if self.transactions is None:
            self.transactions = TransactionChanges()
        return self.transactions

    def add(self, batch: StoredBatch, max_timestamp_ms: int) -> None:
        """The next batch of the log, and the newest timestamp in it."""
        self.batches.append(batch)
        self.next_offset = batch.last_offset + 1
        self.segments.add(batch.base_offset, self.next_offset, len(batch.data), max_timestamp_ms)
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
        self.size_bytes += len(batch.data)
        self.unindexed_bytes += len(batch.data)
        if self.unindexed_bytes >= INDEX_INTERVAL_BYTES:
            self.index[self.max_timestamp_ms] = self.next_offset
            self.segments.is_saved = True
            self.unindexed_bytes = 0
