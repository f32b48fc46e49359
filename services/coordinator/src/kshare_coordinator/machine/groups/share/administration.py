"""AlterShareGroupOffsets, DeleteShareGroupOffsets and the deletion of share groups: the first stage of each.

A decision here only records the request durably: the new start offsets of share-partitions, or the state to delete. The
shell runs the second stage: it calls share coordinators and leaders in a retry loop (`group_state`), also after a
restart, and ends with CompleteGroupState. A client is answered after the second stage.

Rules, as in GroupMetadataManager and GroupCoordinatorShard of Kafka 4.3.1 unless it says otherwise:
- Only a group without members may be changed: NON_EMPTY_GROUP. AlterShareGroupOffsets creates a group that does not
  exist; the others answer GROUP_ID_NOT_FOUND. An empty id is INVALID_GROUP_ID. An alteration of which nothing can be
  done creates no group; Kafka creates one when a topic exists but none of the partitions.
- Topics and partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION, each for itself, and so is a topic of
  DeleteShareGroupOffsets that the group has no state of. A topic that is named twice counts once.
- New start offsets get a new state epoch, so that leaders with the former state are fenced (KAFKA-20910; Kafka 4.3.1
  uses the old one).
- A start offset below -1 means the first record, as it comes to in Kafka; -1 leaves it to share.auto.offset.reset.
- While a group is being deleted it can be neither joined nor changed: COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_coordinator.machine.commands import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    Effect,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.share.draft import AssignmentTime, ShareGroupDraft
from kshare_coordinator.machine.groups.share.group import ShareGroup
from kshare_coordinator.machine.groups.share.heartbeats import (
    check_not_deleting,
    draft_of,
    existing_group,
    existing_or_new_group,
    records_at_the_end,
    topic_lookup,
)
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import ZERO_TOPIC_ID, TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

UNINITIALIZED_START_OFFSET = -1
NOTHING_TO_ASSIGN = AssignmentTime(now_ms=0, interval_ms=0)
"""The assignment time of groups without members."""

AlterDecision = Decision[Record, pb.AlterShareGroupOffsetsResponse, Effect]
DeleteOffsetsDecision = Decision[Record, pb.DeleteShareGroupOffsetsResponse, Effect]
AlterResult = pb.AlterShareGroupOffsetsResponse.Result
DeleteResult = pb.DeleteShareGroupOffsetsResponse.Result
AlteredPartition = pb.AlterShareGroupOffsetsRequest.Partition


@decides(AlterShareGroupOffsets)
def decide_alter_offsets(
    state: CoordinatorState, command: AlterShareGroupOffsets, settings: GroupSettings, now_ms: int
) -> AlterDecision:
    request = command.request
    _check_group_id(request.group_id)
    group = existing_or_new_group(state, request.group_id, settings)
    _check_unused(group)
    answer = pb.AlterShareGroupOffsetsResponse()
    wanted: dict[str, dict[int, int]] = {}
    for name, partitions in _topics_once(request).items():
        topic = state.topic_named(name)
        for entry in partitions:
            result = AlterResult(
                topic_id=topic.topic_id if topic else ZERO_TOPIC_ID, topic_name=name, partition=entry.partition
            )
            error = _partition_error(name, entry.partition, len(topic.placements) if topic else 0)
            if error is None:
                offset = entry.start_offset if entry.start_offset >= UNINITIALIZED_START_OFFSET else 0
                wanted.setdefault(name, {})[entry.partition] = offset
            else:
                result.error_code, result.error_message = error.code, error.message
            answer.results.append(result)
    if not wanted:
        return Decision((), answer)
    draft = draft_of(state, group, settings, now_ms)
    draft.alter_offsets(wanted)
    return Decision(draft.records(), answer, draft.effects())


def _topics_once(request: pb.AlterShareGroupOffsetsRequest) -> dict[str, Iterable[AlteredPartition]]:
    topics: dict[str, Iterable[AlteredPartition]] = {}
    for topic in request.topics:
        topics.setdefault(topic.topic_name, topic.partitions)
    return topics


def _partition_error(name: str, partition: int, count: int) -> KafkaError | None:
    if count == 0:
        return _no_topic(name)
    if partition < 0:  # found by the share coordinator in Kafka
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Partition {partition} of topic {name} is negative")
    if partition >= count:
        text = f"Topic {name} has the partitions 0 to {count - 1}, not {partition}"
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return None


def _no_topic(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name[:300]} does not exist")


@decides(DeleteShareGroupOffsets)
def decide_delete_offsets(
    state: CoordinatorState, command: DeleteShareGroupOffsets, settings: GroupSettings, now_ms: int
) -> DeleteOffsetsDecision:
    request = command.request
    _check_group_id(request.group_id)
    group = existing_group(state, request.group_id)
    _check_unused(group)
    answer = pb.DeleteShareGroupOffsetsResponse()
    wanted: list[bytes] = []
    for name in dict.fromkeys(request.topic_names):
        topic = state.topic_named(name)
        result = DeleteResult(topic_id=topic.topic_id if topic else ZERO_TOPIC_ID, topic_name=name)
        error = None
        if topic is None:
            error = _no_topic(name)
        elif group.partitions.known(topic.topic_id) or topic.topic_id in group.partitions.deleting:
            wanted.append(topic.topic_id)
        else:
            text = f"Share group {group.group_id} has no offsets of topic {name}"
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        if error is not None:
            result.topic_id, result.error_code, result.error_message = ZERO_TOPIC_ID, error.code, error.message
        answer.results.append(result)
    draft = draft_of(state, group, settings, now_ms)
    draft.delete_offsets(wanted)
    return Decision(draft.records(), answer, draft.effects())


def decide_delete(state: CoordinatorState, group_id: str) -> Decision[Record, ErrorCode, Effect]:
    """One share group of DeleteGroups. NONE: the group is gone, or goes when its state is deleted."""
    group = existing_group(state, group_id)
    if group.members:
        return Decision((), ErrorCode.NON_EMPTY_GROUP)
    draft = ShareGroupDraft(group, topic_lookup(state), NOTHING_TO_ASSIGN)
    draft.delete()
    return Decision([*draft.records(), *records_at_the_end(state, draft)], ErrorCode.NONE, draft.effects())


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty")


def _check_unused(group: ShareGroup) -> None:
    if group.members:
        text = f"Share group {group.group_id} has {len(group.members)} members; they must leave first"
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, text)
    check_not_deleting(group)


def partitions_being_altered(state: CoordinatorState, group_id: str) -> dict[TopicPartition, None]:
    """Those whose new start offset has not reached its share coordinator and leader yet."""
    group = state.share_groups.get(group_id)
    return {
        TopicPartition(entry.topic_id, partition): None
        for entry in (group.partitions.initializing if group is not None else ())
        if entry.is_alteration
        for partition in entry.partitions
    }


def is_being_deleted(state: CoordinatorState, group_id: str, topic_id: bytes) -> bool:
    """Whether some state of a topic that the group gave up is still there."""
    group = state.share_groups.get(group_id)
    return group is not None and topic_id in group.partitions.deleting
