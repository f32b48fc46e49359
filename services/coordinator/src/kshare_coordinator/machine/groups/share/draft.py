"""ShareGroupDraft, a pending change of one share group, and the records for it.

A draft starts from the current group, is changed by the methods below, and yields the records of the differences.
Heartbeats call `settle`, which implements the group-wide rules of KIP-932 (GroupMetadataManager of Kafka 4.3.1, whose
sequence of epochs clients see here):
- A heartbeat raises the group epoch by one if a subscription or a subscribed topic changed, or if partitions were
  initialized that the newest target does not have.
- Every partition of a subscribed topic is initialized once (see `partitions`), beginning with the heartbeat that
  notices it.
- Only initialized partitions are assigned. A target assignment belongs to the group epoch at which it was computed.
- A target assignment is computed by a heartbeat, and at most every share.assignment.interval.ms; until then the epochs
  only grow. Unlike in Kafka a target that changed nothing does not count, and a member that joins within the interval
  gets a share of its own at once, beside those of the others, which stay as they are (`share_beside`).
- A member that leaves or expires raises the group epoch; the target is computed by the next heartbeat.

State epochs grow with the group epoch, and by themselves where state is replaced (`ShareGroup.state_epoch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect, GroupStatePending, Initialized
from kshare_coordinator.machine.groups.assignment import Assignment, topics_of
from kshare_coordinator.machine.groups.share.assignor import assign, share_beside
from kshare_coordinator.machine.groups.share.given_up_state import GivenUpState
from kshare_coordinator.machine.groups.share.group import (
    Member,
    ShareGroup,
    group_record,
    member_record,
    partitions_record,
)
from kshare_coordinator.machine.groups.share.partitions import SharePartitions
from kshare_coordinator.machine.records import Record
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

TopicLookup = Callable[[str], tuple[bytes, int] | None]
"""A topic's id and number of partitions, by name."""


class AssignmentTime(NamedTuple):
    """Now, and how often a group's target assignment may be computed."""

    now_ms: int
    interval_ms: int


class ShareGroupDraft:
    """See the module docstring. The creator of the draft may change `members` until it is settled."""

    def __init__(self, group: ShareGroup, topics: TopicLookup, time: AssignmentTime, *, is_new: bool = False) -> None:
        self._old = group
        self._is_new = is_new
        self._topics = topics
        self._time = time
        self.group_id = group.group_id
        self.members: dict[str, Member] = dict(group.members)
        self._partitions = SharePartitions(group.partitions)
        self._epoch = group.epoch
        self._state_epoch_base = group.state_epoch_base
        self._assignment_epoch = group.assignment_epoch
        self._assignment_timestamp_ms = group.assignment_timestamp_ms
        self._targets: Mapping[str, Assignment] = group.targets
        self._is_deleting = group.is_deleting
        self._topics_changed = group.topics_changed
        self._has_unassigned = group.has_unassigned

    # What may happen to a group

    def change_topics(self, new: Iterable[str], deleted: Iterable[bytes]) -> None:
        """Applies new or grown topics, by name, and deleted topics, by id, whose state is to be deleted too."""
        self._partitions.delete(deleted)
        changed = {**dict.fromkeys(new), **self._partitions.changed_names}
        if changed.keys() & self._subscribed_names().keys():
            self._topics_changed = True

    def remove(self, member_id: str) -> None:
        """Removes a member that left or whose session expired."""
        del self.members[member_id]
        self._epoch += 1

    def complete(self, initialized: Iterable[Initialized]) -> None:
        """Records initialized partitions; partitions not initializing with this state epoch are left alone.

        If they had newer state than this coordinator knows, the group's next state epochs are above that state's.
        """
        found = tuple(initialized)
        newest = self._partitions.complete(found)
        self._state_epoch_base = max(self._state_epoch_base, newest - self._epoch)
        if self._partitions.has_to_replace_newer_state(found):
            self._state_epoch_base += 1
            self._partitions.replace_newer_state(found, self._state_epoch)
        if self._partitions.changed_names.keys() & self._subscribed_names().keys():
            self._has_unassigned = True

    def complete_deletion(self, deleted: Iterable[tuple[bytes, int]]) -> None:
        """Takes partitions whose state is deleted out of `deleting`; the group epoch stays."""
        self._partitions.complete_deletion(deleted)

    def alter_offsets(self, start_offsets: Mapping[str, Mapping[int, int]]) -> None:
        """An administrator's start offsets, by topic and partition: a new state epoch; the group epoch stays."""
        self._state_epoch_base += 1
        for name, offsets in start_offsets.items():
            topic = self._topics(name)
            assert topic is not None, f"topic {name} was looked up before"
            self._partitions.alter(topic[0], name, topic[1], offsets, self._state_epoch)

    def begin_anew(self, given_up: GivenUpState) -> None:
        """Share-partitions whose state was given up start again at the first record: a new state epoch.

        The group epoch and the assignments stay; members fetch nothing of them until they are initialized.
        """
        lost = given_up.lost_to(self.group_id, self._partitions.metadata)
        if lost:
            self._state_epoch_base += 1
            self._partitions.begin_anew(lost, self._state_epoch)
        self._partitions.metadata = replace(self._partitions.metadata, given_up_epoch=given_up.newest)

    def begin_lost_anew(self, lost: Iterable[TopicPartition], state_epoch: int) -> int:
        """Share-partitions that have no state start again at the first record; returns their number.

        0 if the group's state epoch is another one by now: their state may have been initialized since.
        """
        if state_epoch != self._state_epoch:
            return 0
        found: dict[bytes, list[int]] = {}
        for topic_id, partition in lost:
            topic = self._partitions.metadata.initialized.get(topic_id)
            if topic is not None and partition in topic.partitions:
                found.setdefault(topic_id, []).append(partition)
        self._partitions.begin_anew(found, self._state_epoch)
        return sum(map(len, found.values()))

    def delete_offsets(self, topic_ids: Iterable[bytes]) -> None:
        """An administrator wants the state of these topics deleted; the group epoch stays."""
        self._partitions.delete(topic_ids)

    def delete(self) -> None:
        """The group goes as soon as all of its state is deleted."""
        assert not self.members, f"group {self.group_id} has members"
        self._is_deleting = True
        self._partitions.delete_all()

    # What follows from it

    def settle(self) -> None:
        """Updates epoch, initialization and target from members, subscriptions and topics, at a heartbeat."""
        missing = self._missing()
        is_assigned = self._assignment_epoch >= self._epoch
        if missing or self._topics_changed or (self._has_unassigned and is_assigned) or self._membership_changed():
            self._epoch += 1
            self._topics_changed = False
            for topic_id, name, count in missing:
                self._partitions.initialize_missing(topic_id, name, count, self._state_epoch)
        if self._assignment_epoch < self._epoch and self._may_assign():
            self._assign()

    @property
    def _state_epoch(self) -> int:
        return self._state_epoch_base + self._epoch

    def _may_assign(self) -> bool:
        passed_ms = self._time.now_ms - self._assignment_timestamp_ms
        if self._assignment_timestamp_ms == 0 or passed_ms < 0:  # never, or the clock was set back
            return True
        return passed_ms >= self._time.interval_ms

    def _membership_changed(self) -> bool:
        old = {member_id: member.subscribed_topic_names for member_id, member in self._old.members.items()}
        return old != {member_id: member.subscribed_topic_names for member_id, member in self.members.items()}

    def _subscribed_names(self) -> dict[str, None]:
        return {name: None for member in self.members.values() for name in member.subscribed_topic_names}

    def _missing(self) -> list[tuple[bytes, str, int]]:
        """Subscribed topics with partitions whose state is neither initialized nor initializing."""
        found = []
        for name in sorted(self._subscribed_names()):
            topic = self._topics(name)
            if topic is not None and len(self._partitions.known(topic[0])) < topic[1]:
                found.append((topic[0], name, topic[1]))
        return found

    def _topic_ids(self, member: Member) -> list[bytes]:
        return [topic[0] for name in member.subscribed_topic_names if (topic := self._topics(name)) is not None]

    def _assign(self) -> None:
        subscriptions = {member_id: self._topic_ids(member) for member_id, member in self.members.items()}
        before = _with_partitions(self._targets)
        self._targets = assign(subscriptions, self._partitions.assignable, self._targets)
        self._assignment_epoch = self._epoch
        self._has_unassigned = False
        if _with_partitions(self._targets) != before:
            self._assignment_timestamp_ms = self._time.now_ms

    def reconcile(self, member_id: str) -> None:
        """Gives the member its target and the epoch of that target, at its heartbeat."""
        if self._assignment_epoch < self._epoch:
            self._bridge(member_id)
        member = self.members[member_id]
        target = self._targets.get(member_id, {})
        if member.member_epoch != self._assignment_epoch:
            member = replace(member, member_epoch=self._assignment_epoch, previous_member_epoch=member.member_epoch)
        if member.assignment != target:
            member = replace(member, assignment=target)
        self.members[member_id] = member

    def _bridge(self, member_id: str) -> None:
        """The target until the next computation: only subscribed topics, and an initial share if it has none."""
        topic_ids = self._topic_ids(self.members[member_id])
        kept = {key: parts for key, parts in self._targets.get(member_id, {}).items() if key in topic_ids}
        if not kept:
            others = {other: target for other, target in self._targets.items() if other in self.members}
            kept = dict(share_beside(topic_ids, self._partitions.assignable, others, len(self.members)))
        if kept != self._targets.get(member_id):
            self._targets = {**self._targets, member_id: kept}

    # What comes of it

    def group(self) -> ShareGroup:
        """The group as it will be; see `is_gone`."""
        return ShareGroup(
            group_id=self.group_id,
            epoch=self._epoch,
            state_epoch_base=self._state_epoch_base,
            assignment_epoch=self._assignment_epoch,
            assignment_timestamp_ms=self._assignment_timestamp_ms,
            is_deleting=self._is_deleting,
            topics_changed=self._topics_changed,
            has_unassigned=self._has_unassigned,
            members=self.members,
            targets={member_id: target for member_id, target in self._targets.items() if member_id in self.members},
            partitions=self._partitions.metadata,
        )

    @property
    def is_gone(self) -> bool:
        """Whether the group was to be deleted and nothing of it is left."""
        return self._is_deleting and not self._partitions.metadata.is_pending

    def effects(self) -> list[Effect]:
        """The effects that the shell must carry out for the changed group."""
        metadata = self._partitions.metadata
        if not metadata.is_pending:
            return []
        return [GroupStatePending(group_id=self.group_id, is_news=metadata != self._old.partitions)]

    def records(self) -> list[Record]:
        """What differs from the group that the draft began with."""
        old, group_id, new = self._old, self.group_id, self.group()
        found = [*self._member_records(), *self._target_records(new)]
        if self.is_gone:
            return [*found, records.share_group_partitions(group_id, None), records.share_group(group_id, None)]
        if self._is_new or group_record(new) != group_record(old):
            found.insert(0, records.share_group(group_id, group_record(new)))
        if new.partitions != old.partitions:
            found.append(records.share_group_partitions(group_id, partitions_record(new.partitions)))
        return found

    def _member_records(self) -> list[Record]:
        found = []
        for member_id in sorted({*self._old.members, *self.members}):
            member = self.members.get(member_id)
            if member != self._old.members.get(member_id):
                value = None if member is None else member_record(member)
                found.append(records.share_group_member(self.group_id, member_id, value))
        return found

    def _target_records(self, new: ShareGroup) -> list[Record]:
        found = []
        for member_id in sorted({*self._old.targets, *new.targets}):
            target = new.targets.get(member_id)
            if target != self._old.targets.get(member_id):
                value = (
                    None
                    if target is None
                    else records_pb.ShareGroupTargetAssignmentMember(assignment=topics_of(target))
                )
                found.append(records.share_group_target(self.group_id, member_id, value))
        return found


def _with_partitions(targets: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """The targets of members that have something."""
    return {member_id: target for member_id, target in targets.items() if target}
