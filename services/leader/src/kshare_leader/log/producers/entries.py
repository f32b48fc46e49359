"""The idempotent producers of one partition (KIP-98): their epochs and last batches, by which duplicates are found.

For each producer id the log keeps the newest epoch and the last five batches, because a producer may have five requests
in flight (Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN). The rules are those of ProducerStateManager and
ProducerAppendInfo of Kafka 4.3:

- a batch of the newest epoch with the same first and last sequence as one of the five is a duplicate;
- an older epoch is fenced (INVALID_PRODUCER_EPOCH);
- a newer epoch must start at sequence 0, the same epoch must continue its sequence (OUT_OF_ORDER_SEQUENCE_NUMBER);
- an unknown producer may start at any sequence, because its older state may have expired; not so where its transactions
  have an epoch each (version 2, KIP-890);
- while the first batch of a transaction is verified with the coordinator, the lowest sequence must come first;
- a producer with an open transaction writes nothing outside of it (INVALID_TXN_STATE);
- sequences wrap from 2^31 - 1 to 0.

A producer's entry is written in the same atomic batch as its record batches, so the state on disk is never behind the
log. Entries expire after producer.id.expiration.ms without an append. The table has a limit, at which a new producer
evicts the least recently active one if that was silent for EVICTED_AFTER_MS. A producer with an open transaction
neither expires nor is evicted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.log.producers.verifications import Verification
from kshare_wire.record_batches import BatchHeader

BATCHES_KEPT = 5
MAX_SEQUENCE = (1 << 31) - 1
PRODUCERS_LIMIT = 20_000
"""Producers that one partition remembers; where none of them may be evicted, more get POLICY_VIOLATION."""
EVICTED_AFTER_MS = 2 * 60 * 1000
"""The default of the producer's delivery.timeout.ms: later than that after its last batch it sends no batch again."""

NO_OFFSET = -1
NO_EPOCH = -1
NO_SEQUENCE = -1

_ENTRY = struct.Struct(">hqiq")
_BATCH = struct.Struct(">iqi")


class SentBatch(NamedTuple):
    """One of a producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int

    @property
    def first_sequence(self) -> int:
        return sequence_before(self.last_sequence, self.offset_delta)

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    """The state of a producer id: its newest epoch, the time of its last append, and its last batches in order.

    `coordinator_epoch` is that of its last marker; `transaction_first_offset` is the first offset of its open
    transaction.
    """

    producer_epoch: int
    last_append_ms: int
    batches: tuple[SentBatch, ...]
    coordinator_epoch: int = NO_EPOCH
    transaction_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """-1 where no batch of the newest epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


def sequence_after(sequence: int, steps: int) -> int:
    """The sequence `steps` later (DefaultRecordBatch.incrementSequence)."""
    return (sequence + steps) & MAX_SEQUENCE


def sequence_before(sequence: int, steps: int) -> int:
    """The sequence `steps` earlier (DefaultRecordBatch.decrementSequence)."""
    return (sequence - steps) & MAX_SEQUENCE


def find_duplicate(entry: ProducerEntry | None, header: BatchHeader) -> SentBatch | None:
    """The stored batch that `header` is a copy of."""
    if entry is None or entry.producer_epoch != header.producer_epoch:
        return None
    last_sequence = sequence_after(header.base_sequence, header.last_offset_delta)
    for batch in entry.batches:
        if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
            return batch
    return None


def has_open_transaction(entry: ProducerEntry | None, producer_epoch: int) -> bool:
    """Whether the producer's transaction of this epoch is open, so that a batch of it needs no verification."""
    return entry is not None and entry.transaction_first_offset != NO_OFFSET and entry.producer_epoch == producer_epoch


def check_epoch(entry: ProducerEntry | None, producer_id: int, producer_epoch: int) -> None:
    """KafkaError INVALID_PRODUCER_EPOCH where the producer is fenced."""
    if entry is not None and producer_epoch < entry.producer_epoch:
        text = (
            f"producer {producer_id} with epoch {producer_epoch} is fenced: "
            f"epoch {entry.producer_epoch} has written to the partition"
        )
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text)


def check_producer(entry: ProducerEntry | None, header: BatchHeader, verification: Verification | None = None) -> None:
    """KafkaError where a batch that is not a duplicate must not be appended now.

    `verification` is the producer's pending verification in the partition.
    """
    if header.producer_epoch < NO_EPOCH:
        raise _refusal(ErrorCode.INVALID_PRODUCER_EPOCH, header, "has an epoch below -1")
    check_epoch(entry, header.producer_id, header.producer_epoch)
    if verification is not None:
        _check_first_sequence(entry, header, verification)
    if entry is None:
        return
    sequence = header.base_sequence
    if header.producer_epoch > entry.producer_epoch:
        if sequence != 0:
            text = f"must start its new epoch at sequence 0, not {sequence}"
            raise _refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, text)
    else:
        expected = sequence_after(entry.last_sequence, 1)
        if sequence != expected:
            text = f"sent sequence {sequence}; expected is {expected}"
            raise _refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, text)
    if entry.transaction_first_offset != NO_OFFSET and not header.is_transactional:
        text = f"has a transaction since offset {entry.transaction_first_offset}; the batch is outside of it"
        raise _refusal(ErrorCode.INVALID_TXN_STATE, header, text)


def _check_first_sequence(entry: ProducerEntry | None, header: BatchHeader, verification: Verification) -> None:
    sequence = header.base_sequence
    if verification.adds_partition and sequence != 0 and (entry is None or not entry.batches):
        text = f"must start its transaction at sequence 0, not {sequence}"
        raise _refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, text)
    if sequence > verification.lowest_sequence:
        text = f"sent sequence {sequence}, but {verification.lowest_sequence} must come first"
        raise _refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, text)


def _refusal(code: ErrorCode, header: BatchHeader, what: str) -> KafkaError:
    return KafkaError(code, f"producer {header.producer_id} with epoch {header.producer_epoch} {what}")


def entry_after(entry: ProducerEntry | None, header: BatchHeader, base_offset: int, now_ms: int) -> ProducerEntry:
    """The producer's entry once the batch has been appended at `base_offset`."""
    last_sequence = sequence_after(header.base_sequence, header.last_offset_delta)
    sent = SentBatch(last_sequence, base_offset + header.last_offset_delta, header.last_offset_delta)
    if entry is None:
        return ProducerEntry(
            header.producer_epoch, now_ms, (sent,), NO_EPOCH, base_offset if header.is_transactional else NO_OFFSET
        )
    transaction_first_offset = entry.transaction_first_offset
    if transaction_first_offset == NO_OFFSET and header.is_transactional:
        transaction_first_offset = base_offset
    same_epoch = entry.producer_epoch == header.producer_epoch
    batches = (*entry.batches, sent)[-BATCHES_KEPT:] if same_epoch else (sent,)
    return ProducerEntry(header.producer_epoch, now_ms, batches, entry.coordinator_epoch, transaction_first_offset)


def encode_producer(entry: ProducerEntry) -> bytes:
    """Epoch (2 bytes), time of the last append (8), coordinator epoch (4), first offset of the open transaction (8);
    for each batch last sequence (4), last offset (8), delta (4)."""
    start = _ENTRY.pack(
        entry.producer_epoch, entry.last_append_ms, entry.coordinator_epoch, entry.transaction_first_offset
    )
    return start + b"".join([_BATCH.pack(*sent) for sent in entry.batches])


def decode_producer(value: bytes) -> ProducerEntry:
    """The inverse of `encode_producer`; struct.error where the bytes are none."""
    producer_epoch, last_append_ms, coordinator_epoch, transaction_first_offset = _ENTRY.unpack_from(value)
    batches = tuple(SentBatch(*fields) for fields in _BATCH.iter_unpack(value[_ENTRY.size :]))
    return ProducerEntry(producer_epoch, last_append_ms, batches, coordinator_epoch, transaction_first_offset)


class ProducerTable:
    """The durable producer entries of one partition, in the order of their last appends."""

    def __init__(self, entries: Iterable[tuple[int, ProducerEntry]], *, limit: int = PRODUCERS_LIMIT) -> None:
        self._entries = dict(sorted(entries, key=lambda item: (item[1].last_append_ms, item[0])))
        self._idle = {key: None for key, entry in self._entries.items() if entry.transaction_first_offset == NO_OFFSET}
        """The producers without an open transaction, in the same order."""
        self._newest_ms = max([entry.last_append_ms for entry in self._entries.values()], default=0)
        self._is_sorted = True
        """Whether the times of the last appends ascend: not after the wall clock was set back."""
        self._limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def items(self) -> Iterable[tuple[int, ProducerEntry]]:
        """Producer ids and their entries; the most recent append comes last."""
        return self._entries.items()

    def put(self, producer_id: int, entry: ProducerEntry) -> None:
        self.remove(producer_id)
        self._entries[producer_id] = entry
        if entry.last_append_ms >= self._newest_ms:
            self._newest_ms = entry.last_append_ms
        else:
            self._is_sorted = False
        if entry.transaction_first_offset == NO_OFFSET:
            self._idle[producer_id] = None

    def remove(self, producer_id: int) -> None:
        self._entries.pop(producer_id, None)
        self._idle.pop(producer_id, None)

    def idle(self) -> Iterator[int]:
        """The producers without an open transaction, from the longest silent one on; ends with the table's change."""
        return iter(self._idle)

    def expired(self, now_ms: int, expiration_ms: int) -> Iterator[int]:
        """Producers without an open transaction that last appended `expiration_ms` ago or earlier."""
        for producer_id in self._idle:
            if now_ms - self._entries[producer_id].last_append_ms >= expiration_ms:
                yield producer_id
            elif self._is_sorted:
                return

    def make_room(
        self,
        *,
        added_count: int,
        changed: Mapping[int, ProducerEntry | None],
        idle: Iterator[int],
        now_ms: int,
    ) -> int | None:
        """The producer to evict for a new one; None where there is room.

        `changed` are pending changes of entries (None: removed), by which the table grows by `added_count`. `idle` is
        the rest of the table's `idle()` in this turn: what one eviction passed over, the next ones need not look at.
        KafkaError POLICY_VIOLATION where no producer may be evicted.
        """
        if len(self._entries) + added_count < self._limit:
            return None
        for producer_id in idle:
            if producer_id in changed:
                continue
            silent_ms = now_ms - self._entries[producer_id].last_append_ms
            if silent_ms >= EVICTED_AFTER_MS:
                return producer_id
            if silent_ms >= 0:
                break  # else the clock was set back, and older ones may be behind it
        text = (
            f"the partition has {self._limit} idempotent producers, which is the limit; each has an open transaction "
            f"or was active in the last {EVICTED_AFTER_MS // 1000} s"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
