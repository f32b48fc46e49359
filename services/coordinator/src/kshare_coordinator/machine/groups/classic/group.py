"""A classic consumer group as values (ClassicGroup and ClassicGroupMember of Kafka 4.3.1).

Immutable; a change of a group is a new value (see `draft`). What is written of it is its record,
ClassicGroupMetadata: whenever the leader's assignment comes in, when a static member comes back under another id, and
when the group is made, becomes empty, or was a consumer group of KIP-848 before. All else lives in memory only: who
waits for a join or a sync, which member ids were handed out, a rebalance under way. After a restart the group is what
it was at its newest record, Stable or Empty, and members of a rebalance that was under way are told to join again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kshare_coordinator.machine.groups.classic.consumer_protocol import subscribed_topics
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups that consume topics; the format of their members' metadata is known."""

MEMBER_BYTES, PROTOCOL_BYTES = 100, 16
"""About what a member, and each of its protocols, takes beside its texts and its metadata."""

Protocol = tuple[str, bytes]
"""The name of an assignor that a member supports, and the member's metadata for it."""

NAMES_LIMIT = 1_000_000
"""Topic names in the subscriptions of a group's members together; those of more are not read, which would take long."""

MemberRecord = records_pb.ClassicGroupMetadata.Member


class ClassicGroupState(StrEnum):
    """ClassicGroupState, as Kafka spells it. A group that does not exist is described as Dead."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """`protocols` in the member's order of preference. `group_instance_id` is empty for a dynamic member.

    `awaiting_join` and `awaiting_sync` are the ids of calls that wait for their answer.
    """

    group_instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    awaiting_join: int | None = None
    awaiting_sync: int | None = None
    is_new: bool = False
    """Until its first join is answered; a new member is not kept alive by the join that waits."""

    @property
    def stored_bytes(self) -> int:
        """About what the member takes of the group's record, without its assignment.

        Its id begins with its client id or its group instance id.
        """
        texts = 2 * len(self.client_id.encode()) + 2 * len(self.group_instance_id.encode()) + len(self.client_host)
        protocols = sum(PROTOCOL_BYTES + len(name.encode()) + len(metadata) for name, metadata in self.protocols)
        return MEMBER_BYTES + texts + protocols

    def metadata(self, protocol_name: str | None) -> bytes:
        """Empty where the member does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    @property
    def is_waiting(self) -> bool:
        """Whether a call that waits shows that the member is alive (hasSatisfiedHeartbeat)."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroup:
    """`members` in the order in which they came. `leader_id`, `protocol_type` and `protocol_name`: empty for none."""

    group_id: str
    state: ClassicGroupState = ClassicGroupState.EMPTY
    previous_state: ClassicGroupState = ClassicGroupState.DEAD
    state_timestamp_ms: int = 0
    generation_id: int = 0
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: Mapping[str, ClassicMember] = field(default_factory=dict)
    pending_members: Mapping[str, None] = field(default_factory=dict)
    """Ids that were handed out with MEMBER_ID_REQUIRED and have not joined."""
    pending_syncs: Mapping[str, None] = field(default_factory=dict)
    """Members whose join was answered and who have not synced."""
    static_members: Mapping[str, str] = field(default_factory=dict)
    """Member ids by group instance id."""
    protocol_counts: Mapping[str, int] = field(default_factory=dict)
    """By name of a protocol: how many members support it."""
    stored_bytes: int = 0
    """Of all members, see `ClassicMember.stored_bytes`."""
    waiting_joins: int = 0
    """Members whose join waits for its answer."""
    new_member_added: bool = False
    """Whether a member joined since the timer of the first rebalance was set."""
    initial_delay_ms: int = 0
    """The delay that this timer was set to."""
    initial_remaining_ms: int = 0
    """For how much longer the first rebalance may be put off by members that join."""
    subscribed_topics: frozenset[str] | None = None
    """Of all members, where they say so in a form that is known."""
    awaits_rebalance: bool = False
    """Persisted: a coordinator that loads the group begins a rebalance at once."""

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Whether a member with these protocols can be in the group (ClassicGroup.supportsProtocols)."""
        names = [name for name, _ in protocols]
        if self.is_empty:
            return bool(protocol_type and names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(self.protocol_counts.get(name, 0) == count for name in names)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of all members."""
        return max(0, 0, *(member.rebalance_timeout_ms for member in self.members.values()))

    @property
    def has_all_joined(self) -> bool:
        return len(self.members) == self.waiting_joins and not self.pending_members

    def is_subscribed_to(self, topic_name: str) -> bool:
        """A consumer group whose subscriptions cannot be read counts as subscribed to everything."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic_name in self.subscribed_topics


@dataclass(frozen=True, slots=True)
class ClassicGroupInMemory:
    """The group with its volatile state, which is never written; a record for `replay` only."""

    group: ClassicGroup


def topics_of_members(
    protocol_type: str, protocol_name: str, members: Iterable[ClassicMember]
) -> frozenset[str] | None:
    """The topics that any member subscribes to; None if unknown (ClassicGroup.computeSubscribedTopics)."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    found: dict[str, None] = {}
    count = 0
    for member in members:
        names = subscribed_topics(member.metadata(protocol_name))
        count += len(names or ())
        if names is None or count > NAMES_LIMIT:
            return None
        found.update(dict.fromkeys(names))
    return frozenset(found)


def counted_protocols(members: Iterable[ClassicMember]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for member in members:
        for name, _ in member.protocols:
            counts[name] = counts.get(name, 0) + 1
    return counts


def metadata_record(group: ClassicGroup) -> records_pb.ClassicGroupMetadata:
    """After GroupMetadataValue; with all of a member's protocols, not only the one that was chosen."""
    return records_pb.ClassicGroupMetadata(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id,
        generation_id=group.generation_id,
        current_state_timestamp_ms=group.state_timestamp_ms,
        members=[_member_record(member_id, member) for member_id, member in group.members.items()],
        awaits_rebalance=group.awaits_rebalance,
    )


def _member_record(member_id: str, member: ClassicMember) -> MemberRecord:
    return MemberRecord(
        member_id=member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        protocols=[MemberRecord.Protocol(name=name, metadata=metadata) for name, metadata in member.protocols],
        assignment=member.assignment,
    )


def group_of(group_id: str, value: records_pb.ClassicGroupMetadata) -> ClassicGroup:
    """The group as it is after a load: Stable with the members of the record, or Empty."""
    members = {each.member_id: _member_of(each) for each in value.members}
    return ClassicGroup(
        group_id=group_id,
        state=ClassicGroupState.STABLE if members else ClassicGroupState.EMPTY,
        state_timestamp_ms=value.current_state_timestamp_ms,
        generation_id=value.generation_id,
        protocol_type=value.protocol_type,
        protocol_name=value.protocol_name,
        leader_id=value.leader_id,
        members=members,
        static_members={
            member.group_instance_id: member_id for member_id, member in members.items() if member.group_instance_id
        },
        protocol_counts=counted_protocols(members.values()),
        stored_bytes=sum(member.stored_bytes for member in members.values()),
        subscribed_topics=topics_of_members(value.protocol_type, value.protocol_name, members.values()),
        awaits_rebalance=value.awaits_rebalance,
    )


def _member_of(value: MemberRecord) -> ClassicMember:
    return ClassicMember(
        group_instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        session_timeout_ms=value.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in value.protocols),
        assignment=value.assignment,
    )


def member_refusal(group: ClassicGroup, member_id: str, group_instance_id: str) -> ErrorCode:
    """Whether the member is in the group, and still the one with its instance id (ClassicGroup.validateMember)."""
    if group_instance_id:
        existing = group.static_members.get(group_instance_id)
        if existing is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if existing != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID
