"""What the machine can be asked, and what it asks of the shell.

A command says in its type what it is answered with. Reads (WatchCatalog, ShareGroupDescribe, ListGroups) are no
commands: they look at the state and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kshare_coordinator.machine.classic_group_timers import ClassicGroupEffect, ClassicTimer
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

Response_co = TypeVar("Response_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[Response_co]):
    """A command that is answered with a `Response_co`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Command[None]):
    """The coordinator starts: what is fixed at the very first start gets fixed."""

    cluster_id: str
    state_partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode(Command[pb.RegisterNodeResponse]):
    request: pb.RegisterNodeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireNode(Command[bool]):
    """The lease of this incarnation ran out; answered with whether it was still the node's."""

    role: pb.Role.ValueType
    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStatePartitionMove(Command[pb.CompleteStatePartitionMoveResponse]):
    request: pb.CompleteStatePartitionMoveRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainShareCoordinator(Command[pb.DrainShareCoordinatorResponse]):
    request: pb.DrainShareCoordinatorRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePartitions(Command[pb.MovePartitionsResponse]):
    request: pb.MovePartitionsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvancePartitionMove(Command[pb.AdvancePartitionMoveResponse]):
    request: pb.AdvancePartitionMoveRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLeader(Command[pb.DrainLeaderResponse]):
    request: pb.DrainLeaderRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpNode(Command[pb.GiveUpNodeResponse]):
    request: pb.GiveUpNodeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics(Command[pb.CreateTopicsResponse]):
    """`topic_ids` has a fresh id for each topic of the request."""

    request: pb.CreateTopicsRequest
    topic_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics(Command[pb.DeleteTopicsResponse]):
    request: pb.DeleteTopicsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions(Command[pb.CreatePartitionsResponse]):
    request: pb.CreatePartitionsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigs(Command[pb.IncrementalAlterConfigsResponse]):
    request: pb.IncrementalAlterConfigsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(Command[range]):
    """A block of producer ids that nobody got before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeat(Command[pb.ShareGroupHeartbeatResponse]):
    request: pb.ShareGroupHeartbeatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireMember(Command[None]):
    """The session of a member ran out."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsets(Command[pb.AlterShareGroupOffsetsResponse]):
    """Answered when it is noted; partitions without an error are then `initializing`."""

    request: pb.AlterShareGroupOffsetsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsets(Command[pb.DeleteShareGroupOffsetsResponse]):
    """Answered when it is noted; topics without an error are then `deleting`."""

    request: pb.DeleteShareGroupOffsetsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialized:
    """A share-partition whose state is there.

    `existing_state_epoch` is not None where the share coordinator answered FENCED_STATE_EPOCH: newer state existed.
    """

    topic_id: bytes
    partition: int
    state_epoch: int
    existing_state_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteGroupState(Command[None]):
    """What share coordinators did for a group: `deleted` has pairs of topic id and partition."""

    group_id: str
    initialized: tuple[Initialized, ...] = ()
    deleted: tuple[tuple[bytes, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeat(Command[pb.ConsumerGroupHeartbeatResponse]):
    """`new_member_id` is a fresh id, for a member that joins without one."""

    request: pb.ConsumerGroupHeartbeatRequest
    new_member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRevocation(Command[None]):
    """A member of a consumer group had its rebalance timeout to give partitions back with this member epoch."""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup(Command[pb.JoinGroupResponse | None]):
    """None: the call waits, and is answered by WaitingCallAnswered. `new_member_suffix` is a fresh uuid."""

    request: pb.JoinGroupRequest
    call_id: int
    new_member_suffix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup(Command[pb.SyncGroupResponse | None]):
    """None: the call waits, as a JoinGroup does."""

    request: pb.SyncGroupRequest
    call_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicHeartbeat(Command[ErrorCode]):
    request: pb.HeartbeatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup(Command[pb.LeaveGroupResponse]):
    request: pb.LeaveGroupRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicTimerExpired(Command[None]):
    timer: ClassicTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeClassicGroups(Command[None]):
    """The groups were loaded: each member gets a full session timeout, as nobody could be heard before.

    `group_partition` None: all groups that are here.
    """

    group_partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup(Command[ErrorCode]):
    """One group of DeleteGroups."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets(Command[pb.OffsetDeleteResponse]):
    request: pb.OffsetDeleteRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit(Command[pb.OffsetCommitResponse]):
    request: pb.OffsetCommitRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommit(Command[pb.OffsetCommitResponse]):
    """`transaction_code`: what the active coordinator says of the group in the producer's transaction; None: this
    one is the active coordinator."""

    request: pb.TxnOffsetCommitRequest
    transaction_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTransactionOffsets(Command[None]):
    """The active coordinator says how a producer's transaction ended, for groups that are here."""

    producer_id: int
    committed: bool
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileTopics(Command[int]):
    """The catalog was changed elsewhere, or groups came here: brings groups in line with the topics there are.

    `group_partition` None: all groups that are here. Answered with how many records that took.
    """

    group_partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets(Command[int]):
    """Forget what these groups committed too long ago; answered with how many offsets that were."""

    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitTransactionalProducer(Command[pb.InitProducerIdResponse]):
    """InitProducerId with a transactional id."""

    request: pb.InitProducerIdRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTransaction(Command[pb.AddPartitionsToTxnResponse.Result]):
    """One transaction of AddPartitionsToTxn."""

    transaction: pb.AddPartitionsToTxnRequest.Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTransaction(Command[ErrorCode]):
    request: pb.AddOffsetsToTxnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(Command[pb.EndTxnResponse]):
    request: pb.EndTxnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTransaction(Command[bool]):
    """Every partition has the marker of this producer id and epoch, or is gone.

    `told_group_ids`: groups of other coordinators, which have dealt with their offsets in the transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    told_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTimedOutTransaction(Command[bool]):
    """The transaction may be open longer than its timeout."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireTransactionalIds(Command[int]):
    """transaction.remove.expired.transaction.cleanup.interval.ms is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCoordinatorEpoch(Command[int]):
    """A coordinator epoch for transaction markers, above all earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChanged:
    """Whoever waits for a version of the catalog can look again."""

    nodes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStarted:
    """The node's lease starts anew."""

    role: pb.Role.ValueType
    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRenewed:
    """The member was heard: it expires when it stays silent for `session_timeout_ms`."""

    group_id: str
    member_id: str
    session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationBegun:
    """A member of a consumer group has `timeout_ms` to give partitions back (ExpireRevocation)."""

    group_id: str
    member_id: str
    member_epoch: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationEnded:
    """What was asked for with this member epoch was given back, or the member is gone."""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatePending:
    """The group has state to initialize or to delete at share coordinators.

    `is_news` False: nothing was added to it, so whoever waits to try again goes on waiting.
    """

    group_id: str
    is_news: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnding:
    """The transaction's outcome is decided: the leaders of its partitions must be told."""

    transactional_id: str


Effect = (
    CatalogChanged
    | LeaseStarted
    | SessionRenewed
    | SessionEnded
    | RevocationBegun
    | RevocationEnded
    | GroupStatePending
    | TransactionEnding
    | ClassicGroupEffect
)
