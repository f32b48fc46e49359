"""The producer state of one log: last batches, transactions and pending verifications.

After Kafka's ProducerStateManager; the rules are in `entries`, `transactions` and `verifications`. As with the log, a
turn of appends collects its changes in a `PendingAppends`, and later appends of the turn see them. `writes` are part of
the log's atomic write; `commit` applies the changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.producers.entries import (
    NO_OFFSET,
    PRODUCERS_LIMIT,
    ProducerEntry,
    ProducerTable,
    check_epoch,
    check_producer,
    decode_producer,
    encode_producer,
    entry_after,
    find_duplicate,
    has_open_transaction,
)
from kshare_leader.log.producers.pending_appends import PendingAppends
from kshare_leader.log.producers.transactions import (
    AbortedEntry,
    AbortedTransactions,
    EndTransaction,
    OpenTransaction,
    OpenTransactions,
    changes_nothing,
    check_end,
    entry_after_end,
)
from kshare_leader.log.producers.verifications import Verification, Verifications
from kshare_leader.ports import AbortedTransaction
from kshare_runtime.ports import KeyValueStore, Write
from kshare_wire.record_batches import BatchHeader


class TransactionalAppend(NamedTuple):
    """The transactional context of a batch from a request with a transactional id.

    `verification` is the result of `begin_verification`, where the coordinator has confirmed the transaction since;
    `is_verification_required` is transaction.partition.verification.enable.
    """

    verification: Verification | None
    is_verification_required: bool


class ProducerState:
    """The producers of one log; the module's docstring has the rules."""

    def __init__(self, store: KeyValueStore, key: TopicPartition, *, limit: int = PRODUCERS_LIMIT) -> None:
        """StorageFailure where the disk fails, struct.error where an entry is damaged."""
        self._prefix = keys.partition_prefix(key)
        pairs = store.scan(keys.PRODUCERS, self._prefix, keys.after_prefix(self._prefix))
        self._table = ProducerTable([(keys.number_of(key), decode_producer(row)) for key, row in pairs], limit=limit)
        self._verifications = Verifications()
        self.open = OpenTransactions(self._table.items())
        self.aborted = AbortedTransactions(store, key)

    def items(self) -> Iterable[tuple[int, ProducerEntry]]:
        """Producer ids and their entries."""
        return self._table.items()

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of this epoch of the producer is open."""
        return has_open_transaction(self._table.get(producer_id), producer_epoch)

    def knows(self, producer_id: int, pending: PendingAppends) -> bool:
        """Whether the log has the producer's sequences, or will have them after the turn's appends."""
        return producer_id in pending.producers or self._table.get(producer_id) is not None

    def has(self, header: BatchHeader) -> bool:
        """Whether the batch is a duplicate of one of the producer's last ones."""
        return find_duplicate(self._table.get(header.producer_id), header) is not None

    def begin_verification(
        self, producer_id: int, *, producer_epoch: int, sequence: int, adds_partition: bool, now_ms: int
    ) -> Verification | None:
        """The verification that a transactional batch must wait for; None where its transaction is open in this
        partition.

        `adds_partition`: the coordinator adds the partition to the transaction (version 2). KafkaError
        INVALID_PRODUCER_EPOCH or POLICY_VIOLATION (UnifiedLog.maybeStartTransactionVerification).
        """
        entry = self._table.get(producer_id)
        check_epoch(entry, producer_id, producer_epoch)
        if has_open_transaction(entry, producer_epoch):
            return None
        return self._verifications.begin(
            producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            adds_partition=adds_partition,
            now_ms=now_ms,
        )

    # appending

    def admit(
        self,
        header: BatchHeader,
        pending: PendingAppends,
        transactional: TransactionalAppend | None,
        *,
        appended_bytes: int,
        now_ms: int,
    ) -> int | None:
        """Admits the next batch to `pending`; for a duplicate it returns the base offset of the stored batch.

        `appended_bytes` is the log's before the turn. KafkaError where the batch must not be appended.
        """
        producer_id = header.producer_id
        known = pending.producers
        entry = known[producer_id] if producer_id in known else self._table.get(producer_id)
        duplicate = find_duplicate(entry, header)
        if duplicate is not None:
            return duplicate.base_offset
        verification = self._verification(producer_id, pending) if self._verifications else None
        is_transactional = header.is_transactional
        if is_transactional and not has_open_transaction(entry, header.producer_epoch):
            check_epoch(entry, producer_id, header.producer_epoch)
            _check_verified(header, verification, transactional)
        check_producer(entry, header, verification)
        if entry is None:
            self._make_room(pending, now_ms)
        base_offset = pending.next_offset
        entry_now = entry_after(entry, header, base_offset, now_ms)
        pending.producers[producer_id] = entry_now
        if is_transactional:
            changes = pending.transaction_changes()
            changes.verified.setdefault(producer_id, verification)
            if entry_now.transaction_first_offset == base_offset:
                changes.open(producer_id, OpenTransaction(base_offset, appended_bytes + pending.size_bytes))
        return None

    def end_transaction(self, end: EndTransaction, pending: PendingAppends, *, now_ms: int) -> bool:
        """Ends a transaction in `pending`; False where no marker needs to be written, because the log has its outcome
        already.

        KafkaError INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        producer_id = end.producer_id
        known = pending.producers
        entry = known[producer_id] if producer_id in known else self._table.get(producer_id)
        check_end(entry, end)
        changes = pending.transaction_changes()
        verification = self._verifications.get(producer_id)
        if verification is None or not verification.is_of_next_after(end.producer_epoch):
            changes.verified.setdefault(producer_id, verification)
        if changes_nothing(entry, end):
            return False
        offset = pending.next_offset
        if entry is not None and entry.transaction_first_offset != NO_OFFSET:
            changes.end(producer_id)
            if not end.committed:
                aborted = AbortedTransaction(producer_id, entry.transaction_first_offset, offset)
                stable_offset = self.open.last_stable_offset_after(changes, offset + 1)
                changes.aborted.append(AbortedEntry(aborted, stable_offset))
        if entry is not None or self._has_room(pending, now_ms):
            pending.producers[producer_id] = entry_after_end(entry, end, now_ms)
        return True

    def writes(self, pending: PendingAppends) -> Iterator[Write]:
        for producer_id, entry in pending.producers.items():
            value = None if entry is None else encode_producer(entry)
            yield Write(keys.PRODUCERS, keys.long_key(self._prefix, producer_id), value)
        if pending.transactions is not None:
            yield from self.aborted.writes(pending.transactions.aborted)

    def commit(self, pending: PendingAppends) -> None:
        """Applies the changes of `pending`, whose writes are durable."""
        for producer_id, entry in pending.producers.items():
            if entry is None:
                self._table.remove(producer_id)
            else:
                self._table.put(producer_id, entry)
        changes = pending.transactions
        if changes is not None:
            self.open.apply(changes)
            self.aborted.add(changes.aborted)
            for producer_id, verification in changes.verified.items():
                self._verifications.clear(producer_id, verification)

    def expired(self, now_ms: int, expiration_ms: int, limit: int) -> list[int]:
        """Up to `limit` producers that were silent for `expiration_ms`; ends verifications that are as old.

        `forget` them when their `removals` are durable.
        """
        self._verifications.expire(now_ms, expiration_ms)
        return list(islice(self._table.expired(now_ms, expiration_ms), limit))

    def removals(self, producer_ids: Iterable[int]) -> Iterator[Write]:
        """The writes that remove the entries of these producers."""
        return (Write(keys.PRODUCERS, keys.long_key(self._prefix, producer_id), None) for producer_id in producer_ids)

    def forget(self, producer_ids: Iterable[int]) -> None:
        """Removes the entries of producers whose rows are removed."""
        for producer_id in producer_ids:
            self._table.remove(producer_id)

    def _verification(self, producer_id: int, pending: PendingAppends) -> Verification | None:
        if pending.transactions is not None and producer_id in pending.transactions.verified:
            return None
        return self._verifications.get(producer_id)

    def _make_room(self, pending: PendingAppends, now_ms: int) -> None:
        """Makes room for one more producer; KafkaError POLICY_VIOLATION where no producer may be evicted."""
        if pending.idle_producers is None:
            pending.idle_producers = self._table.idle()
        gone = self._table.make_room(
            added_count=pending.added_producers,
            changed=pending.producers,
            idle=pending.idle_producers,
            now_ms=now_ms,
        )
        if gone is None:
            pending.added_producers += 1
        else:
            pending.producers[gone] = None

    def _has_room(self, pending: PendingAppends, now_ms: int) -> bool:
        """Whether a new producer fits; where not, its marker is written without an entry."""
        try:
            self._make_room(pending, now_ms)
        except KafkaError:
            return False
        return True


def _check_verified(
    header: BatchHeader, verification: Verification | None, transactional: TransactionalAppend | None
) -> None:
    """KafkaError where the batch may not open its producer's transaction in the partition."""
    if transactional is None:
        text = f"a transactional batch of producer {header.producer_id} came without a transactional id"
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
    if not transactional.is_verification_required:
        return
    if verification is None or verification is not transactional.verification:
        text = f"the batch of producer {header.producer_id} is not part of an ongoing transaction"
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, text)
