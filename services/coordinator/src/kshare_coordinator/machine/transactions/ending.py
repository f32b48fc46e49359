"""Producers of transactional ids, and the end of their transactions: InitProducerId, EndTxn, timeouts, expiry.

The rules and their order are those of Kafka 4.3.1's TransactionCoordinator, with transaction.version 2 in force:

- InitProducerId gives a producer its id and epoch, which fences all older producers. If an older producer's transaction
  is open, it is first aborted with a raised epoch; the new producer gets CONCURRENT_TRANSACTIONS until that is done.
- EndTxn decides the outcome. With `bumps_epoch` (version 5, KIP-890) each end raises the epoch, so that a late message
  of the ended transaction cannot be mistaken for one of the next; a retried request is recognized by the previous
  epoch. Without it the epoch stays, and a retried request is recognized by the state alone.
- A decided outcome (PrepareCommit, PrepareAbort) is sent to the leaders of the transaction's partitions. When each has
  it in its log, the shell reports it and the transaction is complete. One without partitions is complete at once.
- Offsets of groups in the transaction take effect or are dropped in the record batch that decides it. The shell tells
  other coordinators about their groups beside the leaders, and before the transaction is complete.
- A transactional id without an open transaction is forgotten after transactional.id.expiration.ms without use. At
  kshare.max.transactional.ids, a new one takes the place of the one unused longest, if that was not used for
  kshare.transactional.id.min.idle.ms. A producer of a forgotten id has no transaction to commit, and cannot begin one,
  since it names a producer id that is not known any more (INVALID_PRODUCER_ID_MAPPING). Only its InitProducerId is
  accepted, as if it was the first one, also if another producer had fenced it. That is why an id must be idle first.
"""

from __future__ import annotations

from dataclasses import dataclass

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.nodes import next_epoch
from kshare_coordinator.machine.commands import (
    AbortTimedOutTransaction,
    CompleteTransaction,
    Effect,
    EndTransaction,
    ExpireTransactionalIds,
    InitTransactionalProducer,
    NextCoordinatorEpoch,
    TransactionEnding,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.offsets.commits import records_at_transaction_end
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.contents import being_ended, transaction_records
from kshare_coordinator.machine.transactions.metadata import (
    EXHAUSTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_0,
    TRANSACTION_VERSION_2,
    TransactionMetadata,
    TransactionState,
    completed,
    new_transactional_id,
    prepared,
    with_new_producer_id,
    with_raised_epoch,
)
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

InitDecision = Decision[Record, pb.InitProducerIdResponse, Effect]
EndDecision = Decision[Record, pb.EndTxnResponse, Effect]


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Times and limits from the broker's configs."""

    max_timeout_ms: int
    expiration_ms: int
    max_ids: int
    min_idle_ms: int

    @classmethod
    def of(cls, configs: Configs) -> TransactionSettings:
        return cls(
            max_timeout_ms=configs.integer("transaction.max.timeout.ms"),
            expiration_ms=configs.integer("transactional.id.expiration.ms"),
            max_ids=configs.integer("kshare.max.transactional.ids"),
            min_idle_ms=configs.integer("kshare.transactional.id.min.idle.ms"),
        )


# InitProducerId


@decides(InitTransactionalProducer)
def decide_init_producer(
    state: CoordinatorState, command: InitTransactionalProducer, settings: TransactionSettings, now_ms: int
) -> InitDecision:
    """Of a request with a transactional id; KafkaError where it is refused."""
    request = command.request
    if not request.transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty")
    if not 0 < request.transaction_timeout_ms <= settings.max_timeout_ms:
        text = (
            f"Transaction timeout {request.transaction_timeout_ms} ms is not allowed; it must be above 0 and at most "
            f"transaction.max.timeout.ms, {settings.max_timeout_ms}"
        )
        raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, text)
    metadata = state.transactions.get(request.transactional_id)
    if metadata is None:
        return _first_producer(state, request, settings, now_ms)
    if metadata.state.is_ending:
        raise being_ended(metadata)
    _check_named_producer(metadata, request)
    if metadata.state is TransactionState.ONGOING:
        found, effects = _fenced(state, metadata, now_ms)
        answer = pb.InitProducerIdResponse(
            error_code=ErrorCode.CONCURRENT_TRANSACTIONS,
            error_message=f"The open transaction of {metadata.transactional_id} is aborted first; retry the request",
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
        return Decision(found, answer, effects)
    return _next_producer(state, metadata, request, now_ms)


def _first_producer(
    state: CoordinatorState, request: pb.InitProducerIdRequest, settings: TransactionSettings, now_ms: int
) -> InitDecision:
    forgotten: list[Record] = []
    if len(state.transactions) >= settings.max_ids:
        forgotten.append(records.transaction(_longest_unused(state, settings, now_ms), None))
    producer_id, found = _new_producer_id(state)
    metadata = new_transactional_id(request.transactional_id, producer_id, request.transaction_timeout_ms, now_ms)
    return Decision([*forgotten, *found, *transaction_records(metadata)], _initialized(metadata))


def _longest_unused(state: CoordinatorState, settings: TransactionSettings, now_ms: int) -> str:
    """The transactional id that makes room for another; KafkaError POLICY_VIOLATION if all are in use."""
    for transactional_id, metadata in state.transactions.items():
        if metadata.last_update_timestamp_ms > now_ms - settings.min_idle_ms:
            break
        if metadata.state.has_no_transaction:
            return transactional_id
    text = (
        f"There are {len(state.transactions)} transactional ids; kshare.max.transactional.ids allows "
        f"{settings.max_ids}, and each of them has an open transaction or was used in the last {settings.min_idle_ms} "
        "ms (kshare.transactional.id.min.idle.ms)"
    )
    raise KafkaError(ErrorCode.POLICY_VIOLATION, text)


def _check_named_producer(metadata: TransactionMetadata, request: pb.InitProducerIdRequest) -> None:
    """A producer that names an id must have been given it (KIP-360), or the one before where that was used up."""
    if request.producer_id in (NO_PRODUCER_ID, metadata.producer_id):
        return
    if request.producer_id == metadata.previous_producer_id and request.producer_epoch >= EXHAUSTED_EPOCH:
        return
    text = f"Producer id {request.producer_id} is not that of transactional id {metadata.transactional_id} any more"
    raise KafkaError(ErrorCode.PRODUCER_FENCED, text)


def _next_producer(
    state: CoordinatorState, metadata: TransactionMetadata, request: pb.InitProducerIdRequest, now_ms: int
) -> InitDecision:
    expected_epoch = None if request.producer_id == NO_PRODUCER_ID else request.producer_epoch
    timeout_ms = request.transaction_timeout_ms
    found: list[Record] = []
    if metadata.is_exhausted and expected_epoch in (None, metadata.producer_epoch):
        producer_id, found = _new_producer_id(state)
        changed = with_new_producer_id(
            metadata, producer_id, keep_epoch=expected_epoch is not None, timeout_ms=timeout_ms, now_ms=now_ms
        )
    else:
        changed = with_raised_epoch(metadata, expected_epoch, timeout_ms, now_ms)
    return Decision([*found, *transaction_records(changed)], _initialized(changed))


def _initialized(metadata: TransactionMetadata) -> pb.InitProducerIdResponse:
    return pb.InitProducerIdResponse(producer_id=metadata.producer_id, producer_epoch=metadata.producer_epoch)


def _new_producer_id(state: CoordinatorState) -> tuple[int, list[Record]]:
    """An unused producer id, and the record that reserves it; blocks of ids come from the same counter."""
    producer_id = state.numbers.get(records.NEXT_PRODUCER_ID, 0)
    return producer_id, [records.cluster_number(records.NEXT_PRODUCER_ID, producer_id + 1)]


# EndTxn


@decides(EndTransaction)
def decide_end(state: CoordinatorState, command: EndTransaction, now_ms: int) -> EndDecision:
    """KafkaError where it is refused."""
    request = command.request
    if not request.transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty")
    metadata = state.transactions.get(request.transactional_id)
    if metadata is None:
        raise _not_of_producer(request)
    if request.bumps_epoch:
        return _end_with_raised_epoch(state, metadata, request, now_ms)
    return _end_with_same_epoch(state, metadata, request, now_ms)


def _end_with_same_epoch(
    state: CoordinatorState, metadata: TransactionMetadata, request: pb.EndTxnRequest, now_ms: int
) -> EndDecision:
    """Versions 0 to 4."""
    if metadata.producer_id != request.producer_id:
        raise _not_of_producer(request)
    if metadata.producer_epoch != request.producer_epoch:
        raise _fenced_by(metadata, request)
    if metadata.state.is_ending:
        raise being_ended(metadata)
    answer = pb.EndTxnResponse(producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
    if metadata.state is TransactionState.ONGOING:
        found, _, effects = _ended(state, metadata, request.committed, TRANSACTION_VERSION_0, now_ms)
        return Decision(found, answer, effects)
    if metadata.state is TransactionState.EMPTY or metadata.is_committed != request.committed:
        raise _wrong_state(metadata, request)
    return Decision((), answer)


def _end_with_raised_epoch(
    state: CoordinatorState, metadata: TransactionMetadata, request: pb.EndTxnRequest, now_ms: int
) -> EndDecision:
    """Version 5: a repeated request names the epoch before, or the used-up epoch of the producer id before.

    While the transaction is ending, the producer may know the epoch or the id after it already, and ends its next
    transaction. So it has to wait, whatever it names.
    """
    if metadata.state.is_ending:
        raise being_ended(metadata)
    raised = metadata.producer_epoch == request.producer_epoch + 1
    rotated = (
        metadata.previous_producer_id == request.producer_id
        and request.producer_epoch == EXHAUSTED_EPOCH
        and metadata.producer_epoch == 0
    )
    if metadata.producer_id != request.producer_id and not rotated:
        raise _not_of_producer(request)
    is_repeated = raised or rotated
    if not _has_valid_epoch(metadata, request, raised, is_repeated):
        raise _fenced_by(metadata, request)
    is_complete = metadata.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    if is_complete and is_repeated:
        if metadata.is_committed != request.committed:
            raise _wrong_state(metadata, request)
        answer = pb.EndTxnResponse(producer_id=metadata.producer_id, producer_epoch=metadata.producer_epoch)
        return Decision((), answer)
    if request.committed and metadata.state is not TransactionState.ONGOING:
        raise _wrong_state(metadata, request)
    found, done, effects = _ended(state, metadata, request.committed, TRANSACTION_VERSION_2, now_ms)
    return Decision(found, pb.EndTxnResponse(producer_id=done.producer_id, producer_epoch=done.producer_epoch), effects)


def _has_valid_epoch(metadata: TransactionMetadata, request: pb.EndTxnRequest, raised: bool, is_repeated: bool) -> bool:
    is_current = metadata.producer_epoch == request.producer_epoch
    if metadata.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return is_current
    return is_repeated or is_current


def _not_of_producer(request: pb.EndTxnRequest) -> KafkaError:
    text = f"Producer id {request.producer_id} is not that of transactional id {request.transactional_id}"
    return KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)


def _fenced_by(metadata: TransactionMetadata, request: pb.EndTxnRequest) -> KafkaError:
    text = (
        f"Epoch {request.producer_epoch} of producer id {request.producer_id} is not the current one, "
        f"{metadata.producer_epoch}"
    )
    return KafkaError(ErrorCode.PRODUCER_FENCED, text)


def _wrong_state(metadata: TransactionMetadata, request: pb.EndTxnRequest) -> KafkaError:
    wanted = "commit" if request.committed else "abort"
    text = f"Transactional id {metadata.transactional_id} is {metadata.state.kafka_name}, so {wanted} is not possible"
    return KafkaError(ErrorCode.INVALID_TXN_STATE, text)


def _ended(
    state: CoordinatorState, metadata: TransactionMetadata, committed: bool, transaction_version: int, now_ms: int
) -> tuple[list[Record], TransactionMetadata, list[Effect]]:
    """The records, the value that the id will have when the transaction is complete, and what the shell must do.

    Offsets take effect at once: the outcome is decided, and a partition without a leader delays markers for as long.
    """
    found: list[Record] = []
    next_producer_id = NO_PRODUCER_ID
    if transaction_version >= TRANSACTION_VERSION_2 and metadata.is_exhausted:
        next_producer_id, found = _new_producer_id(state)
    ending = prepared(
        metadata,
        committed=committed,
        transaction_version=transaction_version,
        next_producer_id=next_producer_id,
        now_ms=now_ms,
    )
    done = completed(ending, now_ms)
    if ending.partitions or groups_elsewhere(state, ending):
        effect = TransactionEnding(transactional_id=metadata.transactional_id)
        offsets = records_at_transaction_end(state, ending.producer_id, ending.is_committed, now_ms)
        return [*found, *transaction_records(ending), *offsets], done, [effect]
    return [*found, *_completion(state, ending, done, now_ms)], done, []


def _fenced(state: CoordinatorState, metadata: TransactionMetadata, now_ms: int) -> tuple[list[Record], list[Effect]]:
    """Aborts an open transaction and fences its producer."""
    found, _, effects = _ended(state, metadata, False, TRANSACTION_VERSION_2, now_ms)
    return found, effects


# Reports of the shell


@decides(CompleteTransaction)
def decide_complete(
    state: CoordinatorState, command: CompleteTransaction, now_ms: int
) -> Decision[Record, bool, Effect]:
    """All partitions have the outcome of this producer id and epoch; answered with whether that was waited for.

    KafkaError NOT_COORDINATOR where a group went to another coordinator that was not told yet.
    """
    metadata = state.transactions.get(command.transactional_id)
    if metadata is None or not metadata.state.is_ending:
        return Decision((), False)
    if (metadata.producer_id, metadata.producer_epoch) != (command.producer_id, command.producer_epoch):
        return Decision((), False)
    unnotified = [
        group_id for group_id in groups_elsewhere(state, metadata) if group_id not in command.notified_group_ids
    ]
    if unnotified:
        text = f"Groups of transaction {command.transactional_id} are another coordinator's by now: {unnotified[0]}"
        raise KafkaError(ErrorCode.NOT_COORDINATOR, text)
    return Decision(_completion(state, metadata, completed(metadata, now_ms), now_ms), True)


def groups_elsewhere(state: CoordinatorState, metadata: TransactionMetadata) -> list[str]:
    """The groups in the transaction whose coordinator is another one."""
    return [group_id for group_id in metadata.group_ids if not state.has_group_partition(partition_of_group(group_id))]


def _completion(
    state: CoordinatorState, ending: TransactionMetadata, done: TransactionMetadata, now_ms: int
) -> list[Record]:
    offsets = records_at_transaction_end(state, ending.producer_id, ending.is_committed, now_ms)
    return [*transaction_records(done), *offsets]


def timed_out_transactions(state: CoordinatorState, now_ms: int) -> list[str]:
    """Transactional ids whose open transaction is older than its timeout."""
    return [
        transactional_id
        for transactional_id in state.ongoing_transactions
        if state.transactions[transactional_id].timed_out(now_ms)
    ]


@decides(AbortTimedOutTransaction)
def decide_abort_timed_out(
    state: CoordinatorState, command: AbortTimedOutTransaction, now_ms: int
) -> Decision[Record, bool, Effect]:
    """Aborts an open transaction that is older than its timeout; answered with whether it was."""
    metadata = state.transactions.get(command.transactional_id)
    if metadata is None:
        return Decision((), False)
    is_seen_open = command.seen_open is not None and command.seen_open == metadata.open_transaction
    if not (is_seen_open or metadata.timed_out(now_ms)):
        return Decision((), False)
    found, effects = _fenced(state, metadata, now_ms)
    return Decision(found, True, effects)


@decides(ExpireTransactionalIds)
def decide_expire_transactional_ids(
    state: CoordinatorState, command: ExpireTransactionalIds, settings: TransactionSettings, now_ms: int
) -> Decision[Record, int, Effect]:
    """Forgets ids that were not used for transactional.id.expiration.ms; answered with how many those were."""
    found = [
        records.transaction(metadata.transactional_id, None)
        for metadata in state.transactions.values()
        if metadata.expired(now_ms, settings.expiration_ms)
    ]
    return Decision(found, len(found))


@decides(NextCoordinatorEpoch)
def decide_next_coordinator_epoch(
    state: CoordinatorState, command: NextCoordinatorEpoch
) -> Decision[Record, int, Effect]:
    """An epoch above all that were ever in a marker."""
    epoch = next_epoch(state)
    return Decision((records.cluster_number(records.EPOCH_COUNTER, epoch),), epoch)
