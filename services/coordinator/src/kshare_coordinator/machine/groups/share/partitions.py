"""The share-partitions of one group during a change: those initialized, initializing and deleting.

- A partition is initialized once, by default with start offset -1 (share.auto.offset.reset decides). The start offset
  is 0 if the group knew the topic before the partition was added, because records written before the group noticed
  must not be lost (KAFKA-20742). For this the group stores the partition count of each topic at its last look.
- An administrator's start offset is an alteration: the partition leaves `initialized` until its state was replaced, so
  that it is not assigned with its old state. If unknown newer state exists, the alteration is sent again with an epoch
  above that state's.
- A partition may be in `deleting` and in `initializing` at once: its old state is deleted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kshare_coordinator.machine.commands import Initialized
from kshare_coordinator.machine.groups.share.group import InitializingPartitions, PartitionMetadata, TopicPartitionSet

UNINITIALIZED_START_OFFSET = -1


class SharePartitions:
    """A mutable PartitionMetadata; `changed_names` has the topics whose assignable partitions changed."""

    def __init__(self, metadata: PartitionMetadata) -> None:
        self.metadata = metadata
        self.changed_names: dict[str, None] = {}

    @property
    def assignable(self) -> dict[bytes, Sequence[int]]:
        return {topic_id: topic.partitions for topic_id, topic in self.metadata.initialized.items()}

    def known(self, topic_id: bytes) -> set[int]:
        return self.metadata.known(topic_id)

    def initialize_missing(self, topic_id: bytes, name: str, count: int, state_epoch: int) -> None:
        """Makes the unknown partitions below `count` `initializing`."""
        known_count = self.metadata.known_partition_count(topic_id)
        known = self.known(topic_id)
        first_looks = [partition for partition in range(count) if partition not in known]
        added = [partition for partition in first_looks if known_count and partition >= known_count]
        others = [partition for partition in first_looks if not (known_count and partition >= known_count)]
        entries = [
            InitializingPartitions(
                topic_id=topic_id,
                topic_name=name,
                partitions=tuple(partitions),
                state_epoch=state_epoch,
                start_offset=start_offset,
                known_partition_count=count,
            )
            for partitions, start_offset in ((others, UNINITIALIZED_START_OFFSET), (added, 0))
            if partitions
        ]
        self.metadata = replace(self.metadata, initializing=(*self.metadata.initializing, *entries))

    def alter(self, topic_id: bytes, name: str, count: int, offsets: Mapping[int, int], state_epoch: int) -> None:
        """Sets new start offsets for partitions of one topic, superseding earlier initializations and alterations."""
        known_count = self.metadata.known_partition_count(topic_id) or count
        self._take_out(topic_id, offsets.keys())
        by_offset: dict[int, list[int]] = {}
        for partition, offset in sorted(offsets.items()):
            by_offset.setdefault(offset, []).append(partition)
        entries = [
            InitializingPartitions(
                topic_id=topic_id,
                topic_name=name,
                partitions=tuple(partitions),
                state_epoch=state_epoch,
                start_offset=offset,
                is_alteration=True,
                known_partition_count=known_count,
            )
            for offset, partitions in by_offset.items()
        ]
        self.metadata = replace(self.metadata, initializing=(*self.metadata.initializing, *entries))

    def begin_anew(self, lost: Mapping[bytes, Sequence[int]], state_epoch: int) -> None:
        """Restarts initialized partitions whose state is lost at the first record of their logs."""
        for topic_id, partitions in lost.items():
            known = self.metadata.initialized[topic_id]
            count = self.metadata.known_partition_count(topic_id)
            self.alter(topic_id, known.topic_name, count, dict.fromkeys(partitions, 0), state_epoch)

    def complete(self, found: Iterable[Initialized]) -> int:
        """Moves partitions to `initialized`; returns the highest state epoch of existing state, or 0."""
        done = {(result.topic_id, result.partition, result.state_epoch): result for result in found}
        newest = 0
        remaining: list[InitializingPartitions] = []
        finished = dict(self.metadata.initialized)
        for entry in self.metadata.initializing:
            results = {part: done.get((entry.topic_id, part, entry.state_epoch)) for part in entry.partitions}
            epochs = [result.existing_state_epoch or 0 for result in results.values() if result is not None]
            newest = max([newest, *epochs])
            moved = {
                part: None for part, result in results.items() if result is not None and not _is_refused(entry, result)
            }
            left = tuple(part for part in entry.partitions if part not in moved)
            if left:
                remaining.append(replace(entry, partitions=left))
            if moved:
                finished[entry.topic_id] = _together(finished.get(entry.topic_id), entry, list(moved))
                self.changed_names[entry.topic_name] = None
        self.metadata = replace(self.metadata, initializing=tuple(remaining), initialized=finished)
        return newest

    def has_to_replace_newer_state(self, found: Iterable[Initialized]) -> bool:
        """Whether an alteration met newer state than its own."""
        return any(self._refused_parts(entry, found) for entry in self.metadata.initializing)

    def replace_newer_state(self, found: Iterable[Initialized], state_epoch: int) -> None:
        """Sends these alterations again, with a newer epoch."""
        entries: list[InitializingPartitions] = []
        for entry in self.metadata.initializing:
            again = self._refused_parts(entry, found)
            left = tuple(partition for partition in entry.partitions if partition not in again)
            if left:
                entries.append(replace(entry, partitions=left))
            if again:
                entries.append(replace(entry, partitions=again, state_epoch=state_epoch))
        self.metadata = replace(self.metadata, initializing=tuple(entries))

    @staticmethod
    def _refused_parts(entry: InitializingPartitions, found: Iterable[Initialized]) -> tuple[int, ...]:
        refused = {
            result.partition
            for result in found
            if result.topic_id == entry.topic_id
            and result.state_epoch == entry.state_epoch
            and _is_refused(entry, result)
        }
        return tuple(partition for partition in entry.partitions if partition in refused)

    def delete(self, topic_ids: Iterable[bytes]) -> None:
        """Moves all known partitions of these topics to `deleting`."""
        gone = [topic_id for topic_id in topic_ids if self.known(topic_id)]
        if not gone:
            return
        deleting = dict(self.metadata.deleting)
        for topic_id in gone:
            before = deleting.get(topic_id)
            partitions = {*self.known(topic_id), *(before.partitions if before else ())}
            name = self._name_of(topic_id)
            deleting[topic_id] = TopicPartitionSet(topic_name=name, partitions=tuple(sorted(partitions)))
            self.changed_names[name] = None
        self.metadata = replace(
            self.metadata,
            initializing=tuple(entry for entry in self.metadata.initializing if entry.topic_id not in gone),
            initialized={key: topic for key, topic in self.metadata.initialized.items() if key not in gone},
            deleting=deleting,
        )

    def delete_all(self) -> None:
        self.delete(
            {**self.metadata.initialized, **dict.fromkeys(entry.topic_id for entry in self.metadata.initializing)}
        )

    def complete_deletion(self, deleted: Iterable[tuple[bytes, int]]) -> None:
        gone = set(deleted)
        deleting: dict[bytes, TopicPartitionSet] = {}
        for topic_id, topic in self.metadata.deleting.items():
            left = tuple(partition for partition in topic.partitions if (topic_id, partition) not in gone)
            if left:
                deleting[topic_id] = replace(topic, partitions=left)
        self.metadata = replace(self.metadata, deleting=deleting)

    def _take_out(self, topic_id: bytes, partitions: Iterable[int]) -> None:
        """Removes partitions from `initializing` and `initialized`."""
        gone = set(partitions)
        initializing = []
        for entry in self.metadata.initializing:
            left = tuple(part for part in entry.partitions if entry.topic_id != topic_id or part not in gone)
            if left:
                initializing.append(replace(entry, partitions=left))
        initialized = dict(self.metadata.initialized)
        done = initialized.pop(topic_id, None)
        if done is not None:
            left = tuple(part for part in done.partitions if part not in gone)
            if left:
                initialized[topic_id] = replace(done, partitions=left)
        self.metadata = replace(self.metadata, initializing=tuple(initializing), initialized=initialized)

    def _name_of(self, topic_id: bytes) -> str:
        done = self.metadata.initialized.get(topic_id)
        if done:
            return done.topic_name
        return next(entry.topic_name for entry in self.metadata.initializing if entry.topic_id == topic_id)


def _is_refused(entry: InitializingPartitions, result: Initialized) -> bool:
    """Whether existing newer state blocks the entry: alterations must replace it, initializations accept it."""
    return entry.is_alteration and result.existing_state_epoch is not None


def _together(before: TopicPartitionSet | None, entry: InitializingPartitions, moved: list[int]) -> TopicPartitionSet:
    partitions = sorted({*moved, *(before.partitions if before else ())})
    count = max(entry.known_partition_count, before.known_partition_count if before else 0)
    return TopicPartitionSet(topic_name=entry.topic_name, partitions=tuple(partitions), known_partition_count=count)
