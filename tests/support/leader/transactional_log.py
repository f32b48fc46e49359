"""A log with open, committed and aborted transactions, what a broker tells of them, and what a reader may see."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kshare_wire.record_batches import build_end_transaction_marker, patch

PRODUCERS = (7, 8, 9)


@dataclass
class LoggedBatch:
    """A batch, and whether a reader of committed records gets it."""

    base_offset: int
    last_offset: int
    data: bytes
    is_control: bool = False
    is_aborted: bool = False


@dataclass
class Aborted:
    """A transaction that was aborted: from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass
class TransactionalLog:
    """Batches in order; `aborted` are the transactions that ended with ABORT."""

    batches: list[LoggedBatch] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)
    end_offset: int = 0

    def fetched(self, offset: int, end_offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        """The records from the batch with `offset` to `end_offset`, and the aborted transactions, as by a broker."""
        found = [each for each in self.batches if each.last_offset >= offset and each.last_offset < end_offset]
        told = [
            (each.producer_id, each.first_offset)
            for each in self.aborted
            if each.last_offset >= offset and each.first_offset < end_offset
        ]
        return b"".join(each.data for each in found), told


def random_log(chance: random.Random, length: int) -> TransactionalLog:
    """A log of about `length` batches; all transactions in it have ended. Some offsets are missing, as compacted."""
    log = TransactionalLog()
    open_since: dict[int, tuple[int, list[LoggedBatch]]] = {}
    while len(log.batches) < length or open_since:
        producer_id = chance.choice(PRODUCERS)
        if producer_id in open_since and (chance.random() < 0.4 or len(log.batches) >= length):
            _end(log, producer_id, *open_since.pop(producer_id), committed=chance.random() < 0.5)
        elif len(log.batches) < length:
            is_transactional = chance.random() < 0.7
            batch = _append(log, producer_id, chance.randint(1, 4), is_transactional=is_transactional)
            if is_transactional:
                open_since.setdefault(producer_id, (batch.base_offset, []))[1].append(batch)
        if chance.random() < 0.2:
            log.end_offset += chance.randint(1, 3)
    return log


def _append(log: TransactionalLog, producer_id: int, count: int, *, is_transactional: bool) -> LoggedBatch:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(is_transactional),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for number in range(count):
        builder.append(number, 0, b"key", b"value", [])
    batch = LoggedBatch(log.end_offset, log.end_offset + count - 1, patch(bytes(builder.build()), log.end_offset, 0))
    log.batches.append(batch)
    log.end_offset += count
    return batch


def _end(log: TransactionalLog, producer_id: int, first: int, batches: list[LoggedBatch], *, committed: bool) -> None:
    offset = log.end_offset
    data = build_end_transaction_marker(
        base_offset=offset,
        leader_epoch=0,
        timestamp_ms=0,
        producer_id=producer_id,
        producer_epoch=0,
        committed=committed,
        coordinator_epoch=0,
    )
    log.batches.append(LoggedBatch(offset, offset, data, is_control=True))
    log.end_offset += 1
    if not committed:
        log.aborted.append(Aborted(producer_id, first, offset))
        for batch in batches:
            batch.is_aborted = True
