"""The pending changes of one turn of appends to one log: collected by checks, written, then committed or discarded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_leader.log.producers.entries import ProducerEntry
from kshare_leader.log.producers.transactions import TransactionChanges
from kshare_leader.log.segments import PendingSegments
from kshare_leader.ports import StoredBatch

INDEX_INTERVAL_BYTES = 1024 * 1024
"""Bytes of batches between two entries of the index of timestamps."""


class Appended(NamedTuple):
    """The place of a batch in the log. `log_append_time_ms` is -1 unless the topic's message.timestamp.type sets it."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


@dataclass(slots=True)
class PendingAppends:
    """The changes of a turn of appends to one log, applied once they are durable."""

    next_offset: int
    max_timestamp_ms: int
    unindexed_bytes: int
    segments: PendingSegments
    batches: list[StoredBatch] = field(default_factory=list)
    size_bytes: int = 0
    """Bytes of `batches`."""
    producers: dict[int, ProducerEntry | None] = field(default_factory=dict)
    """New entries; None: the producer was evicted for another one."""
    added_producers: int = 0
    """The number of entries that the producer table grows by."""
    idle_producers: Iterator[int] | None = None
    """The producers that may still be evicted in this turn; None before the first new producer."""
    index: dict[int, int] = field(default_factory=dict)
    """New entries of the index of timestamps: timestamp to the offset below which no record is newer."""

    transactions: TransactionChanges | None = None
    """None in turns without transactional batches."""

    def transaction_changes(self) -> TransactionChanges:
        """`transactions`, created at the first call."""
        if self.transactions is None:
            self.transactions = TransactionChanges()
        return self.transactions

    def add(self, batch: StoredBatch, max_timestamp_ms: int) -> None:
        """Adds the next batch of the log, whose newest timestamp is `max_timestamp_ms`."""
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
