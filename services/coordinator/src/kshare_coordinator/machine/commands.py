"""Commands, the inputs of the machine, and effects, its requests to the shell.

The type parameter of a command is the type of its response. Reads (WatchCatalog, ShareGroupDescribe, ListGroups) are
not commands: they read the state and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kshare_coordinator.machine.groups.classic.timers import ClassicGroupEffect, ClassicTimer
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.transactions.metadata import OpenTransaction
from kshare_coordinator.metadata.port import CATALOG
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import security_pb2 as security_pb

Response_co = TypeVar("Response_co", covariant=True)
Partitions = tuple[int, ...]
"""Numbers of metadata partitions: CATALOG, or that of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[Response_co]):
    """A command whose response is a `Response_co`."""

    def homes(self) -> Partitions:
        """The metadata partitions that must be owned where the command is decided: all that it looks at or changes.

        What else a decision changes for groups that happen to be here, because topics changed, is for the coordinators
        of all other groups to do by a command of their own (`catalog.reconciliation`).
        """
        raise NotImplementedError(f"{type(self).__name__} does not say where it is decided")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogCommand(Command[Response_co]):
    """A command that the active coordinator decides."""

    def homes(self) -> Partitions:
        return (CATALOG,)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommand(Command[Response_co]):
    """A command about a group."""

    group_id: str

    def homes(self) -> Partitions:
        return (partition_of_group(self.group_id),)


class NamesGroup(Protocol):
    """A message with a group id."""

    @property
    def group_id(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(Command[Response_co]):
    """A command whose request names its group."""

    request: NamesGroup

    def homes(self) -> Partitions:
        return (partition_of_group(self.request.group_id),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(CatalogCommand[None]):
    """Startup of the coordinator; the very first start fixes the values of the cluster that never change.

    `start_id` is random (`catalog.starts`).
    """

    start_id: str
    cluster_id: str
    state_partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode(CatalogCommand[pb.RegisterNodeResponse]):
    request: pb.RegisterNodeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireNode(CatalogCommand[bool]):
    """Expiry of the lease of a node's incarnation. Response: whether the node still had this incarnation."""

    role: pb.Role.ValueType
    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteStatePartitionMove(CatalogCommand[pb.CompleteStatePartitionMoveResponse]):
    request: pb.CompleteStatePartitionMoveRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainShareCoordinator(CatalogCommand[pb.DrainShareCoordinatorResponse]):
    request: pb.DrainShareCoordinatorRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePartitions(CatalogCommand[pb.MovePartitionsResponse]):
    request: pb.MovePartitionsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvancePartitionMove(CatalogCommand[pb.AdvancePartitionMoveResponse]):
    request: pb.AdvancePartitionMoveRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLeader(CatalogCommand[pb.DrainLeaderResponse]):
    request: pb.DrainLeaderRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpNode(CatalogCommand[pb.GiveUpNodeResponse]):
    request: pb.GiveUpNodeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics(CatalogCommand[pb.CreateTopicsResponse]):
    """`topic_ids` has a fresh id for each topic of the request."""

    request: pb.CreateTopicsRequest
    topic_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics(CatalogCommand[pb.DeleteTopicsResponse]):
    request: pb.DeleteTopicsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions(CatalogCommand[pb.CreatePartitionsResponse]):
    request: pb.CreatePartitionsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredTopic:
    """A topic of the existing cluster; not `has_own_id`: the cluster has no topic ids, and `topic_id` is fresh."""

    name: str
    topic_id: bytes
    partition_count: int
    has_own_id: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTopics(CatalogCommand[dict[str, str]]):
    """Topics as the existing cluster has them now, and names of topics that it has no more.

    Response: the topics that the catalog cannot take, with the reason. Topics that are not named stay as they are.
    """

    cluster_id: str
    """Empty where the cluster does not tell it."""
    topics: tuple[MirroredTopic, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAcls(CatalogCommand[security_pb.AlterAclsResponse]):
    request: security_pb.AlterAclsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotas(CatalogCommand[security_pb.AlterClientQuotasResponse]):
    request: security_pb.AlterClientQuotasRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUserScramCredentials(CatalogCommand[security_pb.AlterUserScramCredentialsResponse]):
    request: security_pb.AlterUserScramCredentialsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigs(CatalogCommand[pb.IncrementalAlterConfigsResponse]):
    request: pb.IncrementalAlterConfigsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(CatalogCommand[range]):
    """Allocation of a block of unused producer ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeat(GroupRequest[pb.ShareGroupHeartbeatResponse]):
    request: pb.ShareGroupHeartbeatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireMember(GroupCommand[None]):
    """Expiry of a member's session."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsets(GroupRequest[pb.AlterShareGroupOffsetsResponse]):
    """AlterShareGroupOffsets, answered once the request is recorded; partitions without an error are `initializing`."""

    request: pb.AlterShareGroupOffsetsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsets(GroupRequest[pb.DeleteShareGroupOffsetsResponse]):
    """DeleteShareGroupOffsets, answered once the request is recorded; topics without an error are `deleting`."""

    request: pb.DeleteShareGroupOffsetsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialized:
    """A share-partition whose state exists at its share coordinator.

    `existing_state_epoch` is set if the share coordinator answered FENCED_STATE_EPOCH: newer state existed.
    """

    topic_id: bytes
    partition: int
    state_epoch: int
    existing_state_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteGroupState(GroupCommand[None]):
    """Share-partitions of a group that share coordinators initialized or deleted.

    `deleted` has pairs of topic id and partition.
    """

    group_id: str
    initialized: tuple[Initialized, ...] = ()
    deleted: tuple[tuple[bytes, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStateAnew(GroupCommand[int]):
    """Initialized share-partitions of a group without state, and the group's state epoch before they were looked up."""

    group_id: str
    state_epoch: int
    lost: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeat(GroupRequest[pb.ConsumerGroupHeartbeatResponse]):
    """ConsumerGroupHeartbeat; `new_member_id` is a fresh id for a member that joins without one."""

    request: pb.ConsumerGroupHeartbeatRequest
    new_member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRevocation(GroupCommand[None]):
    """Expiry of a consumer group member's rebalance timeout, its time to revoke partitions at this member epoch."""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup(GroupRequest[pb.JoinGroupResponse | None]):
    """JoinGroup; response None: the call waits for a WaitingCallAnswered. `new_member_suffix` is a fresh uuid."""

    request: pb.JoinGroupRequest
    call_id: int
    new_member_suffix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup(GroupRequest[pb.SyncGroupResponse | None]):
    """SyncGroup; response None: the call waits, like a JoinGroup."""

    request: pb.SyncGroupRequest
    call_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicHeartbeat(GroupRequest[ErrorCode]):
    request: pb.HeartbeatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup(GroupRequest[pb.LeaveGroupResponse]):
    request: pb.LeaveGroupRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicTimerExpired(Command[None]):
    timer: ClassicTimer

    def homes(self) -> Partitions:
        return (partition_of_group(self.timer.group_id),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeClassicGroups(Command[None]):
    """Start of sessions after groups were loaded.

    Each member gets a full session timeout, because no heartbeat could arrive before the load.
    `group_partition` None: all owned groups.
    """

    group_partition: int | None = None

    def homes(self) -> Partitions:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup(GroupCommand[ErrorCode]):
    """One group of DeleteGroups."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets(GroupRequest[pb.OffsetDeleteResponse]):
    request: pb.OffsetDeleteRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit(GroupRequest[pb.OffsetCommitResponse]):
    request: pb.OffsetCommitRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommit(Command[pb.OffsetCommitResponse]):
    """TxnOffsetCommit. `transaction_code` is the active coordinator's answer on the group in the producer's
    transaction; None: this coordinator is the active one."""

    request: pb.TxnOffsetCommitRequest
    transaction_code: ErrorCode | None = None

    def homes(self) -> Partitions:
        """The transaction is looked at here, too, unless the active coordinator has said what it says."""
        of_group = partition_of_group(self.request.group_id)
        return (CATALOG, of_group) if self.transaction_code is None else (of_group,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTransactionOffsets(Command[None]):
    """Outcome of a producer's transaction, sent by the active coordinator for groups owned here."""

    producer_id: int
    committed: bool
    group_ids: tuple[str, ...]

    def homes(self) -> Partitions:
        return tuple(map(partition_of_group, self.group_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileTopics(Command[int]):
    """Reconciliation of groups with the catalog's topics, after a followed catalog change or a gained group partition.

    `group_partition` None: all owned groups. Response: the number of records written.
    """

    group_partition: int | None = None

    def homes(self) -> Partitions:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets(Command[int]):
    """Removal of the expired committed offsets of these groups. Response: the number of offsets removed."""

    group_ids: tuple[str, ...]

    def homes(self) -> Partitions:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InitTransactionalProducer(CatalogCommand[pb.InitProducerIdResponse]):
    """InitProducerId with a transactional id."""

    request: pb.InitProducerIdRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTransaction(CatalogCommand[pb.AddPartitionsToTxnResponse.Result]):
    """One transaction of AddPartitionsToTxn."""

    transaction: pb.AddPartitionsToTxnRequest.Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTransaction(CatalogCommand[ErrorCode]):
    request: pb.AddOffsetsToTxnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(CatalogCommand[pb.EndTxnResponse]):
    request: pb.EndTxnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteTransaction(CatalogCommand[bool]):
    """Completion of a transaction: every partition has the marker of this producer id and epoch, or was deleted.

    `notified_group_ids`: groups of other coordinators, which have completed their offsets of the transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    notified_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTimedOutTransaction(CatalogCommand[bool]):
    """Abort of a transaction that may have exceeded its timeout.

    `seen_open`: the transaction that the shell saw open for longer than its timeout by monotonic time, if any. It is
    aborted even where wall time says otherwise.
    """

    transactional_id: str
    seen_open: OpenTransaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireTransactionalIds(CatalogCommand[int]):
    """Periodic expiry of transactional ids, each transaction.remove.expired.transaction.cleanup.interval.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCoordinatorEpoch(CatalogCommand[int]):
    """Allocation of a coordinator epoch for transaction markers, above all earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChanged:
    """A new catalog version; calls that wait for one check again."""

    nodes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStarted:
    """Renewal of a node's lease."""

    role: pb.Role.ValueType
    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRenewed:
    """Renewal of a member's session, which expires after `session_timeout_ms` without a heartbeat."""

    group_id: str
    member_id: str
    session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationBegun:
    """Start of a revocation: a consumer group member has `timeout_ms` to revoke partitions (ExpireRevocation)."""

    group_id: str
    member_id: str
    member_epoch: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationEnded:
    """End of a revocation: the member revoked the partitions asked for at this member epoch, or it left."""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionRefused:
    """A stored regular expression of a consumer group is invalid now, so that its topics stay as they are."""

    group_id: str
    regex: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatePending:
    """Share-group state that is to be initialized or deleted at share coordinators.

    `is_news` False: nothing was added, so a retry loop stays in its back-off.
    """

    group_id: str
    is_news: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnding:
    """Decided outcome of a transaction, which the leaders of its partitions must be told."""

    transactional_id: str


Effect = (
    CatalogChanged
    | LeaseStarted
    | SessionRenewed
    | SessionEnded
    | RevocationBegun
    | RevocationEnded
    | ExpressionRefused
    | GroupStatePending
    | TransactionEnding
    | ClassicGroupEffect
)
