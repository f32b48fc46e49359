"""The set of share-partitions that may have Archiving records.

**Embedded engine.** The set is stored on the leader's own disk. An Archiving record holds the start offset until its
dead letter is stored, and only a loaded share-partition sends it. After a restart there may be no fetch, so the leader
itself must know which share-partitions to load (KAFKA-20672). A share-partition is added before the first write with
Archiving records is sent, so the set covers all that the share coordinator has stored. It is removed when it had no
Archiving records for a while. A superfluous row costs one check.

**Kafka engine.** The set is in memory. When a leader starts or gains partitions it asks the share coordinators which of
its share-partitions have Archiving records (`share.stored_progress`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kshare_core.identifiers import TOPIC_ID_LENGTH, SharePartitionKey, TopicPartition
from kshare_leader.log.keys import UNFINISHED_DEAD_LETTERS, partition_prefix
from kshare_rpc.catalog import CatalogView
from kshare_runtime.ports import KeyValueStore, Write

_PREFIX_LENGTH = TOPIC_ID_LENGTH + 4
_END = b"\xff"
"""Sorts after every group id, as these are UTF-8."""


class Unfinished(Protocol):
    """The set; every method may raise StorageFailure."""

    def __contains__(self, key: SharePartitionKey) -> bool: ...
    def __len__(self) -> int: ...
    def share_partitions(self) -> list[SharePartitionKey]: ...

    def remember(self, key: SharePartitionKey) -> None:
        """Adds a share-partition."""
        ...

    def forget_all(self, keys: Sequence[SharePartitionKey]) -> None:
        """Removes those of the share-partitions that are in the set."""
        ...

    def partition_changed(self, partition: TopicPartition) -> None:
        """Handles a reassignment of a partition's rows to or from this leader."""
        ...

    def topic_removed(self, topic_id: bytes) -> list[SharePartitionKey]:
        """Removes and returns those of a deleted topic."""
        ...

    def keep_led(self, view: CatalogView) -> list[SharePartitionKey]:
        """Removes and returns those that another leader takes care of by this view."""
        ...


class RememberedDeadLetters:
    """The set of the kafka engine, in memory."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._known: dict[SharePartitionKey, None] = {}

    def __contains__(self, key: SharePartitionKey) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def share_partitions(self) -> list[SharePartitionKey]:
        return list(self._known)

    def remember(self, key: SharePartitionKey) -> None:
        self._known[key] = None

    def forget_all(self, keys: Sequence[SharePartitionKey]) -> None:
        for key in keys:
            self._known.pop(key, None)

    def partition_changed(self, partition: TopicPartition) -> None:
        """No rows are copied with this engine."""

    def topic_removed(self, topic_id: bytes) -> list[SharePartitionKey]:
        return self._remove([key for key in self._known if key.topic_id == topic_id])

    def keep_led(self, view: CatalogView) -> list[SharePartitionKey]:
        def is_led(key: SharePartitionKey) -> bool:
            partition = view.partition(key.topic_partition)
            return partition is not None and partition.leader_node_id == self._node_id

        return self._remove([key for key in self._known if not is_led(key)])

    def _remove(self, keys: list[SharePartitionKey]) -> list[SharePartitionKey]:
        for key in keys:
            del self._known[key]
        return keys


class UnfinishedDeadLetters:
    """The set of the embedded engine, on disk and in memory; every method may raise StorageFailure."""

    def __init__(self, store: KeyValueStore, *, rows: KeyValueStore | None = None) -> None:
        """`rows` are those below the checksums, whose keys tell all: a damaged row is as good as any."""
        self._store = store
        self._rows = rows or store
        self._known = {_parse(key): None for key, _ in self._rows.scan(UNFINISHED_DEAD_LETTERS, b"")}

    def __contains__(self, key: SharePartitionKey) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def share_partitions(self) -> list[SharePartitionKey]:
        return list(self._known)

    def remember(self, key: SharePartitionKey) -> None:
        """Adds a share-partition, durably."""
        if key not in self._known:
            self._store.write([Write(UNFINISHED_DEAD_LETTERS, _row_key(key), b"")])
            self._known[key] = None

    def forget_all(self, keys: Sequence[SharePartitionKey]) -> None:
        """Removes those of the share-partitions that are in the set, with one durable write."""
        known = dict.fromkeys(key for key in keys if key in self._known)
        if known:
            self._store.write([Write(UNFINISHED_DEAD_LETTERS, _row_key(key), None) for key in known])
        for key in known:
            del self._known[key]

    def partition_changed(self, partition: TopicPartition) -> None:
        """Reads a partition's rows again after its reassignment to or from this leader."""
        prefix = partition_prefix(partition)
        found = [_parse(key) for key, _ in self._rows.scan(UNFINISHED_DEAD_LETTERS, prefix, prefix + _END)]
        known = {key: None for key in self._known if key.topic_partition != partition}
        self._known = known | dict.fromkeys(found)

    def topic_removed(self, topic_id: bytes) -> list[SharePartitionKey]:
        """Removes and returns those of a deleted topic; `PartitionLogs` deletes the rows with the topic's records."""
        removed = [key for key in self._known if key.topic_id == topic_id]
        for key in removed:
            del self._known[key]
        return removed

    def keep_led(self, view: CatalogView) -> list[SharePartitionKey]:
        """Rows move with their partitions; see `partition_changed`."""
        return []


def _row_key(key: SharePartitionKey) -> bytes:
    return partition_prefix(key.topic_partition) + key.group_id.encode()


def _parse(key: bytes) -> SharePartitionKey:
    number = int.from_bytes(key[TOPIC_ID_LENGTH:_PREFIX_LENGTH], "big")
    return SharePartitionKey(key[_PREFIX_LENGTH:].decode(), key[:TOPIC_ID_LENGTH], number)
