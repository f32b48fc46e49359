"""Upgrade of a classic group with members to a consumer group of KIP-848, when a member of the new protocol joins.

Rules (GroupMetadataManager.convertToConsumerGroup and ConsumerGroup.fromClassicGroup of Kafka 4.3.1):
- The migration policy allows it, the group is one of consumers, and not larger than a consumer group may be; else
  GROUP_ID_NOT_FOUND.
- Members stay, keep using the classic protocol, and own what they are assigned; their generation is their member epoch,
  the group epoch and the assignment epoch. Unlike in Kafka, a member also keeps the unassigned partitions that it
  listed as owned when it joined, because members of a cooperative group consume those while the group rebalances.
- Calls of members that wait are answered with REBALANCE_IN_PROGRESS: they join again, into the consumer group.
- A group with user data of a custom assignor is not upgraded, since that data would be lost.

Where Kafka answers UNKNOWN_SERVER_ERROR it is otherwise here: a group whose first rebalance is under way can be
upgraded, as its members own nothing; one whose leader gave a partition to two members is GROUP_ID_NOT_FOUND, as nobody
could say who owns it. Where a rebalance was under way, or partitions are nobody's, targets are computed at once, even
if the member that joins is a static one that changes nothing: Kafka would leave those partitions unassigned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect, SessionRenewed
from kshare_coordinator.machine.groups.classic.consumer_protocol import (
    SUBSCRIPTION_LIMIT,
    NamedPartitions,
    assignment_of,
    subscription_of,
)
from kshare_coordinator.machine.groups.classic.draft import ClassicGroupDraft, refused_join
from kshare_coordinator.machine.groups.classic.group import ClassicGroup, ClassicGroupState, ClassicMember
from kshare_coordinator.machine.groups.classic.timers import TimerKind
from kshare_coordinator.machine.groups.consumer import records as group_records
from kshare_coordinator.machine.groups.consumer.downgrade import by_topic
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.subscriptions import existing_topics, metadata_hash
from kshare_coordinator.machine.groups.consumer.values import (
    INITIAL_EPOCH,
    ClassicMetadata,
    ConsumerGroup,
    CurrentAssignment,
    Member,
)
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


class Upgrade(NamedTuple):
    """The consumer group, the records that convert the classic one, and the effects on timers and calls."""

    group: ConsumerGroup
    records: list[Record] = []
    effects: list[Effect] = []
    needs_assignment: bool = False
    """Whether targets must be computed even if the joining member changes nothing: some partition has no owner."""


def made_room(classic: ClassicGroup) -> Upgrade:
    """An empty classic group is taken away, with the ids that it handed out."""
    draft = ClassicGroupDraft(classic, 0)
    for member_id in classic.pending_members:
        draft.end_session(member_id)
    group_id = classic.group_id
    return Upgrade(ConsumerGroup(group_id=group_id), [records.classic_group(group_id, None)], draft.effects)


def upgraded(state: CoordinatorState, classic: ClassicGroup, settings: ConsumerGroupSettings) -> Upgrade:
    """KafkaError GROUP_ID_NOT_FOUND where the group cannot be upgraded."""
    _check(classic, settings)
    protocol_name = classic.protocol_name
    if not protocol_name and classic.members:
        protocol_name = ClassicGroupDraft(classic, 0).selected_protocol()
    epoch = max(classic.generation_id, INITIAL_EPOCH)
    members = {name: _member(classic, name, each, protocol_name) for name, each in classic.members.items()}
    owned = _owned(state, classic, protocol_name)
    names = {topic for member in members.values() for topic in member.subscribed_topic_names}
    group_id = classic.group_id
    found = [records.classic_group(group_id, None)]
    found += [group_records.member(group_id, name, member) for name, member in members.items()]
    found.append(group_records.metadata(group_id, epoch, metadata_hash(state, names)))
    found += [group_records.target(group_id, name, by_topic(partitions)) for name, partitions in owned.items()]
    found.append(group_records.assignment_epoch(group_id, epoch, 0))
    for name, partitions in owned.items():
        current = CurrentAssignment(
            member_epoch=epoch, previous_member_epoch=epoch, assigned=dict.fromkeys(partitions, epoch)
        )
        found.append(group_records.current(group_id, name, current))
    count = sum(map(len, owned.values()))
    is_complete = classic.state is ClassicGroupState.STABLE and count == sum(existing_topics(state, names).values())
    return Upgrade(_replayed(group_id, found[1:]), found, _effects(classic), needs_assignment=not is_complete)


def _check(classic: ClassicGroup, settings: ConsumerGroupSettings) -> None:
    if not settings.allows_upgrade:
        raise _refused(
            classic, "group.consumer.migration.policy allows no upgrade while members use the classic protocol"
        )
    if not classic.is_consumer_group:
        raise _refused(classic, f"its protocol type is {classic.protocol_type!r}, not 'consumer'")
    if len(classic.members) > settings.max_members:
        text = f"it has {len(classic.members)} members; group.consumer.max.size allows {settings.max_members}"
        raise _refused(classic, text)


def _refused(classic: ClassicGroup, reason: str) -> KafkaError:
    text = f"Group {classic.group_id} is a classic group that cannot become a consumer group: {reason}"
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _member(classic: ClassicGroup, member_id: str, member: ClassicMember, protocol_name: str) -> Member:
    subscription = subscription_of(member.metadata(protocol_name))
    if subscription is None:
        raise _refused(classic, f"the metadata of member {member_id} is not a valid subscription")
    if len(subscription.topics) > SUBSCRIPTION_LIMIT:
        raise _refused(classic, f"member {member_id} subscribes to more than {SUBSCRIPTION_LIMIT} names")
    return Member(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )


def _owned(state: CoordinatorState, classic: ClassicGroup, protocol_name: str) -> dict[str, list[TopicPartition]]:
    """The existing partitions that each member is assigned, and the unassigned ones that it listed as owned."""
    owners: dict[TopicPartition, str] = {}
    for member_id, member in classic.members.items():
        assignment = assignment_of(member.assignment)
        if assignment is None:
            raise _refused(classic, f"the assignment of member {member_id} cannot be read")
        if assignment.user_data:
            raise _refused(classic, "its members use an assignor of their own, whose user data would be lost")
        for partition, name in _existing(state, assignment.partitions):
            other = owners.setdefault(partition, member_id)
            if other != member_id:
                text = f"{name}-{partition.partition} is assigned to members {other} and {member_id}"
                raise _refused(classic, text)
    for member_id, partition in _listed_as_owned(state, classic, protocol_name):
        owners.setdefault(partition, member_id)
    found: dict[str, list[TopicPartition]] = {member_id: [] for member_id in classic.members}
    for where, member_id in owners.items():
        found[member_id].append(where)
    return found


def _listed_as_owned(
    state: CoordinatorState, classic: ClassicGroup, protocol_name: str
) -> Iterator[tuple[str, TopicPartition]]:
    """The partitions that members listed as owned in their newest join."""
    for member_id, member in classic.members.items():
        subscription = subscription_of(member.metadata(protocol_name))
        if subscription is not None:
            yield from ((member_id, partition) for partition, _ in _existing(state, subscription.owned))


def _existing(state: CoordinatorState, named: NamedPartitions) -> Iterator[tuple[TopicPartition, str]]:
    """The partitions that exist, each with its topic's name."""
    for name, numbers in named:
        for topic_id, count in existing_topics(state, [name]).items():
            yield from ((TopicPartition(topic_id, number), name) for number in numbers if 0 <= number < count)


def _replayed(group_id: str, found: list[Record]) -> ConsumerGroup:
    """The group as it will be; an empty list makes an empty group."""
    groups = {group_id: ConsumerGroup(group_id=group_id)}
    for record in found:
        kind = record.key.WhichOneof("kind")
        assert kind is not None, "records of groups have a key"
        group_records.REPLAY[kind](groups, record.key, record.value)
    return groups[group_id]


def _effects(classic: ClassicGroup) -> list[Effect]:
    draft = ClassicGroupDraft(classic, 0)
    for kind in (TimerKind.INITIAL_JOIN, TimerKind.JOIN, TimerKind.SYNC):
        draft.cancel(draft.timer(kind))
    for member_id in classic.pending_members:
        draft.end_session(member_id)
    for member_id, member in classic.members.items():
        draft.answer_join(member_id, refused_join(member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        draft.answer_sync(member_id, pb.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        draft.end_session(member_id)
        draft.effects.append(
            SessionRenewed(group_id=classic.group_id, member_id=member_id, session_timeout_ms=member.session_timeout_ms)
        )
    return draft.effects
