"""Rules of transactions: all or nothing, as the producer asked; read_committed groups get committed records only.

A producer from before transaction version 2 keeps its epoch. Where it has repeated the end of a transaction at another
gateway, its first try may arrive during a later transaction, and ends that one. Kafka has the same gap (KIP-890), and
docs/known-gaps.md names it. Such a transaction is not judged; a try that the same life of a gateway sent is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from support.simulation.evidence import NEVER, Evidence, RecordKey, Violation
from support.simulation.history import (
    EndArrived,
    ProduceSent,
    TransactionBegun,
    TransactionEndConfirmed,
    TransactionEndSent,
    describe,
)
from support.simulation.kafka_clients.protocol import ReadRecord


@dataclass(slots=True)
class _Transaction:
    begun: TransactionBegun
    commit_asked_at: float = NEVER
    committed: bool | None = None
    """Whether its end was confirmed, and which."""
    is_ended_by_another: bool = False
    """Whether the end of an earlier transaction arrived in it, which was repeated at another gateway; see above."""

    def __str__(self) -> str:
        return f"transaction {self.begun.number} of {self.begun.producer}"


def _transactions(evidence: Evidence) -> dict[tuple[str, int], _Transaction]:
    found: dict[tuple[str, int], _Transaction] = {}
    for event in evidence.events:
        if isinstance(event, TransactionBegun):
            found[event.producer, event.number] = _Transaction(event)
        elif isinstance(event, TransactionEndSent) and event.commit:
            found[event.producer, event.number].commit_asked_at = event.time
        elif isinstance(event, TransactionEndConfirmed):
            found[event.producer, event.number].committed = event.commit
    _mark_ended_by_another(evidence, found)
    return found


def _mark_ended_by_another(evidence: Evidence, transactions: Mapping[tuple[str, int], _Transaction]) -> None:
    current: dict[str, _Transaction] = {}
    used: dict[str, str] = {}
    """By producer: the life of a gateway through which its last end arrived in time."""
    for event in evidence.events:
        if isinstance(event, TransactionBegun):
            current[event.producer] = transactions[event.producer, event.number]
        elif isinstance(event, EndArrived):
            transaction = current.get(event.producer)
            if transaction is None or transaction.begun.time <= event.sent_at:
                used[event.producer] = event.caller
            elif used.get(event.producer, event.caller) != event.caller:
                transaction.is_ended_by_another = True


def transactions_are_atomic(evidence: Evidence) -> Iterator[Violation]:
    """What ended with an answer ended so; without one all of it is committed or nothing; never without being asked."""
    transactions = _transactions(evidence)
    records = {record.value: (partition, record) for partition, log in evidence.expected.logs.items() for record in log}
    for transaction in transactions.values():
        if transaction.is_ended_by_another:
            continue
        present = [records[value] for value in transaction.begun.values if value in records]
        places = [f"{partition}@{record.offset}" for partition, record in present if record.committed]
        text = f"{transaction}: {places[:5]} of {len(present)} records are committed"
        if places and transaction.commit_asked_at == NEVER:
            yield Violation("committed without being asked to", text)
        elif places and transaction.committed is False:
            yield Violation("aborted, and yet committed", text)
        elif transaction.committed and len(places) < len(present):
            yield Violation("committed, and yet aborted", text)
        elif 0 < len(places) < len(present):
            yield Violation("half of a transaction", text)
    yield from _fenced_producers_are_refused(evidence, transactions, records)


def _fenced_producers_are_refused(
    evidence: Evidence,
    transactions: Mapping[tuple[str, int], _Transaction],
    records: Mapping[str, tuple[int, ReadRecord]],
) -> Iterator[Violation]:
    known = {value: None for transaction in transactions.values() for value in transaction.begun.values}
    transactional = {producer: None for producer, _ in transactions}
    for event in evidence.events:
        if isinstance(event, ProduceSent) and event.producer in transactional:
            for value in event.values:
                if value not in known and value in records:
                    yield Violation("a fenced producer was not refused", describe(event))


def committed_groups_get_committed_records(evidence: Evidence) -> Iterator[Violation]:
    """A read_committed group gets nothing of a transaction that was aborted, or not yet asked to commit."""
    transactions = _transactions(evidence)
    of_value = {value: transaction for transaction in transactions.values() for value in transaction.begun.values}
    aborted = {
        RecordKey(group, partition, record.offset)
        for group in evidence.expected.committed_groups
        for partition, log in evidence.expected.logs.items()
        for record in log
        if not record.committed
    }
    for key, acquisitions in evidence.acquired.items():
        if key in aborted and acquisitions:
            yield evidence.violation("an aborted record was delivered", key, describe(acquisitions[0]))
    for key, deliveries in evidence.deliveries.items():
        if key.group not in evidence.expected.committed_groups:
            continue
        for event in deliveries:
            transaction = of_value.get(event.values[key.offset - event.run[0]])
            if transaction is None or transaction.is_ended_by_another:
                continue
            if event.time < transaction.commit_asked_at:
                text = f"{transaction}: {describe(event)}"
                yield evidence.violation("delivered before it was committed", key, text)
