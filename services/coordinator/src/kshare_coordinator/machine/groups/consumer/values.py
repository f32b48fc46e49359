"""The in-memory values of a consumer group of KIP-848 (ConsumerGroup and ConsumerGroupMember of Kafka 4.3.1).

The records of a group, one for each row:
- ConsumerGroupMetadata: the group epoch, and a hash of the subscribed topics' ids and sizes.
- ConsumerGroupMemberMetadata: the properties that a member reported (`Member`).
- ConsumerGroupRegularExpression: the topics that match an expression that members subscribe to.
- ConsumerGroupTargetAssignmentMetadata and -Member: the target of each member, and its group epoch.
- ConsumerGroupCurrentMemberAssignment: a member's progress towards its target (`CurrentAssignment`).

Values are immutable. A ConsumerGroup changes in place, and only by replay, so that a record costs the same however many
members there are; it counts subscribers and knows each partition's owner, which derives from its rows.

A group begins with group epoch 1 and assignment epoch 1, without a record saying so; the first member makes it 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.classic.group import Protocol
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"
"""ConsumerGroup.ConsumerGroupState."""

INITIAL_EPOCH = 1
LEFT_FOR_A_WHILE_EPOCH = -2
"""The member epoch of a static member that will come back."""

PartitionEpochs = Mapping[TopicPartition, int]
"""Partitions of a member, and the member epoch with which it got each."""

AssignedPartitions = records_pb.ConsumerGroupCurrentMemberAssignment.AssignedPartitions
ProtocolRecord = records_pb.ClassicGroupMetadata.Member.Protocol
ClassicMetadataRecord = records_pb.ConsumerGroupMemberMetadata.ClassicMemberMetadata


class MemberState(IntEnum):
    """Numbers of ConsumerGroupCurrentMemberAssignment.MemberState."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has to give partitions back."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """The fields of a member that uses the classic protocol (ClassicMemberMetadata); `protocols` is not empty."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """ConsumerGroupMemberMetadata; empty strings stand for none. `subscribed_topic_names` are in order.

    `classic` is None for a member that uses the consumer protocol.
    """

    instance_id: str = ""
    rack_id: str = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str = ""
    classic: ClassicMetadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """ConsumerGroupCurrentMemberAssignment; no other member may own a partition in either of the two tables."""

    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    pending_revocation: PartitionEpochs = field(default_factory=dict)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch


NEW = CurrentAssignment()
"""Of a member that is joining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedExpression:
    """The names of topics that match, in order; looked up at a version of the catalog."""

    topics: tuple[str, ...] = ()
    version: int = 0
    timestamp_ms: int = 0


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """See the module docstring; only replay calls the `put_…` methods, where None removes the row."""

    group_id: str
    epoch: int = INITIAL_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = INITIAL_EPOCH
    assignment_timestamp_ms: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    current: dict[str, CurrentAssignment] = field(default_factory=dict)
    targets: dict[str, Assignment] = field(default_factory=dict)
    expressions: dict[str, ResolvedExpression] = field(default_factory=dict)
    """By regular expression."""
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id; this and what follows derives from the rows."""
    name_subscribers: dict[str, int] = field(default_factory=dict)
    """How many members name a topic."""
    assignor_wishes: dict[str, int] = field(default_factory=dict)
    """How many members ask for an assignor."""
    classic_count: int = 0
    """How many members use the classic protocol."""
    classic_protocols: dict[str, int] = field(default_factory=dict)
    """By name of a protocol of the classic ones: how many of them support it."""
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    """Member ids, including members that must revoke the partition."""
    checked: tuple[int, int] = field(default=(-1, -1), compare=False)
    """No state but a note: the catalog's generation of topics that this group epoch was compared with."""
    resolved: tuple[int, int, tuple[tuple[int, int], ...]] = field(default=(-1, 0, ()), compare=False)
    """Likewise: the generation of topics for which the expressions were last resolved, when, in milliseconds, and the
    `resolution_times` that came of it. The group has others if the records of that decision could not be written."""
    unfinished: frozenset[str] = field(default=frozenset(), compare=False)
    """Likewise: the expressions whose lookups needed more time then."""

    @property
    def state(self) -> str:
        """Looks at all members."""
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        epoch = self.assignment_epoch
        is_stable = all(self.current.get(member_id, NEW).is_reconciled_to(epoch) for member_id in self.members)
        return STABLE if is_stable else RECONCILING

    def is_subscribed_to(self, topic_name: str) -> bool:
        return topic_name in self.name_subscribers or any(
            topic_name in expression.topics for expression in self.expressions.values()
        )

    def put_member(self, member_id: str, member: Member | None) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            _count(self.name_subscribers, old.subscribed_topic_names, -1)
            _count(self.assignor_wishes, filter(None, [old.server_assignor]), -1)
            self._count_classic(old, -1)
            if self.static_members.get(old.instance_id) == member_id:
                del self.static_members[old.instance_id]
        if member is None:
            return
        self.members[member_id] = member
        _count(self.name_subscribers, member.subscribed_topic_names, 1)
        _count(self.assignor_wishes, filter(None, [member.server_assignor]), 1)
        self._count_classic(member, 1)
        if member.instance_id:
            self.static_members[member.instance_id] = member_id

    def _count_classic(self, member: Member, sign: int) -> None:
        if member.classic is not None:
            self.classic_count += sign
            _count(self.classic_protocols, (name for name, _ in member.classic.protocols), sign)

    def put_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        old = self.current.pop(member_id, NEW)
        for partition in _owned(old):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        if current is not None:
            self.current[member_id] = current
            for partition in _owned(current):
                self.owners[partition] = member_id

    def put_target(self, member_id: str, target: Assignment | None) -> None:
        self.targets.pop(member_id, None)
        if target is not None:
            self.targets[member_id] = target

    def put_expression(self, regex: str, expression: ResolvedExpression | None) -> None:
        self.expressions.pop(regex, None)
        if expression is not None:
            self.expressions[regex] = expression


def _count(counts: dict[str, int], names: Iterable[str], sign: int) -> None:
    for name in names:
        count = counts.get(name, 0) + sign
        if count:
            counts[name] = count
        else:
            del counts[name]


def _owned(current: CurrentAssignment) -> Iterator[TopicPartition]:
    yield from current.assigned
    yield from current.pending_revocation


def member_record(member: Member) -> records_pb.ConsumerGroupMemberMetadata:
    classic = None
    if member.classic is not None:
        protocols = [ProtocolRecord(name=name, metadata=metadata) for name, metadata in member.classic.protocols]
        classic = ClassicMetadataRecord(
            session_timeout_ms=member.classic.session_timeout_ms, supported_protocols=protocols
        )
    return records_pb.ConsumerGroupMemberMetadata(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=classic,
    )


def member_of(value: records_pb.ConsumerGroupMemberMetadata) -> Member:
    classic = None
    if value.HasField("classic_member_metadata"):
        metadata = value.classic_member_metadata
        classic = ClassicMetadata(
            session_timeout_ms=metadata.session_timeout_ms,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in metadata.supported_protocols),
        )
    return Member(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=tuple(value.subscribed_topic_names),
        subscribed_topic_regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=classic,
    )


def current_record(current: CurrentAssignment) -> records_pb.ConsumerGroupCurrentMemberAssignment:
    return records_pb.ConsumerGroupCurrentMemberAssignment(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_member_epoch,
        state=records_pb.ConsumerGroupCurrentMemberAssignment.MemberState.ValueType(current.state),
        assigned_partitions=_partitions_record(current.assigned),
        partitions_pending_revocation=_partitions_record(current.pending_revocation),
    )


def current_of(value: records_pb.ConsumerGroupCurrentMemberAssignment) -> CurrentAssignment:
    return CurrentAssignment(
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_partitions_of(value.assigned_partitions),
        pending_revocation=_partitions_of(value.partitions_pending_revocation),
    )


def _partitions_record(epochs: PartitionEpochs) -> list[AssignedPartitions]:
    topics: dict[bytes, AssignedPartitions] = {}
    for (topic_id, partition), epoch in sorted(epochs.items()):
        entry = topics.setdefault(topic_id, AssignedPartitions(topic_id=topic_id))
        entry.partitions.append(partition)
        entry.assignment_epochs.append(epoch)
    return list(topics.values())


def _partitions_of(topics: Iterable[AssignedPartitions]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.topic_id, partition): epoch
        for topic in topics
        for partition, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
    }


def expression_record(expression: ResolvedExpression) -> records_pb.ConsumerGroupRegularExpression:
    return records_pb.ConsumerGroupRegularExpression(
        topics=expression.topics, version=expression.version, timestamp_ms=expression.timestamp_ms
    )


def expression_of(value: records_pb.ConsumerGroupRegularExpression) -> ResolvedExpression:
    return ResolvedExpression(topics=tuple(value.topics), version=value.version, timestamp_ms=value.timestamp_ms)
