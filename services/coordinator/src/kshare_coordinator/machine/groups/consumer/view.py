"""ConsumerGroupDescribe, ListGroups and DeleteGroups for consumer groups of KIP-848."""

from __future__ import annotations

from collections.abc import Iterable

from kshare_coordinator.machine.commands import Effect
from kshare_coordinator.machine.groups.consumer.draft import preferred_assignor
from kshare_coordinator.machine.groups.consumer.heartbeats import topic_partitions
from kshare_coordinator.machine.groups.consumer.records import records_without_group
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.values import NEW, ConsumerGroup, Member
from kshare_coordinator.machine.groups.namespace import GroupType
from kshare_coordinator.machine.offsets.tombstones import records_at_group_deletion
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.visible_topics import visible_topic
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

PROTOCOL_TYPE = "consumer"

DescribedGroup = pb.ConsumerGroupDescribeResponse.DescribedGroup
DescribedMember = pb.ConsumerGroupDescribeResponse.Member


def describe(
    state: CoordinatorState, settings: ConsumerGroupSettings, request: pb.ConsumerGroupDescribeRequest
) -> pb.ConsumerGroupDescribeResponse:
    """An id that is not a consumer group of KIP-848 gets GROUP_ID_NOT_FOUND, an empty id INVALID_GROUP_ID."""
    groups = [_described(state, settings, group_id) for group_id in request.group_ids]
    return pb.ConsumerGroupDescribeResponse(groups=groups)


def _described(state: CoordinatorState, settings: ConsumerGroupSettings, group_id: str) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID, error_message="The group id is empty")
    group = state.consumer_groups.get(group_id)
    if group is None:
        text = f"Group {group_id} does not exist, or it does not use the consumer protocol"
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.assignor_wishes, settings.assignors[0]),
        members=[_member(state, group, member_id, member) for member_id, member in sorted(group.members.items())],
    )


def _member(state: CoordinatorState, group: ConsumerGroup, member_id: str, member: Member) -> DescribedMember:
    current = group.current.get(member_id, NEW)
    target = group.targets.get(member_id, {})
    wanted = [TopicPartition(topic_id, number) for topic_id, numbers in target.items() for number in numbers]
    return DescribedMember(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_named(state, [*current.assigned, *current.pending_revocation]),
        target_assignment=_named(state, wanted),
        uses_classic_protocol=member.classic is not None,
    )


def _named(state: CoordinatorState, partitions: Iterable[TopicPartition]) -> list[pb.TopicPartitions]:
    """With the topics' names; topics that were deleted since are left out."""
    found = []
    for entry in topic_partitions(list(partitions)):
        topic = visible_topic(state, entry.topic_id)
        if topic is not None:
            entry.topic_name = topic.name
            found.append(entry)
    return found


def listed(state: CoordinatorState, group_id: str) -> pb.ListGroupsResponse.ListedGroup:
    """The group exists."""
    return pb.ListGroupsResponse.ListedGroup(
        group_id=group_id,
        protocol_type=PROTOCOL_TYPE,
        group_state=state.consumer_groups[group_id].state,
        group_type=GroupType.CONSUMER,
    )


def decide_delete(state: CoordinatorState, group_id: str) -> Decision[Record, ErrorCode, Effect]:
    """The group, which exists, with all offsets, those in open transactions too; NON_EMPTY_GROUP: it has members."""
    group = state.consumer_groups[group_id]
    if group.members:
        return Decision((), ErrorCode.NON_EMPTY_GROUP)
    found = [*records_at_group_deletion(state.offsets, group_id), *records_without_group(group)]
    return Decision(found, ErrorCode.NONE)
