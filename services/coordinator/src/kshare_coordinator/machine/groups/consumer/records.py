"""Constructors and replay functions for the records of consumer groups."""

from __future__ import annotations

from collections.abc import Callable

from kshare_coordinator.machine.groups.assignment import Assignment, assignment_of, topics_of
from kshare_coordinator.machine.groups.consumer.values import (
    INITIAL_EPOCH,
    ConsumerGroup,
    CurrentAssignment,
    Member,
    ResolvedExpression,
    current_of,
    current_record,
    expression_of,
    expression_record,
    member_of,
    member_record,
)
from kshare_coordinator.machine.records import Key, Record, Value
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

Groups = dict[str, ConsumerGroup]
Replay = Callable[[Groups, Key, Value | None], None]


def metadata(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = records_pb.ConsumerGroupMetadata(epoch=epoch, metadata_hash=metadata_hash)
    return Record(key=Key(consumer_group=group_id), value=Value(consumer_group=value))


def metadata_gone(group_id: str) -> Record:
    """The tombstone of the group; its other rows must be deleted before."""
    return Record(key=Key(consumer_group=group_id))


def member(group_id: str, member_id: str, value: Member | None) -> Record:
    key = Key(consumer_group_member=Key.Member(group_id=group_id, member_id=member_id))
    if value is None:
        return Record(key=key)
    return Record(key=key, value=Value(consumer_group_member=member_record(value)))


def assignment_epoch(group_id: str, epoch: int, timestamp_ms: int) -> Record:
    value = records_pb.ConsumerGroupTargetAssignmentMetadata(
        assignment_epoch=epoch, assignment_timestamp_ms=timestamp_ms
    )
    return Record(key=Key(consumer_group_assignment=group_id), value=Value(consumer_group_assignment=value))


def assignment_epoch_gone(group_id: str) -> Record:
    return Record(key=Key(consumer_group_assignment=group_id))


def target(group_id: str, member_id: str, value: Assignment | None) -> Record:
    key = Key(consumer_group_target_assignment=Key.Member(group_id=group_id, member_id=member_id))
    if value is None:
        return Record(key=key)
    found = records_pb.ConsumerGroupTargetAssignmentMember(assignment=topics_of(value))
    return Record(key=key, value=Value(consumer_group_target_assignment=found))


def current(group_id: str, member_id: str, value: CurrentAssignment | None) -> Record:
    key = Key(consumer_group_current_assignment=Key.Member(group_id=group_id, member_id=member_id))
    if value is None:
        return Record(key=key)
    return Record(key=key, value=Value(consumer_group_current_assignment=current_record(value)))


def expression(group_id: str, regex: str, value: ResolvedExpression | None) -> Record:
    key = Key(consumer_group_regular_expression=Key.RegularExpressionKey(group_id=group_id, regular_expression=regex))
    if value is None:
        return Record(key=key)
    return Record(key=key, value=Value(consumer_group_regular_expression=expression_record(value)))


def records_without_member(group_id: str, member_id: str) -> list[Record]:
    return [current(group_id, member_id, None), target(group_id, member_id, None), member(group_id, member_id, None)]


def records_without_group(group: ConsumerGroup) -> list[Record]:
    """All rows of the group, so that its id is free; its committed offsets are not its rows."""
    found: list[Record] = []
    for member_id in sorted({*group.members, *group.current, *group.targets}):
        found += records_without_member(group.group_id, member_id)
    found += [expression(group.group_id, regex, None) for regex in sorted(group.expressions)]
    return [*found, assignment_epoch_gone(group.group_id), metadata_gone(group.group_id)]


def _of(groups: Groups, group_id: str, value: Value | None) -> ConsumerGroup | None:
    """The group, made by its first row; a tombstone makes none."""
    if value is None:
        return groups.get(group_id)
    return groups.setdefault(group_id, ConsumerGroup(group_id=group_id))


def _metadata(groups: Groups, key: Key, value: Value | None) -> None:
    if value is None:
        groups.pop(key.consumer_group, None)
        return
    group = groups.setdefault(key.consumer_group, ConsumerGroup(group_id=key.consumer_group))
    group.epoch = value.consumer_group.epoch
    group.metadata_hash = value.consumer_group.metadata_hash


def _assignment_epoch(groups: Groups, key: Key, value: Value | None) -> None:
    group = _of(groups, key.consumer_group_assignment, value)
    if group is not None:
        found = value.consumer_group_assignment if value else None
        group.assignment_epoch = found.assignment_epoch if found else INITIAL_EPOCH
        group.assignment_timestamp_ms = found.assignment_timestamp_ms if found else 0


def _member(groups: Groups, key: Key, value: Value | None) -> None:
    row = key.consumer_group_member
    group = _of(groups, row.group_id, value)
    if group is not None:
        group.put_member(row.member_id, member_of(value.consumer_group_member) if value else None)


def _target(groups: Groups, key: Key, value: Value | None) -> None:
    row = key.consumer_group_target_assignment
    group = _of(groups, row.group_id, value)
    if group is not None:
        found = assignment_of(value.consumer_group_target_assignment.assignment) if value else None
        group.put_target(row.member_id, found)


def _current(groups: Groups, key: Key, value: Value | None) -> None:
    row = key.consumer_group_current_assignment
    group = _of(groups, row.group_id, value)
    if group is not None:
        group.put_current(row.member_id, current_of(value.consumer_group_current_assignment) if value else None)


def _expression(groups: Groups, key: Key, value: Value | None) -> None:
    row = key.consumer_group_regular_expression
    group = _of(groups, row.group_id, value)
    if group is not None:
        found = expression_of(value.consumer_group_regular_expression) if value else None
        group.put_expression(row.regular_expression, found)


REPLAY: dict[str, Replay] = {
    "consumer_group": _metadata,
    "consumer_group_assignment": _assignment_epoch,
    "consumer_group_member": _member,
    "consumer_group_target_assignment": _target,
    "consumer_group_current_assignment": _current,
    "consumer_group_regular_expression": _expression,
}
"""By kind of key."""
