"""Downgrade of a consumer group of KIP-848 to a classic group, once all its members use the classic protocol.

Rules (validateOnlineDowngrade… and convertToClassicGroup of GroupMetadataManager, ClassicGroup.fromConsumerGroup, Kafka
4.3.1):
- The trigger: the last member of the consumer protocol leaves or is removed, or a static member that used it rejoins
  with the classic protocol. The migration policy must allow the downgrade, and the group must not exceed the size limit
  of classic groups; otherwise the group stays a consumer group.
- The generation is the group epoch.
- After a member left, a rebalance begins at once: all members rejoin.
- After a static member rejoined, no rebalance is needed if the targets are up to date: each member is assigned its
  target.

Differences from Kafka:
- A rebalance in progress is persisted with the group and restarts after a restart of the coordinator. Kafka forgets it,
  and the partitions of members that left stay unassigned.
- Until the rebalance ends, members are recorded with the partitions that they may still consume, so that the group can
  be upgraded again at any time. Kafka records targets that other members own.
- A static member that rejoins while other members have not reached their targets triggers a rebalance. In Kafka it is
  assigned partitions that another member still consumes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect
from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.classic.consumer_protocol import assignment_bytes, version_of
from kshare_coordinator.machine.groups.classic.draft import ClassicGroupDraft
from kshare_coordinator.machine.groups.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupInMemory,
    ClassicGroupState,
    ClassicMember,
    counted_protocols,
    metadata_record,
    topics_of_members,
)
from kshare_coordinator.machine.groups.classic.rebalance import prepare_rebalance
from kshare_coordinator.machine.groups.consumer.records import records_without_group
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.values import NEW, ConsumerGroup, Member
from kshare_coordinator.machine.records import AnyRecord
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.visible_topics import visible_topic
from kshare_core.identifiers import TopicPartition


class Joining(NamedTuple):
    """A static member that comes back with the classic protocol; `replaced` is the member that it was."""

    member_id: str
    member: Member
    replaced: str


def is_left_to_classic_members(group: ConsumerGroup, settings: ConsumerGroupSettings, leaving: Collection[str]) -> bool:
    """Whether the group becomes a classic one when these members leave."""
    left = len(group.members) - len(leaving)
    classic_leaving = sum(group.members[member_id].classic is not None for member_id in leaving)
    return left > 0 and group.classic_count - classic_leaving == left and _may_be_classic(settings, left)


def is_last_consumer_replaced(group: ConsumerGroup, settings: ConsumerGroupSettings, replaced: str) -> bool:
    """Whether the group becomes a classic one when this member uses the classic protocol from now on."""
    count = len(group.members)
    is_last = group.members[replaced].classic is None and group.classic_count == count - 1
    return is_last and _may_be_classic(settings, count)


def _may_be_classic(settings: ConsumerGroupSettings, count: int) -> bool:
    return settings.allows_downgrade and count <= settings.max_classic_members


def downgraded(
    state: CoordinatorState,
    group: ConsumerGroup,
    now_ms: int,
    *,
    leaving: Collection[str] = (),
    joining: Joining | None = None,
    rebalance: bool,
) -> tuple[list[AnyRecord], list[Effect]]:
    """The records that make a classic group of the members that stay, and their sessions."""
    members = {name: member for name, member in sorted(group.members.items()) if name not in leaving}
    assigned = {name: _owned(group, name) if rebalance else group.targets.get(name, {}) for name in members}
    if joining is not None:
        assigned[joining.member_id] = assigned.pop(joining.replaced)
        del members[joining.replaced]
        members[joining.member_id] = joining.member
    draft = ClassicGroupDraft(_classic_group(state, group, members, assigned, now_ms), now_ms)
    if rebalance:
        draft.group = replace(draft.group, awaits_rebalance=True)
    stored = records.classic_group(group.group_id, metadata_record(draft.group))
    for member_id in members:
        draft.renew_session(member_id)
    if rebalance:
        prepare_rebalance(draft, 0)
    return [*records_without_group(group), stored, ClassicGroupInMemory(draft.group)], draft.effects


def _classic_group(
    state: CoordinatorState,
    group: ConsumerGroup,
    members: dict[str, Member],
    assigned: dict[str, Assignment],
    now_ms: int,
) -> ClassicGroup:
    """A stable classic group whose members have the given assignments."""
    found = {name: _classic_member(member) for name, member in members.items()}
    unassigned = ClassicGroup(
        group_id=group.group_id,
        state=ClassicGroupState.STABLE,
        state_timestamp_ms=now_ms,
        generation_id=group.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        leader_id=next(iter(found)),
        members=found,
        static_members={each.group_instance_id: name for name, each in found.items() if each.group_instance_id},
        protocol_counts=counted_protocols(found.values()),
        stored_bytes=sum(each.stored_bytes for each in found.values()),
    )
    protocol_name = ClassicGroupDraft(unassigned, now_ms).selected_protocol()
    with_assignments = {
        name: replace(member, assignment=_assignment(state, assigned[name], member.metadata(protocol_name)))
        for name, member in found.items()
    }
    return replace(
        unassigned,
        protocol_name=protocol_name,
        members=with_assignments,
        subscribed_topics=topics_of_members(CONSUMER_PROTOCOL_TYPE, protocol_name, found.values()),
    )


def _owned(group: ConsumerGroup, member_id: str) -> Assignment:
    """The partitions that the member may consume or was asked to revoke."""
    current = group.current.get(member_id, NEW)
    return by_topic([*current.assigned, *current.pending_revocation])


def _classic_member(member: Member) -> ClassicMember:
    assert member.classic is not None, "all that stay use the classic protocol"
    return ClassicMember(
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
    )


def _assignment(state: CoordinatorState, assigned: Assignment, metadata: bytes) -> bytes:
    return assignment_bytes(named_partitions(state, assigned), version_of(metadata))


def by_topic(partitions: Iterable[TopicPartition]) -> Assignment:
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return {topic_id: tuple(numbers) for topic_id, numbers in topics.items()}


def named_partitions(state: CoordinatorState, partitions: Assignment) -> dict[str, list[int]]:
    """By topic name, of topics that exist."""
    return {
        topic.name: sorted(numbers)
        for topic_id, numbers in sorted(partitions.items())
        if (topic := visible_topic(state, topic_id)) is not None and numbers
    }
