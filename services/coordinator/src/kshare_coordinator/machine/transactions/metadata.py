"""A transactional id as a value, and its transitions (Kafka's TransactionMetadata of 4.3.1).

Immutable; each transition is a function that gives the next value, and `VALID_PREVIOUS_STATES` lists them. A
transition is one record, so there is none of Kafka's "pending" transitions: where Kafka passes through
PrepareEpochFence, one decision goes from Ongoing to PrepareAbort.

Epochs. A producer id with an epoch belongs to one producer. InitProducerId raises the epoch; with transaction version 2
(KIP-890) the end of each transaction does so too, and the transaction's markers carry the raised epoch. The last epoch
but one of an int16 counts as exhausted: the last is left for the abort of that producer's transaction, after which the
transactional id continues with a new producer id and epoch 0. The epoch and the producer id before are kept, so that a
producer that repeats a request, because the answer was lost, is known by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
MAXIMUM_EPOCH = (1 << 15) - 1
EXHAUSTED_EPOCH = MAXIMUM_EPOCH - 1
"""TransactionMetadata.isEpochExhausted: from this epoch on there is none left to give to a producer."""
TRANSACTION_VERSION_0 = 0
"""Ended by a client that does not know KIP-890: the epoch stays."""
TRANSACTION_VERSION_2 = 2
"""Ended with a raised epoch (KIP-890); what the coordinator itself ends is ended so."""


class TransactionState(IntEnum):
    """Numbers and meaning as Kafka's TransactionState; the last two are names that are never stored here."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Expired: its record is a tombstone."""
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        return self.name.title().replace("_", "")

    @property
    def is_ending(self) -> bool:
        """Whether the outcome is decided and not yet known to all partitions."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def has_no_transaction(self) -> bool:
        """Whether no transaction is open; only such an id may expire."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


_S = TransactionState
VALID_PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
}


class OpenTransaction(NamedTuple):
    """What tells an open transaction from others of the same transactional id."""

    producer_id: int
    producer_epoch: int
    start_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """One transactional id. `partitions` and `group_ids` are sets in the order in which they were added."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the newest transition."""
    next_producer_id: int = NO_PRODUCER_ID
    """While ending: the producer id from the end on, where the epochs are exhausted."""
    producer_epoch: int
    previous_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before it was raised for the producer that names it; none where a new producer took over."""
    transaction_timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: Mapping[TopicPartition, None] = field(default_factory=dict)
    group_ids: Mapping[str, None] = field(default_factory=dict)
    """Groups whose offsets are part of the transaction."""
    start_timestamp_ms: int = NO_TIMESTAMP
    last_update_timestamp_ms: int
    transaction_version: int = TRANSACTION_VERSION_0
    """With which the newest transaction was ended."""

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EXHAUSTED_EPOCH

    @property
    def is_committed(self) -> bool:
        """Of one that is ending or complete: its outcome."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def open_transaction(self) -> OpenTransaction | None:
        if self.state is not TransactionState.ONGOING:
            return None
        return OpenTransaction(self.producer_id, self.producer_epoch, self.start_timestamp_ms)

    def timed_out(self, now_ms: int) -> bool:
        is_ongoing = self.state is TransactionState.ONGOING
        return is_ongoing and self.start_timestamp_ms + self.transaction_timeout_ms < now_ms

    def expired(self, now_ms: int, expiration_ms: int) -> bool:
        """transactional.id.expiration.ms without a change; never while a transaction is open."""
        return self.state.has_no_transaction and self.last_update_timestamp_ms <= now_ms - expiration_ms


def new_transactional_id(
    transactional_id: str, producer_id: int, transaction_timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """The first value of an id, with its first producer and epoch 0."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        previous_producer_id=producer_id,
        producer_epoch=0,
        transaction_timeout_ms=transaction_timeout_ms,
        last_update_timestamp_ms=now_ms,
    )


def _checked(before: TransactionMetadata, after: TransactionMetadata) -> TransactionMetadata:
    assert before.state in VALID_PREVIOUS_STATES[after.state], f"{before.state.name} to {after.state.name}"
    return replace(after, previous_producer_id=before.producer_id)


def _without_transaction(metadata: TransactionMetadata, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return replace(
        metadata,
        state=TransactionState.EMPTY,
        transaction_timeout_ms=timeout_ms,
        partitions={},
        group_ids={},
        start_timestamp_ms=NO_TIMESTAMP,
        last_update_timestamp_ms=now_ms,
    )


def with_raised_epoch(
    metadata: TransactionMetadata, expected_epoch: int | None, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """InitProducerId where epochs are left; PRODUCER_FENCED where the producer names another epoch than its own.

    `expected_epoch` is None for a producer that names none (KIP-360: a new one). A producer that names the epoch before
    the current one repeats its request and keeps the current one.
    """
    empty = _without_transaction(metadata, timeout_ms, now_ms)
    if expected_epoch is None:
        raised = replace(empty, producer_epoch=metadata.producer_epoch + 1, previous_producer_epoch=NO_PRODUCER_EPOCH)
    elif expected_epoch == metadata.producer_epoch:
        raised = replace(
            empty, producer_epoch=metadata.producer_epoch + 1, previous_producer_epoch=metadata.producer_epoch
        )
    elif expected_epoch == metadata.previous_producer_epoch:
        raised = empty
    else:
        text = (
            f"Producer epoch {expected_epoch} is neither the current epoch {metadata.producer_epoch} nor the one before"
        )
        raise KafkaError(ErrorCode.PRODUCER_FENCED, text)
    return _checked(metadata, raised)


def with_new_producer_id(
    metadata: TransactionMetadata, producer_id: int, *, keep_epoch: bool, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """InitProducerId where no epochs are left; `keep_epoch`: the producer named its epoch, and may do so again."""
    empty = _without_transaction(metadata, timeout_ms, now_ms)
    previous_epoch = metadata.producer_epoch if keep_epoch else NO_PRODUCER_EPOCH
    return _checked(
        metadata, replace(empty, producer_id=producer_id, producer_epoch=0, previous_producer_epoch=previous_epoch)
    )


def with_added(
    metadata: TransactionMetadata, partitions: Iterable[TopicPartition], group_ids: Iterable[str], now_ms: int
) -> TransactionMetadata:
    """The transaction begins or gets more partitions and groups."""
    begins = metadata.state is not TransactionState.ONGOING
    added = replace(
        metadata,
        state=TransactionState.ONGOING,
        partitions={**metadata.partitions, **dict.fromkeys(partitions)},
        group_ids={**metadata.group_ids, **dict.fromkeys(group_ids)},
        start_timestamp_ms=now_ms if begins else metadata.start_timestamp_ms,
        last_update_timestamp_ms=now_ms,
    )
    return _checked(metadata, added)


def prepared(
    metadata: TransactionMetadata, *, committed: bool, transaction_version: int, next_producer_id: int, now_ms: int
) -> TransactionMetadata:
    """The outcome is decided. With version 2 the epoch is raised, also where there was no transaction to abort."""
    epoch, previous_epoch = metadata.producer_epoch, metadata.previous_producer_epoch
    if transaction_version >= TRANSACTION_VERSION_2:
        epoch, previous_epoch = min(epoch + 1, MAXIMUM_EPOCH), epoch
    ended = replace(
        metadata,
        state=TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
        producer_epoch=epoch,
        previous_producer_epoch=previous_epoch,
        next_producer_id=next_producer_id,
        start_timestamp_ms=now_ms if metadata.state.has_no_transaction else metadata.start_timestamp_ms,
        last_update_timestamp_ms=now_ms,
        transaction_version=transaction_version,
    )
    return _checked(metadata, ended)


def completed(metadata: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """All partitions have their markers. The producer continues with this producer id and epoch."""
    rotates = metadata.next_producer_id != NO_PRODUCER_ID
    done = replace(
        metadata,
        state=TransactionState.COMPLETE_COMMIT if metadata.is_committed else TransactionState.COMPLETE_ABORT,
        producer_id=metadata.next_producer_id if rotates else metadata.producer_id,
        producer_epoch=0 if rotates else metadata.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions={},
        group_ids={},
        last_update_timestamp_ms=now_ms,
    )
    return _checked(metadata, done)


def metadata_record(metadata: TransactionMetadata) -> records_pb.TransactionMetadata:
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in metadata.partitions:
        topics.setdefault(topic_id, []).append(partition)
    return records_pb.TransactionMetadata(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        previous_producer_epoch=metadata.previous_producer_epoch,
        transaction_timeout_ms=metadata.transaction_timeout_ms,
        state=metadata.state,
        partitions=[
            records_pb.TransactionMetadata.Partitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        group_ids=metadata.group_ids,
        start_timestamp_ms=metadata.start_timestamp_ms,
        last_update_timestamp_ms=metadata.last_update_timestamp_ms,
        transaction_version=metadata.transaction_version,
    )


def metadata_of(transactional_id: str, value: records_pb.TransactionMetadata) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_epoch=value.previous_producer_epoch,
        transaction_timeout_ms=value.transaction_timeout_ms,
        state=TransactionState(value.state),
        partitions={
            TopicPartition(topic.topic_id, partition): None
            for topic in value.partitions
            for partition in topic.partitions
        },
        group_ids=dict.fromkeys(value.group_ids),
        start_timestamp_ms=value.start_timestamp_ms,
        last_update_timestamp_ms=value.last_update_timestamp_ms,
        transaction_version=value.transaction_version,
    )
