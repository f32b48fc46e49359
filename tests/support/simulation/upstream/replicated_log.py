"""The log of one partition, as its leader has it: batches, sequence numbers, transactions and leader epochs.

No time, and no other broker: `partitions` says how far the log is replicated, and cuts it where an election loses its
end. What follows from the batches (`producers`, `transactions`) is computed again after a cut, as a broker does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_wire.record_batches import BatchHeader, build_end_transaction_marker, patch, read_header
from kshare_wire.record_reading import open_records

SEQUENCES = 1 << 31
SEQUENCES_KEPT = 5
"""Batches of a producer that a broker recognizes (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
COMMIT_MARKER = 1


class Appended(NamedTuple):
    """What became of a batch: an error, or the offsets that it has, now or since it was first sent."""

    error_code: int
    base_offset: int = -1
    next_offset: int = -1
    is_repeated: bool = False


class StoredBatch(NamedTuple):
    """A batch in the log."""

    header: BatchHeader
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.header.last_offset + 1


class _KnownBatch(NamedTuple):
    """Sequence numbers and offsets of a batch that a producer sent."""

    first: int
    last: int
    base_offset: int
    next_offset: int


@dataclass(slots=True)
class _ProducerState:
    """The epoch of a producer id, and its newest batches in this epoch."""

    epoch: int
    batches: list[_KnownBatch] = field(default_factory=list)


@dataclass(slots=True)
class TransactionInLog:
    """A transaction's records in this partition; `marker_offset` is -1 while it is under way."""

    producer_id: int
    first_offset: int
    marker_offset: int = -1
    is_aborted: bool = False


class ReplicatedLog:
    """See the module's text. Offsets given to `truncate` and `delete_before` are at any record."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.history: list[StoredBatch] = []
        """The batches from offset 0 on, also those deleted since."""
        self.start = 0
        self.end = 0
        self.leader_epochs: list[tuple[int, int]] = []
        """Leader epochs, each with the offset where it began; `begin_epoch` and batches add to it."""
        self.producers: dict[int, _ProducerState] = {}
        self.transactions: list[TransactionInLog] = []

    # Writing

    def append(self, batch: bytes, leader_epoch: int) -> Appended:
        """Appends what a producer sent, or finds it in the log (KIP-98)."""
        header = read_header(batch)
        if header.has_producer_id:
            found = self.find_repeated(header)
            if found is not None:
                return found
            error = self._sequence_error(header)
            if error != ErrorCode.NONE:
                return Appended(error)
        return self._store(batch, leader_epoch)

    def find_repeated(self, header: BatchHeader) -> Appended | None:
        """The offsets of a batch that the producer has sent before, None for a new one."""
        state = self.producers.get(header.producer_id)
        if not header.has_producer_id or state is None or state.epoch != header.producer_epoch:
            return None
        last = (header.base_sequence + header.last_offset_delta) % SEQUENCES
        for known in state.batches:
            if (known.first, known.last) == (header.base_sequence, last):
                return Appended(ErrorCode.NONE, known.base_offset, known.next_offset, is_repeated=True)
        return None

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool, now_ms: int, epoch: int) -> int:
        """Ends the transaction of a producer; the offset after the marker."""
        marker = build_end_transaction_marker(
            base_offset=0,
            leader_epoch=epoch,
            timestamp_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=commit,
            coordinator_epoch=0,
        )
        return self._store(marker, epoch).next_offset

    def begin_epoch(self, leader_epoch: int) -> None:
        """A new leader notes where its epoch begins (LeaderEpochFileCache.assign); one without records is forgotten."""
        self.leader_epochs = [(epoch, start) for epoch, start in self.leader_epochs if start < self.end]
        self.leader_epochs.append((leader_epoch, self.end))

    def truncate(self, offset: int) -> None:
        """Loses every batch that reaches beyond the offset."""
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.history = [batch for batch in self.history if batch.next_offset <= offset]
        self.end = self.batches[-1].next_offset if self.batches else max(self.start, min(self.end, offset))
        self.leader_epochs = [(epoch, start) for epoch, start in self.leader_epochs if start < self.end]
        self._recover()

    def delete_before(self, offset: int) -> None:
        """Moves the start of the log, never back."""
        self.start = max(self.start, offset)
        self.batches = [batch for batch in self.batches if batch.next_offset > self.start]
        kept = [(epoch, start) for epoch, start in self.leader_epochs if start > self.start]
        older = [epoch for epoch, start in self.leader_epochs if start <= self.start]
        self.leader_epochs = [*((epoch, self.start) for epoch in older[-1:]), *kept]

    def size_bytes(self) -> int:
        return sum(len(batch.data) for batch in self.batches)

    def _store(self, batch: bytes, leader_epoch: int) -> Appended:
        data = patch(batch, self.end, leader_epoch)
        stored = StoredBatch(read_header(data), data)
        self.batches.append(stored)
        self.history.append(stored)
        if not self.leader_epochs or self.leader_epochs[-1][0] != leader_epoch:
            self.leader_epochs.append((leader_epoch, stored.header.base_offset))
        self.end = stored.next_offset
        self._take(stored)
        return Appended(ErrorCode.NONE, stored.header.base_offset, stored.next_offset)

    def _sequence_error(self, header: BatchHeader) -> int:
        """As ProducerAppendInfo.checkSequence: a producer that the log does not know may begin anywhere."""
        state = self.producers.get(header.producer_id)
        if state is None:
            return ErrorCode.NONE
        if header.producer_epoch < state.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if header.producer_epoch > state.epoch or not state.batches:
            is_expected = header.base_sequence == 0
        else:
            is_expected = header.base_sequence == (state.batches[-1].last + 1) % SEQUENCES
        return ErrorCode.NONE if is_expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    # What follows from the batches

    def _recover(self) -> None:
        self.producers, self.transactions = {}, []
        for batch in self.batches:
            self._take(batch)

    def _take(self, batch: StoredBatch) -> None:
        header = batch.header
        if not header.has_producer_id:
            return
        state = self.producers.setdefault(header.producer_id, _ProducerState(header.producer_epoch))
        if header.producer_epoch > state.epoch:
            state.epoch, state.batches = header.producer_epoch, []
        if header.is_control:
            self._end_transaction(batch)
            return
        last = (header.base_sequence + header.last_offset_delta) % SEQUENCES
        known = _KnownBatch(header.base_sequence, last, header.base_offset, batch.next_offset)
        state.batches = [*state.batches, known][-SEQUENCES_KEPT:]
        if header.is_transactional and self._open_transaction(header.producer_id) is None:
            self.transactions.append(TransactionInLog(header.producer_id, header.base_offset))

    def _open_transaction(self, producer_id: int) -> TransactionInLog | None:
        for transaction in self.transactions:
            if transaction.producer_id == producer_id and transaction.marker_offset == -1:
                return transaction
        return None

    def _end_transaction(self, batch: StoredBatch) -> None:
        transaction = self._open_transaction(batch.header.producer_id)
        if transaction is not None:
            (record,) = open_records(batch.data)
            transaction.marker_offset = batch.header.base_offset
            transaction.is_aborted = int.from_bytes((record.key or b"")[2:4]) != COMMIT_MARKER

    # Reading

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: below it every transaction has ended."""
        unstable = [
            transaction.first_offset
            for transaction in self.transactions
            if transaction.marker_offset == -1 or transaction.marker_offset >= high_watermark
        ]
        return min([high_watermark, *unstable])

    def read(self, offset: int, limit_offset: int, max_bytes: int, *, cut: bool) -> bytes:
        """Batches from the one that has `offset` on, those wholly below `limit_offset`; the first one is whole.

        The last one is cut off at `max_bytes`, or (not `cut`) whole as well.
        """
        found: list[bytes] = []
        length = 0
        for batch in self.batches:
            if batch.next_offset <= offset:
                continue
            if batch.next_offset > limit_offset or (found and length >= max_bytes):
                break
            found.append(batch.data)
            length += len(batch.data)
        data = b"".join(found)
        return data[: max(max_bytes, len(found[0]))] if found and cut else data

    def aborted_between(self, offset: int, limit_offset: int) -> Sequence[TransactionInLog]:
        """Aborted transactions that have records in the range."""
        return [
            transaction
            for transaction in self.transactions
            if transaction.is_aborted
            and transaction.first_offset < limit_offset
            and transaction.marker_offset >= offset
        ]

    def end_of_epoch(self, leader_epoch: int, current_epoch: int) -> tuple[int, int]:
        """The newest epoch up to this one, and where it ends (LeaderEpochFileCache.endOffsetFor); -1 if unknown."""
        if leader_epoch == current_epoch:
            return leader_epoch, self.end
        if leader_epoch > current_epoch or not self.leader_epochs:
            return -1, -1
        later = [start for epoch, start in self.leader_epochs if epoch > leader_epoch]
        until = [epoch for epoch, _ in self.leader_epochs if epoch <= leader_epoch]
        if not later:
            return (-1, -1) if leader_epoch != self.leader_epochs[-1][0] else (leader_epoch, self.end)
        return until[-1] if until else leader_epoch, later[0]

    def offset_at_time(self, timestamp_ms: int) -> int:
        """The base offset of the first batch with a record of this time or later, -1 if there is none."""
        for batch in self.batches:
            if batch.header.max_timestamp_ms >= timestamp_ms:
                return batch.header.base_offset
        return -1
