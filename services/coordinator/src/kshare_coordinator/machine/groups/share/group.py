"""A share group as values: its members, their targets, and the initialization of its share-partitions.

Immutable; a change of a group is a new value (see `draft`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kshare_coordinator.machine.groups.assignment import Assignment, assignment_of, topics_of
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

EMPTY, STABLE, DEAD = "Empty", "Stable", "Dead"
"""ShareGroup.ShareGroupState; a group that is being deleted is Dead."""

TopicMetadata = records_pb.ShareGroupPartitionMetadata.TopicMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """ShareGroupMemberMetadata; `assignment` was sent with `member_epoch`."""

    rack_id: str = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    member_epoch: int = 0
    previous_member_epoch: int = 0
    assignment: Assignment = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializingPartitions:
    """Partitions whose state is not known to exist yet, and what InitializeShareGroupState is sent with."""

    topic_id: bytes
    topic_name: str
    partitions: tuple[int, ...]
    state_epoch: int
    start_offset: int
    is_alteration: bool = False
    """An administrator chose the start offset: it replaces any existing state."""
    known_partition_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitionSet:
    """Partitions of one topic, in order, that are initialized or whose state is being deleted."""

    topic_name: str
    partitions: tuple[int, ...]
    known_partition_count: int = 0
    """Partitions of the topic that the group knew of so far; 0: not noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """ShareGroupPartitionMetadata; `initialized` and `deleting` by topic id."""

    initializing: tuple[InitializingPartitions, ...] = ()
    initialized: Mapping[bytes, TopicPartitionSet] = field(default_factory=dict)
    deleting: Mapping[bytes, TopicPartitionSet] = field(default_factory=dict)
    given_up_epoch: int = 0
    """State partitions that were given up until this epoch of the catalog are taken into account."""

    @property
    def is_pending(self) -> bool:
        """Whether the share coordinators have something to do for the group."""
        return bool(self.initializing or self.deleting)

    def known_partition_count(self, topic_id: bytes) -> int:
        """How many partitions the topic had when the group last looked; 0 where the group does not know the topic."""
        done = self.initialized.get(topic_id)
        noted = [done.known_partition_count] if done else []
        noted += [entry.known_partition_count for entry in self.initializing if entry.topic_id == topic_id]
        return max(noted, default=0) or max(self.known(topic_id), default=-1) + 1

    def known(self, topic_id: bytes) -> set[int]:
        """Partitions that are initialized or on their way there."""
        done = self.initialized.get(topic_id)
        found = set(done.partitions) if done else set()
        for entry in self.initializing:
            if entry.topic_id == topic_id:
                found.update(entry.partitions)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroup:
    """One share group. `targets` are sent at members' next heartbeats; they belong to `assignment_epoch`."""

    group_id: str
    epoch: int = 0
    state_epoch_base: int = 0
    """The highest state epoch of deleted groups of this one's partition, and what alterations of offsets add."""
    assignment_epoch: int = 0
    assignment_timestamp_ms: int = 0
    """Time of the last assignment; 0: none yet."""
    is_deleting: bool = False
    topics_changed: bool = False
    """Subscribed topics came, grew or went since the epoch was raised."""
    has_unassigned: bool = False
    """Partitions were initialized that are in no target yet."""
    members: Mapping[str, Member] = field(default_factory=dict)
    targets: Mapping[str, Assignment] = field(default_factory=dict)
    partitions: PartitionMetadata = field(default_factory=PartitionMetadata)

    @property
    def state(self) -> str:
        if self.is_deleting:
            return DEAD
        return STABLE if self.members else EMPTY

    @property
    def state_epoch(self) -> int:
        """The epoch with which share coordinators and leaders fence writes; clients see `epoch`."""
        return self.state_epoch_base + self.epoch

    @property
    def is_settled(self) -> bool:
        """Whether a heartbeat that brings no news changes nothing but its own member."""
        return self.assignment_epoch == self.epoch and not self.topics_changed and not self.has_unassigned

    def subscribes_to(self, topic_names: Iterable[str]) -> bool:
        names = set(topic_names)
        return any(not names.isdisjoint(member.subscribed_topic_names) for member in self.members.values())

    def awaits_initialization(self, topic_names: Iterable[str]) -> bool:
        """Whether partitions of one of these topics are not initialized yet."""
        names = set(topic_names)
        return any(entry.topic_name in names for entry in self.partitions.initializing)


def member_record(member: Member) -> records_pb.ShareGroupMemberMetadata:
    return records_pb.ShareGroupMemberMetadata(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        assignment=topics_of(member.assignment),
    )


def member_of(value: records_pb.ShareGroupMemberMetadata) -> Member:
    return Member(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=tuple(value.subscribed_topic_names),
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        assignment=assignment_of(value.assignment),
    )


def group_record(group: ShareGroup) -> records_pb.ShareGroupMetadata:
    return records_pb.ShareGroupMetadata(
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignment_timestamp_ms=group.assignment_timestamp_ms,
        is_deleting=group.is_deleting,
        state_epoch_base=group.state_epoch_base,
        topics_changed=group.topics_changed,
        has_unassigned=group.has_unassigned,
    )


def partitions_record(metadata: PartitionMetadata) -> records_pb.ShareGroupPartitionMetadata:
    return records_pb.ShareGroupPartitionMetadata(
        initializing_topics=[
            TopicMetadata(
                topic_id=entry.topic_id,
                topic_name=entry.topic_name,
                partitions=entry.partitions,
                state_epoch=entry.state_epoch,
                start_offset=entry.start_offset,
                is_alteration=entry.is_alteration,
                known_partition_count=entry.known_partition_count,
            )
            for entry in metadata.initializing
        ],
        initialized_topics=_topics_record(metadata.initialized),
        deleting_topics=_topics_record(metadata.deleting),
        given_up_epoch=metadata.given_up_epoch,
    )


def _topics_record(topics: Mapping[bytes, TopicPartitionSet]) -> list[TopicMetadata]:
    return [
        TopicMetadata(
            topic_id=topic_id,
            topic_name=topic.topic_name,
            partitions=topic.partitions,
            known_partition_count=topic.known_partition_count,
        )
        for topic_id, topic in sorted(topics.items())
    ]


def partitions_of(value: records_pb.ShareGroupPartitionMetadata) -> PartitionMetadata:
    return PartitionMetadata(
        initializing=tuple(
            InitializingPartitions(
                topic_id=entry.topic_id,
                topic_name=entry.topic_name,
                partitions=tuple(entry.partitions),
                state_epoch=entry.state_epoch,
                start_offset=entry.start_offset,
                is_alteration=entry.is_alteration,
                known_partition_count=entry.known_partition_count,
            )
            for entry in value.initializing_topics
        ),
        initialized=_topics(value.initialized_topics),
        deleting=_topics(value.deleting_topics),
        given_up_epoch=value.given_up_epoch,
    )


def _topics(entries: Iterable[TopicMetadata]) -> dict[bytes, TopicPartitionSet]:
    return {
        entry.topic_id: TopicPartitionSet(
            topic_name=entry.topic_name,
            partitions=tuple(entry.partitions),
            known_partition_count=entry.known_partition_count,
        )
        for entry in entries
    }
