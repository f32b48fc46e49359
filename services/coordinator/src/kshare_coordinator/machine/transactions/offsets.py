"""TxnOffsetCommit: offsets that take effect when the producer's transaction is committed.

The order of checks is Kafka's: the topics, the group id, the transaction, the group. From version 5 on the request adds
the group to the transaction itself (KIP-890); the transaction is left as it was where nothing could be committed.

If another coordinator owns the transactions, it is called first; its response is in the command. A group that it
added to the transaction stays there, even if nothing is committed then.
"""

from __future__ import annotations

from collections.abc import Sequence

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import (
    AddOffsetsToTransaction,
    CompleteTransactionOffsets,
    Effect,
    TxnOffsetCommit,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.offsets.commits import (
    Commit,
    OffsetDecision,
    OffsetSettings,
    committed,
    records_at_transaction_end,
)
from kshare_coordinator.machine.offsets.permissions import Committer, check_commit
from kshare_coordinator.machine.offsets.table import OffsetCommitValue, PendingKey
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.contents import check_ongoing, decide_add_offsets
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision


@decides(TxnOffsetCommit)
def decide_transactional_commit(
    state: CoordinatorState, command: TxnOffsetCommit, settings: OffsetSettings, now_ms: int
) -> OffsetDecision:
    request = command.request
    commit = Commit.of(state, request.offsets)
    if commit.is_refused:
        return Decision((), commit.answer())
    code, added = _in_transaction(state, command, now_ms)
    commit.refuse(code)
    committer = Committer(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        epoch=request.generation_id,
        is_transactional=True,
        partitions=[partition for partition, _ in commit.accepted()],
    )
    commit.refuse(check_commit(state, committer, settings.max_groups, ErrorCode.ILLEGAL_GENERATION).code)

    def record(partition: TopicPartition, value: OffsetCommitValue) -> Record:
        topic_id, number = partition
        return records.pending_offset(request.producer_id, request.group_id, topic_id, number, value)

    def adds_row(partition: TopicPartition) -> bool:
        return state.offsets.adds_pending(request.producer_id, PendingKey(request.group_id, partition))

    decision = committed(state, commit, settings, now_ms, record, adds_row)
    return Decision([*added, *decision.records], decision.response) if decision.records else decision


def _in_transaction(
    state: CoordinatorState, command: TxnOffsetCommit, now_ms: int
) -> tuple[ErrorCode, Sequence[Record]]:
    """Whether the group is in the producer's transaction, and the records that put it there."""
    request = command.request
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID, ()
    if command.transaction_code is not None:
        return command.transaction_code, ()
    if not request.add_to_transaction:
        code = check_ongoing(
            state, request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
        )
        return code, ()
    addition = decide_add_offsets(
        state,
        AddOffsetsToTransaction(
            request=pb.AddOffsetsToTxnRequest(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                group_id=request.group_id,
            )
        ),
        now_ms,
    )
    return code_of_commit(addition.response), addition.records


def code_of_commit(code: ErrorCode) -> ErrorCode:
    """A refusal of AddOffsetsToTxn in the codes of TxnOffsetCommit."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code


@decides(CompleteTransactionOffsets)
def decide_complete_offsets(
    state: CoordinatorState, command: CompleteTransactionOffsets, now_ms: int
) -> Decision[Record, None, Effect]:
    """The end of a transaction for groups that are here, whose transaction is another coordinator's.

    It says what shall be, so repeating it changes nothing.
    """
    groups = frozenset(command.group_ids)
    return Decision(records_at_transaction_end(state, command.producer_id, command.committed, now_ms, groups), None)
