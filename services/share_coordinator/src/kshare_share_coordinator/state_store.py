"""Where the records lie on the disk, and what is known about records that cannot be read.

One family for each partition of `__share_group_state` ("state-0", "state-1", ...). Within it, the keys of one
share-partition are neighbours: Kafka's record key with its record type moved to the end, and for ShareUpdates the
update's number (uint32) after it:

    <group id length><group id><topic id><partition> 0           the ShareSnapshot
    <group id length><group id><topic id><partition> 1 <number>  its ShareUpdates, in order

So one short scan loads a share-partition, and no key of one is within the range of another, since all parts before the
record type have a length that is known from the left. A new snapshot removes the updates of the one before it in the
same atomic write. Keys from 0x80 on are those of the index that makes a topic of it, see `state_topic`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_runtime.ports import KeyValueStore, Write
from kshare_share_coordinator.machine.share_group_offset import (
    CorruptRecord,
    Record,
    ShareSnapshot,
    ShareTombstone,
    ShareUpdate,
)
from kshare_share_coordinator.records import (
    SHARE_SNAPSHOT,
    SHARE_UPDATE,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)
from kshare_share_coordinator.state_topic import StateTopicIndex

METADATA_FAMILY = "metadata"
STATE_PARTITION_COUNT_KEY = b"state-partition-count"
CLUSTER_ID_KEY = b"cluster-id"
REPORTED_CORRUPT_SHARE_PARTITIONS_LIMIT = 100

_TYPE = Struct(">h")
_UPDATE_SUFFIX = Struct(">hI")
_SNAPSHOT_SUFFIX = _TYPE.pack(SHARE_SNAPSHOT)
_END_SUFFIX = _TYPE.pack(SHARE_UPDATE + 1)


def family_of(state_partition: int) -> str:
    """The family of a partition of `__share_group_state`."""
    return f"state-{state_partition}"


class StateStore:
    """Reads and writes the records of share-partitions; `state_partition_of` places them.

    `state_topic` gives them offsets; without it nobody can read them as a topic.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        state_partition_of: Callable[[SharePartitionKey], int],
        state_topic: StateTopicIndex | None = None,
    ) -> None:
        self._store = store
        self._state_topic = state_topic
        self._state_partition_of = state_partition_of
        self._read_failure: str | None = None
        self._corrupt: dict[SharePartitionKey, str] = {}

    def problems(self) -> list[str]:
        """What could not be read, for the health check: the last failure of the disk, and corrupt share-partitions."""
        failure = [] if self._read_failure is None else [f"state cannot be read from the disk: {self._read_failure}"]
        return failure + list(self._corrupt.values())

    def report_corrupt(self, key: SharePartitionKey, problem: str) -> None:
        """Keeps what was found wrong with a share-partition, until its state is deleted."""
        if len(self._corrupt) < REPORTED_CORRUPT_SHARE_PARTITIONS_LIMIT:
            self._corrupt.setdefault(key, f"corrupt record: {problem}")

    def load(self, key: SharePartitionKey) -> Sequence[Record]:
        """All records of a share-partition, in order; raises StorageFailure or CorruptRecord."""
        try:
            records = self._read(key)
            self._read_failure = None
        except StorageFailure as failure:
            self._read_failure = str(failure)
            raise
        return records

    def append(self, records: Sequence[Record]) -> None:
        """Makes the records durable in one atomic write; raises StorageFailure."""
        writes: list[Write] = []
        try:
            for record in records:
                self._add_writes(record, writes)
            self._store.write(writes)
        except Exception:
            if self._state_topic is not None:
                self._state_topic.forget()
            raise
        if self._state_topic is not None:
            self._state_topic.written()
        for record in records:
            if isinstance(record, ShareTombstone):
                self._corrupt.pop(record.key, None)

    def state_partition_count(self) -> int | None:
        """The number of state partitions that this store was written with; None where nothing was written yet."""
        stored = self._store.get(METADATA_FAMILY, STATE_PARTITION_COUNT_KEY)
        return None if stored is None else int.from_bytes(stored, "big")

    def write_state_partition_count(self, count: int) -> None:
        self._store.write([Write(METADATA_FAMILY, STATE_PARTITION_COUNT_KEY, count.to_bytes(4, "big"))])

    def cluster_id(self) -> str | None:
        """The cluster that the records of this store belong to; None where no catalog was seen yet."""
        stored = self._store.get(METADATA_FAMILY, CLUSTER_ID_KEY)
        return None if stored is None else stored.decode(errors="replace")

    def write_cluster_id(self, cluster_id: str) -> None:
        self._store.write([Write(METADATA_FAMILY, CLUSTER_ID_KEY, cluster_id.encode())])

    def _read(self, key: SharePartitionKey) -> list[Record]:
        records: list[Record] = []
        prefix = _prefix_of(key)
        for stored_key, value in self._scan(key, prefix):
            suffix = stored_key[len(prefix) :]
            if suffix == _SNAPSHOT_SUFFIX:
                records.append(decode_snapshot(key, value))
            elif len(suffix) == _UPDATE_SUFFIX.size:
                records.append(decode_update(key, _UPDATE_SUFFIX.unpack(suffix)[1], value))
            else:
                raise CorruptRecord(f"share-partition {key} has a stored key that is none: {stored_key.hex()}")
        if records and not isinstance(records[0], ShareSnapshot):
            raise CorruptRecord(f"share-partition {key} has ShareUpdates without a ShareSnapshot")
        return records

    def _scan(self, key: SharePartitionKey, prefix: bytes) -> list[tuple[bytes, bytes]]:
        family = family_of(self._state_partition_of(key))
        return list(self._store.scan(family, prefix + _SNAPSHOT_SUFFIX, prefix + _END_SUFFIX))

    def _add_writes(self, record: Record, writes: list[Write]) -> None:
        prefix = _prefix_of(record.key)
        family = family_of(self._state_partition_of(record.key))
        if isinstance(record, ShareUpdate):
            suffix = _UPDATE_SUFFIX.pack(SHARE_UPDATE, record.update_number)
            writes.append(Write(family, prefix + suffix, encode_update(record)))
            if self._state_topic is not None:
                self._state_topic.add(family, prefix, suffix, writes, supersedes_all=False)
            return
        if isinstance(record, ShareSnapshot):
            writes.append(Write(family, prefix + _SNAPSHOT_SUFFIX, encode_snapshot(record)))
            _add_removals(family, prefix, record.superseded_update_count, writes)
            if self._state_topic is not None:
                self._state_topic.add(family, prefix, _SNAPSHOT_SUFFIX, writes, supersedes_all=True)
            return
        self._add_end(record, family, prefix, writes)
        if self._state_topic is not None:
            self._state_topic.add_tombstone(family, prefix, _SNAPSHOT_SUFFIX, writes)

    def _add_end(self, record: ShareTombstone, family: str, prefix: bytes, writes: list[Write]) -> None:
        if record.update_count is None:
            writes.extend(Write(family, stored_key, None) for stored_key, _ in self._scan(record.key, prefix))
            return
        writes.append(Write(family, prefix + _SNAPSHOT_SUFFIX, None))
        _add_removals(family, prefix, record.update_count, writes)


def _add_removals(family: str, prefix: bytes, update_count: int, writes: list[Write]) -> None:
    for number in range(1, update_count + 1):
        writes.append(Write(family, prefix + _UPDATE_SUFFIX.pack(SHARE_UPDATE, number), None))


def _prefix_of(key: SharePartitionKey) -> bytes:
    return encode_key(SHARE_SNAPSHOT, key)[_TYPE.size :]
