"""Partitions and groups of a transaction: AddPartitionsToTxn, AddOffsetsToTxn, and their verification.

The rules and their order are Kafka's (KafkaApis and TransactionCoordinator of 4.3.1): the transactional id must exist
and belong to the producer id (INVALID_PRODUCER_ID_MAPPING), the epoch must be the current one (PRODUCER_FENCED), and
the transaction must not be ending (CONCURRENT_TRANSACTIONS). Where something is added, the last rule is the first one:
from EndTxn version 5 on a producer knows its next epoch or id before its transaction is complete. Topics that are
unknown or internal are rejected before that, and the rest of their request is OPERATION_NOT_ATTEMPTED. Adding begins a
transaction if none is open; verification never does.

Ends of transactions are in `ending`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import AddOffsetsToTransaction, AddPartitionsToTransaction, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.topic_names import INTERNAL_TOPICS, METADATA_TOPIC
from kshare_coordinator.machine.transactions.metadata import (
    TransactionMetadata,
    TransactionState,
    metadata_record,
    with_added,
)
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

TRANSACTION_PARTITION_LIMIT = 10_000
"""Limit on partitions in one transaction; requests above it get POLICY_VIOLATION."""
TRANSACTION_GROUP_LIMIT = 1_000
"""Groups whose offsets are in one transaction; likewise."""

Transaction = pb.AddPartitionsToTxnRequest.Transaction
AddResult = pb.AddPartitionsToTxnResponse.Result
AddDecision = Decision[Record, AddResult, Effect]


def transaction_records(metadata: TransactionMetadata) -> list[Record]:
    return [records.transaction(metadata.transactional_id, metadata_record(metadata))]


def metadata_for(
    state: CoordinatorState, transactional_id: str, producer_id: int, producer_epoch: int, *, adds: bool = False
) -> TransactionMetadata:
    """The transactional id that belongs to the producer; KafkaError with the code of the module's text."""
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty")
    metadata = state.transactions.get(transactional_id)
    if adds and metadata is not None and metadata.state.is_ending:
        raise being_ended(metadata)
    if metadata is None or metadata.producer_id != producer_id:
        text = f"Producer id {producer_id} is not that of transactional id {transactional_id}"
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
    if metadata.producer_epoch != producer_epoch:
        text = f"Epoch {producer_epoch} of producer id {producer_id} is not the current one, {metadata.producer_epoch}"
        raise KafkaError(ErrorCode.PRODUCER_FENCED, text)
    if metadata.state.is_ending:
        raise being_ended(metadata)
    return metadata


def being_ended(metadata: TransactionMetadata) -> KafkaError:
    """Of a request that has to wait until the markers are written."""
    text = f"The transaction of {metadata.transactional_id} is being completed ({metadata.state.kafka_name})"
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, text)


# AddPartitionsToTxn


def verify_partitions(state: CoordinatorState, transaction: Transaction) -> AddResult:
    """Says which partitions are in the transaction: NONE, or TRANSACTION_ABORTABLE for those that are not."""
    partitions, refused = _resolved(state, transaction)
    if refused is not None:
        return refused
    try:
        metadata = metadata_for(
            state, transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
        )
    except KafkaError as error:
        return result_of(transaction, error.code)
    codes = (
        ErrorCode.NONE if partition in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    )
    return _result(transaction, codes)


@decides(AddPartitionsToTransaction)
def decide_add_partitions(state: CoordinatorState, command: AddPartitionsToTransaction, now_ms: int) -> AddDecision:
    transaction = command.transaction
    partitions, refused = _resolved(state, transaction)
    if refused is not None:
        return Decision((), refused)
    try:
        metadata = metadata_for(
            state, transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, adds=True
        )
        found = _added(metadata, partitions, (), now_ms)
    except KafkaError as error:
        return Decision((), result_of(transaction, error.code))
    return Decision(found, result_of(transaction, ErrorCode.NONE))


def _resolved(state: CoordinatorState, transaction: Transaction) -> tuple[list[TopicPartition], AddResult | None]:
    """The partitions in the request's order, or the refusal where one of them is not in the catalog."""
    partitions: list[TopicPartition] = []
    codes: list[ErrorCode] = []
    for topic in transaction.topics:
        known = state.topic_named(topic.topic_name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic.topic_name in INTERNAL_TOPICS and topic.topic_name != METADATA_TOPIC:
            known, missing = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for partition in topic.partitions:
            exists = known is not None and 0 <= partition < len(known.placements)
            codes.append(ErrorCode.OPERATION_NOT_ATTEMPTED if exists else missing)
            if known is not None and exists:
                partitions.append(TopicPartition(known.topic_id, partition))
    if len(partitions) == len(codes):
        return partitions, None
    return [], _result(transaction, codes)


def _result(transaction: Transaction, codes: Iterable[ErrorCode]) -> AddResult:
    answer = AddResult(transactional_id=transaction.transactional_id)
    each = iter(codes)
    for topic in transaction.topics:
        for partition in topic.partitions:
            answer.partitions.add(topic_name=topic.topic_name, partition=partition, error_code=next(each))
    return answer


def result_of(transaction: Transaction, code: ErrorCode) -> AddResult:
    """The same code for every partition."""
    return _result(transaction, (code for topic in transaction.topics for _ in topic.partitions))


def _added(
    metadata: TransactionMetadata, partitions: Iterable[TopicPartition], group_ids: Iterable[str], now_ms: int
) -> list[Record]:
    """Nothing where all of them are in the open transaction already."""
    added = with_added(metadata, partitions, group_ids, now_ms)
    is_known = added.partitions == metadata.partitions and added.group_ids == metadata.group_ids
    if metadata.state is TransactionState.ONGOING and is_known:
        return []
    for count, limit, what in (
        (len(added.partitions), TRANSACTION_PARTITION_LIMIT, "partitions"),
        (len(added.group_ids), TRANSACTION_GROUP_LIMIT, "groups"),
    ):
        if count > limit:
            text = f"The transaction of {metadata.transactional_id} would have {count} {what}; at most {limit} may be"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    return transaction_records(added)


# Offsets of groups


@decides(AddOffsetsToTransaction)
def decide_add_offsets(
    state: CoordinatorState, command: AddOffsetsToTransaction, now_ms: int
) -> Decision[Record, ErrorCode, Effect]:
    """AddOffsetsToTxn; also of a TxnOffsetCommit that adds its group (version 5 and later)."""
    request = command.request
    try:
        metadata = metadata_for(state, request.transactional_id, request.producer_id, request.producer_epoch, adds=True)
        found = _added(metadata, (), (request.group_id,), now_ms)
    except KafkaError as error:
        return Decision((), error.code)
    return Decision(found, ErrorCode.NONE)


def verify_offsets(state: CoordinatorState, request: pb.AddOffsetsToTxnRequest) -> ErrorCode:
    """Says whether the group is in the transaction; see `check_ongoing`."""
    return check_ongoing(state, request.transactional_id, request.producer_id, request.producer_epoch, request.group_id)


def check_ongoing(
    state: CoordinatorState, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
) -> ErrorCode:
    """Whether the group's offsets are in the producer's open transaction, in the codes of a TxnOffsetCommit.

    NONE, or as AddPartitionsToTxnManager hands it to the group coordinator: PRODUCER_FENCED arrives there as
    INVALID_PRODUCER_EPOCH. TRANSACTION_ABORTABLE (the group was not added) is INVALID_TXN_STATE for clients below
    version 4, which is for the gateway to say.
    """
    try:
        metadata = metadata_for(state, transactional_id, producer_id, producer_epoch)
    except KafkaError as error:
        is_fenced = error.code is ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else error.code
    return ErrorCode.NONE if group_id in metadata.group_ids else ErrorCode.TRANSACTION_ABORTABLE
