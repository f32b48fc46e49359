"""The transactions of one log (KIP-98): open ones, the rules of markers, and the index of aborted ones.

**Open.** A transaction is open in a partition from its first batch to its marker. The oldest open transaction sets the
last stable offset, beyond which read-committed consumers do not read. Open transactions are part of the producers'
entries on disk (`entries`), so they are restored with them.

**The end.** WriteTxnMarkers ends a transaction with a marker, a control batch in the log. The rules are those of
ProducerAppendInfo.appendEndTxnMarker of Kafka 4.3. A coordinator of an older epoch is fenced, and so is an older epoch
of the producer. Since version 2 (KIP-890) a marker has a newer epoch than its records, and a marker with the same epoch
is a retry as long as no transaction is open. Where no transaction is open and producer and coordinator have the
marker's epochs already, a retry is idempotent and nothing is written (Kafka writes the marker once more).

**Aborted.** Each aborted transaction has an entry in an index, written with its marker, in the order of the markers.
The entry's last stable offset bounds a search: every transaction that was aborted later begins at or after it. An entry
goes with its marker. Kafka's consumers skip all batches of an aborted producer until they see the marker, so that an
entry without one would hide the producer's committed records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.producers.entries import NO_OFFSET, ProducerEntry
from kshare_leader.log.producers.verifications import Verification
from kshare_leader.ports import AbortedTransaction
from kshare_runtime.ports import KeyValueStore, Write

MAX_PRODUCER_EPOCH = (1 << 15) - 1
BUMPED_EPOCH_VERSION = 2
"""The transaction version (`transaction.version`) since which markers have a newer epoch than their records."""
NEWEST_ABORTED_KEPT = 1_000
"""Aborted transactions of a log that are kept in memory; half of them go at once when there are more."""


class EndTransaction(NamedTuple):
    """The content of a marker (WriteTxnMarkersRequest)."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


def check_end(entry: ProducerEntry | None, end: EndTransaction) -> None:
    """KafkaError INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED where the marker must not be written."""
    if entry is None:
        return
    has_bumped_epoch = end.transaction_version >= BUMPED_EPOCH_VERSION
    current = entry.producer_epoch
    if end.producer_epoch < current or (has_bumped_epoch and end.producer_epoch == current):
        is_repeated = end.producer_epoch == current and (
            entry.transaction_first_offset == NO_OFFSET or end.producer_epoch == MAX_PRODUCER_EPOCH
        )
        if not is_repeated:
            text = (
                f"the marker of producer {end.producer_id} has epoch {end.producer_epoch} with transaction version "
                f"{end.transaction_version}, but epoch {current} has written to the partition"
            )
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text)
    if end.coordinator_epoch < entry.coordinator_epoch:
        text = (
            f"the marker of producer {end.producer_id} comes from coordinator epoch {end.coordinator_epoch}; "
            f"epoch {entry.coordinator_epoch} has written one already"
        )
        raise KafkaError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, text)


def changes_nothing(entry: ProducerEntry | None, end: EndTransaction) -> bool:
    """Whether the log has the marker's outcome already."""
    return (
        entry is not None
        and entry.transaction_first_offset == NO_OFFSET
        and entry.producer_epoch == end.producer_epoch
        and entry.coordinator_epoch == end.coordinator_epoch
    )


def entry_after_end(entry: ProducerEntry | None, end: EndTransaction, now_ms: int) -> ProducerEntry:
    """The producer's entry after the marker; with a new epoch sequences start again at 0."""
    batches = () if entry is None or entry.producer_epoch != end.producer_epoch else entry.batches
    return ProducerEntry(end.producer_epoch, now_ms, batches, end.coordinator_epoch)


class OpenTransaction(NamedTuple):
    """An open transaction; `bytes_before` is the log's `appended_bytes` before its first batch."""

    first_offset: int
    bytes_before: int


class AbortedEntry(NamedTuple):
    """One entry of the index of aborted transactions."""

    transaction: AbortedTransaction
    last_stable_offset: int


@dataclass(slots=True)
class TransactionChanges:
    """The changes of a turn of appends to one log's transactions, applied once they are durable."""

    opened: dict[int, OpenTransaction | None] = field(default_factory=dict)
    """By producer id, in the order of first offsets; None: ended."""
    aborted: list[AbortedEntry] = field(default_factory=list)
    verified: dict[int, Verification | None] = field(default_factory=dict)
    """The producers whose verifications end, and what these were: one that begins meanwhile is the next one's."""

    def open(self, producer_id: int, transaction: OpenTransaction) -> None:
        self.opened.pop(producer_id, None)
        self.opened[producer_id] = transaction

    def end(self, producer_id: int) -> None:
        self.opened[producer_id] = None


class OpenTransactions:
    """The open transactions of one log, the oldest one first."""

    def __init__(self, entries: Iterable[tuple[int, ProducerEntry]]) -> None:
        found = [(entry.transaction_first_offset, producer_id) for producer_id, entry in entries]
        # No byte was appended since the log was opened, so all of these transactions began before `appended_bytes` 0.
        self._by_producer = {
            producer_id: OpenTransaction(first_offset, 0)
            for first_offset, producer_id in sorted(found)
            if first_offset != NO_OFFSET
        }

    def __len__(self) -> int:
        return len(self._by_producer)

    def oldest(self) -> OpenTransaction | None:
        for transaction in self._by_producer.values():
            return transaction
        return None

    def last_stable_offset_after(self, changes: TransactionChanges, end_offset: int) -> int:
        """The last stable offset of the log with `changes`, where it ends at `end_offset`."""
        for producer_id, transaction in self._by_producer.items():
            if producer_id not in changes.opened:
                return transaction.first_offset
        for changed in changes.opened.values():
            if changed is not None:
                return changed.first_offset
        return end_offset

    def apply(self, changes: TransactionChanges) -> None:
        for producer_id, transaction in changes.opened.items():
            self._by_producer.pop(producer_id, None)
            if transaction is not None:
                self._by_producer[producer_id] = transaction


class AbortedTransactions:
    """The index of one log's aborted transactions; the newest entries are in memory too."""

    def __init__(self, store: KeyValueStore, key: TopicPartition, *, kept: int = NEWEST_ABORTED_KEPT) -> None:
        """StorageFailure where the disk fails, struct.error where an entry is damaged."""
        self._store = store
        self._prefix = keys.partition_prefix(key)
        self._prefix_end = keys.after_prefix(self._prefix)
        self._kept = kept
        scan = store.scan(keys.ABORTED_TRANSACTIONS, self._prefix, self._prefix_end, reverse=True)
        newest = [_entry(key, value) for key, value in islice(scan, kept)]
        newest.reverse()
        self._entries = newest
        self._last_offsets = [entry.transaction.last_offset for entry in newest]
        self._complete_from = self._last_offsets[0] if len(newest) == kept else 0
        """All transactions whose markers are at or after this offset are in memory."""

    def writes(self, entries: Iterable[AbortedEntry]) -> Iterator[Write]:
        for entry in entries:
            transaction = entry.transaction
            value = keys.aborted_value(transaction.producer_id, transaction.first_offset, entry.last_stable_offset)
            yield Write(keys.ABORTED_TRANSACTIONS, keys.long_key(self._prefix, transaction.last_offset), value)

    def add(self, entries: Iterable[AbortedEntry]) -> None:
        """Adds durable entries."""
        for entry in entries:
            self._entries.append(entry)
            self._last_offsets.append(entry.transaction.last_offset)
        if len(self._entries) > self._kept:
            dropped = len(self._entries) - self._kept // 2
            self._complete_from = self._last_offsets[dropped - 1] + 1
            del self._entries[:dropped]
            del self._last_offsets[:dropped]

    def find(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """See TopicLog.aborted_transactions."""
        found: list[AbortedTransaction] = []
        for entry in self._from(first_offset):
            if entry.transaction.first_offset < end_offset:
                found.append(entry.transaction)
            if entry.last_stable_offset >= end_offset:
                break
        return found

    def forget_before(self, offset: int) -> None:
        """Removes, durably, the transactions whose markers are before `offset`; StorageFailure."""
        self._store.delete_range(keys.ABORTED_TRANSACTIONS, self._prefix, keys.long_key(self._prefix, offset))
        index = bisect_left(self._last_offsets, offset)
        del self._entries[:index]
        del self._last_offsets[:index]

    def removals(self, markers: Iterable[int]) -> list[Write]:
        """The writes that remove the transactions with these markers; call `forget` when they are durable."""
        return [Write(keys.ABORTED_TRANSACTIONS, keys.long_key(self._prefix, offset), None) for offset in markers]

    def forget(self, markers: Iterable[int]) -> None:
        """Forgets removed transactions; offsets of other batches are allowed."""
        gone = frozenset(markers)
        if gone:
            self._entries = [entry for entry in self._entries if entry.transaction.last_offset not in gone]
            self._last_offsets = [entry.transaction.last_offset for entry in self._entries]

    def _from(self, offset: int) -> Iterator[AbortedEntry]:
        if offset >= self._complete_from:
            return iter(self._entries[bisect_left(self._last_offsets, offset) :])
        start = keys.long_key(self._prefix, max(offset, 0))
        scan = self._store.scan(keys.ABORTED_TRANSACTIONS, start, self._prefix_end)
        return (_entry(key, value) for key, value in scan)


def _entry(key: bytes, value: bytes) -> AbortedEntry:
    producer_id, first_offset, last_stable_offset = keys.parse_aborted_value(value)
    return AbortedEntry(AbortedTransaction(producer_id, first_offset, keys.number_of(key)), last_stable_offset)
