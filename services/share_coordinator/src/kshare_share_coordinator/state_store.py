"""The store of share-partition state: the layout of records on the disk, and the known unreadable records.

Kafka prunes its state topic; here records are removed at once. A snapshot removes the records that it supersedes, and
a tombstone all earlier ones, in the same atomic write as the record itself. So no clean-up is left after a crash.
share.coordinator.state.topic.prune.interval.ms is for old tombstones only (`handlers.state_topic`).

One family for each partition of `__share_group_state` ("state-0", "state-1", ...). Within it, the keys of one
share-partition are neighbours: Kafka's record key with its record type moved to the end, and for ShareUpdates the
update's number (uint32) after it:

    <group id length><group id><topic id><partition> 0           the ShareSnapshot
    <group id length><group id><topic id><partition> 1 <number>  its ShareUpdates, in order

So one short scan loads a share-partition. The keys of two share-partitions never overlap, since all parts before the
record type have a length that is known from the left. A new snapshot removes the updates of the one before it in the
same atomic write. Keys from 0x80 on belong to the topic index, see `state_topic`. Every row has a checksum
(`checksummed_store`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import TOPIC_ID_LENGTH, SharePartitionKey
from kshare_fastpath.prompt_future import PromptFuture
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.ports import Write
from kshare_share_coordinator.checksummed_store import ChecksummedStore, unsealed
from kshare_share_coordinator.machine.share_group_offset import (
    CorruptRecord,
    Record,
    ShareSnapshot,
    ShareTombstone,
    ShareUpdate,
    apply,
)
from kshare_share_coordinator.metrics import StateMetrics
from kshare_share_coordinator.records import (
    SHARE_SNAPSHOT,
    SHARE_UPDATE,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)
from kshare_share_coordinator.state_log.port import Found
from kshare_share_coordinator.state_topic import StateTopicIndex

METADATA_FAMILY = "metadata"
STATE_PARTITION_COUNT_KEY = b"state-partition-count"
CLUSTER_ID_KEY = b"cluster-id"
NODE_ID_KEY = b"node-id"
REPORTED_CORRUPT_SHARE_PARTITIONS_LIMIT = 100

_TYPE = Struct(">h")
_PARTITION_BYTES = 4
_UPDATE_SUFFIX = Struct(">hI")
_SNAPSHOT_SUFFIX = _TYPE.pack(SHARE_SNAPSHOT)
_END_SUFFIX = _TYPE.pack(SHARE_UPDATE + 1)


FAMILY_PREFIX = "state-"
END_OF_SHARE_PARTITIONS = b"\x80"
"""Above all keys of share-partitions, which begin with a positive int16."""


def family_of(state_partition: int) -> str:
    """The family of a partition of `__share_group_state`."""
    return f"{FAMILY_PREFIX}{state_partition}"


def filled_state_partitions(store: ChecksummedStore) -> list[int]:
    """The state partitions that have rows in a store, or an unreadable family."""
    numbers = [family.removeprefix(FAMILY_PREFIX) for family in store.families() if family.startswith(FAMILY_PREFIX)]
    return sorted(int(number) for number in numbers if number.isdecimal() and _has_rows(store, family_of(int(number))))


def _has_rows(store: ChecksummedStore, family: str) -> bool:
    try:
        return next(store.scan_stored(family, b""), None) is not None
    except StorageFailure:
        return True


def damage_text(state_partition: int, problem: str) -> str:
    """The message to operators about a damaged state partition."""
    return (
        f"state partition {state_partition} is damaged on this node's disk, so all its share-partitions are refused, "
        f"and those of others are served ({problem}). `kshare state verify` shows what is damaged. To repair it, stop "
        f"this share coordinator and run `kshare state import --replace {state_partition}` with an export of a backup"
    )


class StateStore:
    """Reads and writes the records of share-partitions; `state_partition_of` places them.

    `state_topic` gives them offsets; without it they cannot be read as a topic.
    """

    def __init__(
        self,
        *,
        store: ChecksummedStore,
        state_partition_of: Callable[[SharePartitionKey], int],
        state_topic: StateTopicIndex | None = None,
        metrics: StateMetrics | None = None,
    ) -> None:
        self._metrics = metrics or StateMetrics()
        self._store = store
        self._state_topic = state_topic
        self._state_partition_of = state_partition_of
        self._read_failure: tuple[SharePartitionKey, str] | None = None
        """The share-partition that the newest read was for, where the disk failed it."""
        self._corrupt: dict[SharePartitionKey, str] = {}

    def problems(self) -> list[str]:
        """Problems for the health check: the last read failure of the disk, damage, and corrupt share-partitions."""
        self._try_failed_read_again()
        failure = [] if self._read_failure is None else [f"state cannot be read from the disk: {self._read_failure[1]}"]
        return failure + self._damage_texts() + list(self._corrupt.values())

    def _try_failed_read_again(self) -> None:
        """The disk may be well again while nobody asks for what is not in memory; the node would stay unhealthy."""
        if self._read_failure is None:
            return
        key = self._read_failure[0]
        try:
            self._read(key)
        except StorageFailure as failure:
            self._read_failure = key, str(failure)
        except CorruptRecord:
            self._read_failure = None  # it can be read; whoever asks for it is told
        else:
            self._read_failure = None

    def _damage_texts(self) -> list[str]:
        maintained = self._store.maintained
        if maintained is None:
            return []
        return [
            damage_text(int(family.removeprefix(FAMILY_PREFIX)), problem)
            if family.startswith(FAMILY_PREFIX)
            else f"{family} is damaged: {problem}"
            for family, problem in maintained.damaged_families().items()
        ]

    def report_corrupt(self, key: SharePartitionKey, problem: str) -> None:
        """Records a problem of a share-partition until its state is deleted or can be read."""
        if len(self._corrupt) < REPORTED_CORRUPT_SHARE_PARTITIONS_LIMIT:
            self._corrupt.setdefault(key, f"corrupt record: {problem}")

    def report_readable(self, key: SharePartitionKey) -> None:
        """Drops the problem of a share-partition: a bit that was wrong on the way from the disk may be right now."""
        self._corrupt.pop(key, None)

    def forget(self, is_forgotten: Callable[[SharePartitionKey], bool]) -> None:
        """Drops the problems of share-partitions that this node has lost or gained."""
        self._corrupt = {key: problem for key, problem in self._corrupt.items() if not is_forgotten(key)}
        if self._read_failure is not None and is_forgotten(self._read_failure[0]):
            self._read_failure = None  # this node is not asked for it again

    def load(self, key: SharePartitionKey) -> Sequence[Record]:
        """All records of a share-partition, in order; raises StorageFailure or CorruptRecord."""
        started_at = self._metrics.now()
        try:
            records = self._read(key)
            self._read_failure = None
            if key in self._corrupt and is_readable(records):
                self.report_readable(key)
        except StorageFailure as failure:
            self._read_failure = key, str(failure)
            self._metrics.load_failures += 1
            raise
        except CorruptRecord:
            self._metrics.load_failures += 1
            raise
        finally:
            self._metrics.load_seconds.observe(self._metrics.now() - started_at)
        return records

    @property
    def corrupt_count(self) -> int:
        """How many share-partitions are known to have a corrupt record."""
        return len(self._corrupt)

    def append(self, records: Sequence[Record]) -> None:
        """Makes the records durable in one atomic write; raises StorageFailure."""
        started_at = self._metrics.now()
        try:
            writes = self._writes_of(records)
            self._store.write(writes)
        except Exception:
            self._append_failed(started_at)
            raise
        self._appended(records, writes, started_at)

    def begin_append(self, records: Sequence[Record], then: Callable[[], None]) -> PromptFuture[None]:
        """Writes the records atomically; when they are durable, `then` is called and the future is done.

        StorageFailure, raised or from the future.
        """
        started_at = self._metrics.now()
        future: PromptFuture[None] = PromptFuture(loop=asyncio.get_running_loop())

        def written(failure: StorageFailure | None) -> None:
            if failure is not None:
                self._append_failed(started_at)
            else:
                self._appended(records, writes, started_at)
                then()
            if future.done():  # the node is stopping and waits no more
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        try:
            writes = self._writes_of(records)
            self._store.begin_write(writes, written)
        except Exception:
            self._append_failed(started_at)
            raise
        return future

    def _writes_of(self, records: Sequence[Record]) -> list[Write]:
        writes: list[Write] = []
        for record in records:
            self._add_writes(record, writes)
        return writes

    def _appended(self, records: Sequence[Record], writes: Sequence[Write], started_at: float) -> None:
        self._metrics.appended(records, writes, self._metrics.now() - started_at)
        if self._state_topic is not None:
            self._state_topic.written()
        for record in records:
            if isinstance(record, ShareTombstone):
                self._corrupt.pop(record.key, None)

    def _append_failed(self, started_at: float) -> None:
        self._metrics.append_failed(self._metrics.now() - started_at)
        if self._state_topic is not None:
            self._state_topic.forget()

    def state_partition_count(self) -> int | None:
        """The number of state partitions that this store was written with; None before the first write."""
        stored = self._store.get(METADATA_FAMILY, STATE_PARTITION_COUNT_KEY)
        return None if stored is None else int.from_bytes(stored, "big")

    def write_state_partition_count(self, count: int) -> None:
        self._store.write([Write(METADATA_FAMILY, STATE_PARTITION_COUNT_KEY, count.to_bytes(4, "big"))])

    def cluster_id(self) -> str | None:
        """The cluster that the records of this store belong to; None before the first catalog."""
        stored = self._store.get(METADATA_FAMILY, CLUSTER_ID_KEY)
        return None if stored is None else stored.decode(errors="replace")

    def write_cluster_id(self, cluster_id: str) -> None:
        self._store.write([Write(METADATA_FAMILY, CLUSTER_ID_KEY, cluster_id.encode())])

    def node_id(self) -> int | None:
        """The share coordinator that this store belongs to; None in stores of older versions, and before a catalog."""
        stored = self._store.get(METADATA_FAMILY, NODE_ID_KEY)
        return None if stored is None else int.from_bytes(stored, "big")

    def write_node_id(self, node_id: int) -> None:
        self._store.write([Write(METADATA_FAMILY, NODE_ID_KEY, node_id.to_bytes(4, "big"))])

    def filled_state_partitions(self) -> list[int]:
        """The state partitions that have rows, or a damaged family."""
        return filled_state_partitions(self._store)

    def damage(self, key: SharePartitionKey) -> str | None:
        """Why the share-partition's state partition is not served; None if it is."""
        return self.state_partition_damage(self._state_partition_of(key)) if self._store.has_damage else None

    def state_partition_damage(self, state_partition: int) -> str | None:
        """Why the state partition is not served; None if it is."""
        problem = self._store.damage(family_of(state_partition))
        return None if problem is None else damage_text(state_partition, problem)

    def share_partitions(self, family: str, start: bytes, limit: int) -> tuple[list[Found], bytes | None]:
        """Share-partitions from a stored key on, at least one if any exists, and the key from which to continue.

        Ends with the share-partition that contains row number `limit`. StorageFailure.
        """
        found: list[Found] = []
        rows: list[tuple[bytes, bytes]] = []
        prefix = b""
        for count, (stored_key, stored) in enumerate(self._store.scan_stored(family, start, END_OF_SHARE_PARTITIONS)):
            row_prefix = stored_key[: _prefix_length(stored_key)]
            if rows and row_prefix != prefix:
                found.append(_found(family, prefix, rows))
                rows = []
                if count >= limit:
                    return found, stored_key
            prefix = row_prefix
            rows.append((stored_key, stored))
        if rows:
            found.append(_found(family, prefix, rows))
        return found, None

    def _read(self, key: SharePartitionKey) -> list[Record]:
        family = family_of(self._state_partition_of(key))
        prefix = _prefix_of(key)
        return _records_of(key, family, prefix, self._scan(family, prefix))

    def _scan(self, family: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Rows as they are stored."""
        return list(self._store.scan_stored(family, prefix + _SNAPSHOT_SUFFIX, prefix + _END_SUFFIX))

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
            writes.extend(Write(family, stored_key, None) for stored_key, _ in self._scan(family, prefix))
            return
        writes.append(Write(family, prefix + _SNAPSHOT_SUFFIX, None))
        _add_removals(family, prefix, record.update_count, writes)


def _add_removals(family: str, prefix: bytes, update_count: int, writes: list[Write]) -> None:
    for number in range(1, update_count + 1):
        writes.append(Write(family, prefix + _UPDATE_SUFFIX.pack(SHARE_UPDATE, number), None))


def is_readable(records: Sequence[Record]) -> bool:
    """Whether records of a share-partition, which were decoded, make a state together."""
    state = None
    try:
        for record in records:
            state = apply(state, record)
    except CorruptRecord:
        return False
    return True


def _prefix_of(key: SharePartitionKey) -> bytes:
    return encode_key(SHARE_SNAPSHOT, key)[_TYPE.size :]


def _prefix_length(stored_key: bytes) -> int:
    (group_id_length,) = _TYPE.unpack_from(stored_key) if len(stored_key) >= _TYPE.size else (0,)
    return _TYPE.size + int(group_id_length) + TOPIC_ID_LENGTH + _PARTITION_BYTES


def _found(family: str, prefix: bytes, rows: Sequence[tuple[bytes, bytes]]) -> Found:
    key: SharePartitionKey | None = None
    try:
        _, key = decode_key(_SNAPSHOT_SUFFIX + prefix)
        records = _records_of(key, family, prefix, rows)
        state = None
        for record in records:
            state = apply(state, record)
        return Found(key, records, None)
    except CorruptRecord as problem:
        return Found(key, (), str(problem))


def _records_of(
    key: SharePartitionKey, family: str, prefix: bytes, rows: Sequence[tuple[bytes, bytes]]
) -> list[Record]:
    records: list[Record] = []
    for stored_key, stored in rows:
        try:
            value = unsealed(family, stored_key, stored)
        except CorruptRow as problem:
            raise CorruptRecord(f"share-partition {key}: {problem}") from None
        suffix = stored_key[len(prefix) :]
        if suffix == _SNAPSHOT_SUFFIX:
            records.append(decode_snapshot(key, value))
        elif len(suffix) == _UPDATE_SUFFIX.size:
            records.append(decode_update(key, _UPDATE_SUFFIX.unpack(suffix)[1], value))
        else:
            raise CorruptRecord(f"share-partition {key} has a stored key that cannot be decoded: {stored_key.hex()}")
    if records and not isinstance(records[0], ShareSnapshot):
        raise CorruptRecord(f"share-partition {key} has ShareUpdates without a ShareSnapshot")
    return records
