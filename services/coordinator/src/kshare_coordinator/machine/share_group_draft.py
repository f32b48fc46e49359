"""A change of one share group in the making, and the records that carry it.

A draft starts from the group as it is, is changed by the decisions below, settled once, and gives the records of what
differs. `settle` holds the rules of KIP-932 that tie a group together:
- Membership, subscriptions and the partitions that exist decide the group epoch: it grows by one whenever one of them
  changed.
- Every partition of a subscribed topic is initialized once. New ones become `initializing` with the group epoch as the
  state epoch; they start at -1 (share.auto.offset.reset decides), but at 0 where the group knows the topic already,
  because records written to a partition that was added before the group noticed must not be lost (KAFKA-20742).
- Only initialized partitions are assigned. The target assignment belongs to the new epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kshare_coordinator.machine import records
from kshare_coordinator.machine.assignor import Assignment, assign
from kshare_coordinator.machine.commands import Initialized
from kshare_coordinator.machine.groups import (
    InitializingPartitions,
    Member,
    PartitionMetadata,
    ShareGroup,
    TopicPartitionSet,
    member_record,
    partitions_record,
    topics_of,
)
from kshare_coordinator.machine.records import Record
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

UNINITIALIZED_START_OFFSET = -1

TopicLookup = Callable[[str], tuple[bytes, int] | None]
"""A topic's id and number of partitions, by name."""


class ShareGroupDraft:
    """See the module's text. `members` may be changed by whoever made the draft, until it is settled."""

    def __init__(self, group: ShareGroup, *, is_new: bool = False) -> None:
        self._old = group
        self._is_new = is_new
        self.group_id = group.group_id
        self.members: dict[str, Member] = dict(group.members)
        self._partitions = group.partitions
        self._epoch = group.epoch
        self._targets: Mapping[str, Assignment] = group.targets
        self._partitions_changed = False

    def forget_topics(self, topic_ids: Iterable[bytes]) -> None:
        """Topics that were deleted: what the group has of their state is to be deleted too."""
        gone = [topic_id for topic_id in topic_ids if self._partitions.known(topic_id)]
        if not gone:
            return
        deleting = dict(self._partitions.deleting)
        for topic_id in gone:
            deleting[topic_id] = TopicPartitionSet(
                topic_name=self._name_of(topic_id), partitions=tuple(sorted(self._partitions.known(topic_id)))
            )
        self._partitions = PartitionMetadata(
            initializing=tuple(entry for entry in self._partitions.initializing if entry.topic_id not in gone),
            initialized={key: topic for key, topic in self._partitions.initialized.items() if key not in gone},
            deleting=deleting,
        )
        self._partitions_changed = True

    def _name_of(self, topic_id: bytes) -> str:
        done = self._partitions.initialized.get(topic_id)
        if done:
            return done.topic_name
        return next(entry.topic_name for entry in self._partitions.initializing if entry.topic_id == topic_id)

    def complete(self, initialized: Iterable[Initialized]) -> None:
        """Moves partitions to `initialized`; those that are not initializing with that state epoch are left alone."""
        done = {(result.topic_id, result.partition, result.state_epoch): result for result in initialized}
        remaining: list[InitializingPartitions] = []
        finished = dict(self._partitions.initialized)
        for entry in self._partitions.initializing:
            keys = {partition: (entry.topic_id, partition, entry.state_epoch) for partition in entry.partitions}
            moved = [partition for partition, key in keys.items() if key in done]
            left = tuple(partition for partition, key in keys.items() if key not in done)
            if left:
                remaining.append(replace(entry, partitions=left))
            if moved:
                before = finished.get(entry.topic_id)
                together = sorted({*moved, *(before.partitions if before else ())})
                finished[entry.topic_id] = TopicPartitionSet(topic_name=entry.topic_name, partitions=tuple(together))
                self._partitions_changed = True
                for partition in moved:  # the group's next epochs must be newer than the state that was found
                    self._epoch = max(self._epoch, done[keys[partition]].existing_state_epoch or 0)
        self._partitions = replace(self._partitions, initializing=tuple(remaining), initialized=finished)

    def complete_deletion(self, deleted: Iterable[tuple[bytes, int]]) -> None:
        """Takes partitions whose state is deleted out of `deleting`; the group epoch stays."""
        gone = set(deleted)
        deleting: dict[bytes, TopicPartitionSet] = {}
        for topic_id, topic in self._partitions.deleting.items():
            left = tuple(partition for partition in topic.partitions if (topic_id, partition) not in gone)
            if left:
                deleting[topic_id] = replace(topic, partitions=left)
        self._partitions = replace(self._partitions, deleting=deleting)

    def settle(self, topics: TopicLookup) -> None:
        """Brings epoch, initialization and target in line with members, subscriptions and topics."""
        missing = self._missing(topics)
        if not (missing or self._partitions_changed or self._membership_changed()):
            return
        self._epoch += 1
        if missing:
            entries = [replace(entry, state_epoch=self._epoch) for entry in missing]
            initializing = (*self._partitions.initializing, *entries)
            self._partitions = replace(self._partitions, initializing=initializing)
        self._assign(topics)

    def _membership_changed(self) -> bool:
        old = {member_id: member.subscribed_topic_names for member_id, member in self._old.members.items()}
        return old != {member_id: member.subscribed_topic_names for member_id, member in self.members.items()}

    def _missing(self, topics: TopicLookup) -> list[InitializingPartitions]:
        """Partitions of subscribed topics whose state nobody initialized or is initializing; without a state epoch."""
        found = []
        names = {name for member in self.members.values() for name in member.subscribed_topic_names}
        for name in sorted(names):
            topic = topics(name)
            if topic is None:
                continue
            topic_id, count = topic
            known = self._partitions.known(topic_id)
            missing = tuple(partition for partition in range(count) if partition not in known)
            if missing:
                found.append(
                    InitializingPartitions(
                        topic_id=topic_id,
                        topic_name=name,
                        partitions=missing,
                        state_epoch=0,
                        start_offset=0 if known else UNINITIALIZED_START_OFFSET,
                    )
                )
        return found

    def _assign(self, topics: TopicLookup) -> None:
        names = {name for member in self.members.values() for name in member.subscribed_topic_names}
        topic_ids = {name: topic[0] for name in names if (topic := topics(name)) is not None}
        subscriptions = {
            member_id: [topic_ids[name] for name in member.subscribed_topic_names if name in topic_ids]
            for member_id, member in self.members.items()
        }
        assignable = {topic_id: topic.partitions for topic_id, topic in self._partitions.initialized.items()}
        self._targets = assign(subscriptions, assignable, self._targets)

    def reconcile(self, member_id: str) -> None:
        """The member was heard: it gets the target and the epoch that the target belongs to."""
        member = self.members[member_id]
        target = self._targets.get(member_id, {})
        if member.member_epoch != self._epoch or member.assignment != target:
            self.members[member_id] = replace(
                member,
                member_epoch=self._epoch,
                previous_member_epoch=member.member_epoch,
                assignment=target,
            )

    def group(self) -> ShareGroup:
        """The group as it will be."""
        return ShareGroup(
            group_id=self.group_id,
            epoch=self._epoch,
            members=self.members,
            targets=self._targets,
            partitions=self._partitions,
        )

    def records(self) -> list[Record]:
        """What differs from the group that the draft began with."""
        found: list[Record] = []
        old, group_id = self._old, self.group_id
        if self._is_new or self._epoch != old.epoch:
            found.append(records.share_group(group_id, records_pb.ShareGroupMetadata(epoch=self._epoch)))
        for member_id in sorted({*old.members, *self.members}):
            member = self.members.get(member_id)
            if member != old.members.get(member_id):
                value = None if member is None else member_record(member)
                found.append(records.share_group_member(group_id, member_id, value))
        for member_id in sorted({*old.targets, *self._targets}):
            target = self._targets.get(member_id)
            if target != old.targets.get(member_id):
                value_of_target = (
                    None
                    if target is None
                    else records_pb.ShareGroupTargetAssignmentMember(assignment=topics_of(target))
                )
                found.append(records.share_group_target(group_id, member_id, value_of_target))
        if self._partitions != old.partitions:
            found.append(records.share_group_partitions(group_id, partitions_record(self._partitions)))
        return found
