"""`__share_group_state` as a topic: an offset for every record that a state partition holds.

The store has the newest records only, not a log. So that consumers can read them, each record gets an offset when it
is appended, from a counter of its state partition that only grows. A superseded record loses its offset, as in a
compacted topic. A ShareSnapshot supersedes the snapshot before it and that one's ShareUpdates, a tombstone all of them.
A consumer that reads from offset 0 therefore gets each share-partition's snapshot and then its updates, in order.

The rows are in the family of their state partition, in the same atomic write as the record, and move with it. Their
keys begin with 0x80, which no record's key does (those begin with the length of a group id, at most 0x7fff):

    80 'o' <offset>       timestamp, whether it is a tombstone, and the record's key in the store
    80 'k' <record's key> the offset of the newest record with that key
    80 't' <offset>       of tombstones only, so that the old ones are found without looking at all rows

Tombstones stay for delete.retention.ms. The newest record of a state partition always stays, so the counter continues
from it after a restart. Timestamps never go back within a state partition, so a look-up by time can bisect.

A damaged row never prevents a record from being written. An old offset that cannot be found stays in the index, and
readers skip it, because its record's key leads to another offset.

Offsets of recently written share-partitions are cached, because superseding needs them. The cache is dropped whenever a
write fails or another writer may have changed the store (`forget`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from kshare_core.identifiers import TOPIC_ID_LENGTH
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.ports import Write
from kshare_share_coordinator.checksummed_store import ChecksummedStore, unsealed
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord
from kshare_wire.record_batches import patch
from kshare_wire.record_writing import BatchWriter

LEADER_EPOCH = 0
"""The leader epoch of all records: clients read at gateways and do not see which share coordinator answers."""
BATCH_BYTES_LIMIT = 64 * 1024
OFFSETS_SCANNED_AT_ONCE = 10_000
"""Most of them may be gone, and the event loop must not wait for the disk to step over all of them."""
CACHED_OFFSETS_LIMIT = 300_000
UNKNOWN_OFFSET = -1

_OWN_KEYS = b"\x80"
_OFFSETS = _OWN_KEYS + b"o"
_KEYS = _OWN_KEYS + b"k"
_TOMBSTONES = _OWN_KEYS + b"t"
_OFFSET = Struct(">Q")
_LENGTH = Struct(">h")
_ENTRY_HEAD = Struct(">q?")
_PARTITION_BYTES = 4
_RECORD_TYPE_BYTES = 2
_SNAPSHOT_SUFFIX = bytes(_RECORD_TYPE_BYTES)
"""The suffix after the prefix in the key of a snapshot, and of a tombstone."""
_ONLY_A_SNAPSHOT = {_SNAPSHOT_SUFFIX}


class Entry(NamedTuple):
    """A record's place in the topic."""

    offset: int
    timestamp_ms: int
    is_tombstone: bool
    record_key: bytes
    """Its key in the store; a tombstone has no row there."""


class _End(NamedTuple):
    """The end of a topic partition."""

    next_offset: int
    timestamp_ms: int


def is_state_topic_key(stored_key: bytes) -> bool:
    """Whether a row of a state partition's family belongs to the index, not to a share-partition."""
    return stored_key.startswith(_OWN_KEYS)


class StateTopicIndex:
    """The index over all state partitions of one store; a `family` is a state partition's.

    `on_written` is called with the families that have new records, after each write. Every method that reads raises
    StorageFailure.
    """

    def __init__(self, *, store: ChecksummedStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self.now_ms = now_ms
        self.on_written: Callable[[Sequence[str]], None] = lambda families: None
        self._ends: dict[str, _End] = {}
        self._offsets: OrderedDict[bytes, int | dict[bytes, int]] = OrderedDict()
        """By share-partition (the prefix of its keys): the offset of its snapshot; where it has other records too, or
        none, the offset of each, by the rest of its key. Nearly all have just a snapshot, and there are many."""
        self._cached_offsets = 0
        self._pending: dict[str, None] = {}

    def add(self, family: str, prefix: bytes, suffix: bytes, writes: list[Write], *, supersedes_all: bool) -> None:
        """Adds to `writes` the rows that give a record its offset; `prefix` + `suffix` is its key in the store.

        `supersedes_all`: it supersedes the share-partition's other records, as a snapshot does.
        """
        self._add(family, prefix, suffix, writes, is_tombstone=False, supersedes_all=supersedes_all)

    def add_tombstone(self, family: str, prefix: bytes, suffix: bytes, writes: list[Write]) -> None:
        """The same for a tombstone, which ends all records of its share-partition."""
        offset = self._add(family, prefix, suffix, writes, is_tombstone=True, supersedes_all=True)
        writes.append(Write(family, _TOMBSTONES + _OFFSET.pack(offset), b""))

    def written(self) -> None:
        """Notes that the added rows are durable."""
        families, self._pending = list(self._pending), {}
        while self._cached_offsets > CACHED_OFFSETS_LIMIT:
            _, offsets = self._offsets.popitem(last=False)
            self._cached_offsets -= 1 if isinstance(offsets, int) else len(offsets)
        if families:
            self.on_written(families)

    def forget(self) -> None:
        """Drops the cache: a write failed, or another writer changed the store."""
        self._ends.clear()
        self._offsets.clear()
        self._cached_offsets = 0
        self._pending.clear()

    def next_offset(self, family: str) -> int:
        """The offset after the newest durable record; 0 if there is none."""
        self._store.finish_writes()
        return self._end(family).next_offset

    def newest(self, family: str) -> Entry | None:
        """The first record with the greatest timestamp."""
        end = self._end(family)
        return self.first_since(family, end.timestamp_ms) if end.next_offset else None

    def first_since(self, family: str, timestamp_ms: int) -> Entry | None:
        """The first record whose timestamp is `timestamp_ms` or later."""
        low, high = 0, self.next_offset(family)
        found = None
        while low < high:
            middle = (low + high) // 2
            entry = self._first_from(family, middle)
            if entry is None or entry.timestamp_ms >= timestamp_ms:
                found = entry or found
                high = middle
            else:
                low = entry.offset + 1
        return found

    def read_batch(self, family: str, offset: int, limit_bytes: int) -> tuple[bytes, int]:
        """One record batch with records from `offset` on, and the offset from which to continue.

        The batch is empty if the next OFFSETS_SCANNED_AT_ONCE offsets are all gone. The first record is returned even
        if it is larger than `limit_bytes`. CorruptRecord if a record is missing.
        """
        end_offset = min(offset + OFFSETS_SCANNED_AT_ONCE, self.next_offset(family))
        writer = BatchWriter(min(limit_bytes, BATCH_BYTES_LIMIT))
        base_offset = offset
        for key, value in self._store.scan(family, _offset_key(offset), _offset_key(end_offset)):
            entry = _decode_entry(key, value)
            if self._store.get(family, _KEYS + entry.record_key) != key[len(_OFFSETS) :]:
                continue  # superseded, when its offset could not be found
            if not writer.count:
                base_offset = entry.offset
            record_key = _kafka_key(entry.record_key)
            content = self._content(family, entry)
            delta = entry.offset - base_offset
            if not writer.append(entry.timestamp_ms, record_key, content, (), offset_delta=delta):
                end_offset = entry.offset
                break
        if not writer.count:
            return b"", end_offset
        return patch(writer.build(), base_offset, LEADER_EPOCH), end_offset

    def prune(self, family: str, *, before_ms: int, limit: int) -> int:
        """Removes tombstones older than `before_ms`, oldest first; returns the number of rows read, at most `limit`."""
        self._store.finish_writes()
        next_offset = self.next_offset(family)
        writes: list[Write] = []
        looked_at = 0
        for tombstone_key, _ in self._store.scan(family, _TOMBSTONES, _end_of(_TOMBSTONES)):
            offset_part = tombstone_key[len(_TOMBSTONES) :]
            (offset,) = _OFFSET.unpack(offset_part)
            stored = self._store.get(family, _OFFSETS + offset_part)
            if stored is not None:
                entry = _decode_entry(_OFFSETS + offset_part, stored)
                if entry.timestamp_ms >= before_ms or offset == next_offset - 1:
                    break
                writes.append(Write(family, _OFFSETS + offset_part, None))
                if self._store.get(family, _KEYS + entry.record_key) == offset_part:
                    writes.append(Write(family, _KEYS + entry.record_key, None))
            writes.append(Write(family, tombstone_key, None))
            looked_at += 1
            if looked_at == limit:
                break
        if writes:
            self._store.write(writes)
            self.forget()
        return looked_at

    def _add(
        self,
        family: str,
        prefix: bytes,
        suffix: bytes,
        writes: list[Write],
        *,
        is_tombstone: bool,
        supersedes_all: bool,
    ) -> int:
        end = self._end(family)
        offset, timestamp_ms = end.next_offset, max(self.now_ms(), end.timestamp_ms)
        known = self._known(family, prefix)
        if suffix == _SNAPSHOT_SUFFIX and supersedes_all and isinstance(known, int):
            writes.append(Write(family, _offset_key(known), None))
            self._offsets[prefix] = offset
        else:
            offsets = {_SNAPSHOT_SUFFIX: known} if isinstance(known, int) else known
            self._supersede(family, prefix, list(offsets) if supersedes_all else [suffix], suffix, offsets, writes)
            offsets[suffix] = offset
            self._cached_offsets += 1
            self._offsets[prefix] = offset if offsets.keys() == _ONLY_A_SNAPSHOT else offsets
        offset_part = _OFFSET.pack(offset)
        record_key = prefix + suffix
        writes.append(Write(family, _OFFSETS + offset_part, _ENTRY_HEAD.pack(timestamp_ms, is_tombstone) + record_key))
        writes.append(Write(family, _KEYS + record_key, offset_part))
        self._ends[family] = _End(offset + 1, timestamp_ms)
        self._pending[family] = None
        return offset

    def _supersede(
        self,
        family: str,
        prefix: bytes,
        superseded: Sequence[bytes],
        by: bytes,
        offsets: dict[bytes, int],
        writes: list[Write],
    ) -> None:
        """Takes the records with these suffixes out of `offsets`, and adds the removals of their rows."""
        for suffix in superseded:
            old = offsets.pop(suffix, None)
            if old is not None:
                self._cached_offsets -= 1
                if old != UNKNOWN_OFFSET:
                    writes.append(Write(family, _offset_key(old), None))
                if suffix != by:
                    writes.append(Write(family, _KEYS + prefix + suffix, None))

    def _end(self, family: str) -> _End:
        end = self._ends.get(family)
        if end is None:
            end = _End(0, 0)
            for key, stored in self._store.scan_stored(family, _OFFSETS, _end_of(_OFFSETS), reverse=True):
                (offset,) = _OFFSET.unpack_from(key, len(_OFFSETS))
                end = _End(offset + 1, self._timestamp_ms(family, key, stored))
                break
            self._ends[family] = end
        return end

    def _timestamp_ms(self, family: str, key: bytes, stored: bytes) -> int:
        """The timestamp of an entry; 0 if the entry is damaged."""
        try:
            return _decode_entry(key, unsealed(family, key, stored)).timestamp_ms
        except CorruptRow:
            return 0

    def _known(self, family: str, prefix: bytes) -> int | dict[bytes, int]:
        """The cached offsets, or else those in the store."""
        known = self._offsets.get(prefix)
        if known is not None:
            if self._cached_offsets > CACHED_OFFSETS_LIMIT // 2:  # moving costs as much as the rest of the look-up
                self._offsets.move_to_end(prefix)
            return known
        start = _KEYS + prefix
        offsets: dict[bytes, int] = {}
        for key, stored in self._store.scan_stored(family, start, _end_of(start)):
            try:
                (offsets[key[len(start) :]],) = _OFFSET.unpack(unsealed(family, key, stored))
            except CorruptRow:
                offsets[key[len(start) :]] = UNKNOWN_OFFSET
        self._cached_offsets += len(offsets)
        return offsets

    def _first_from(self, family: str, offset: int) -> Entry | None:
        for key, value in self._store.scan(family, _offset_key(offset), _end_of(_OFFSETS)):
            return _decode_entry(key, value)
        return None

    def _content(self, family: str, entry: Entry) -> bytes | None:
        if entry.is_tombstone:
            return None
        content = self._store.get(family, entry.record_key)
        if content is None:
            raise CorruptRecord(f"{family} has an offset {entry.offset} of a missing record")
        return content


def _offset_key(offset: int) -> bytes:
    return _OFFSETS + _OFFSET.pack(offset)


def _end_of(prefix: bytes) -> bytes:
    """A key above all keys with a prefix: a record type or an offset follows it, and neither begins with 0xff."""
    return prefix + b"\xff"


def _decode_entry(key: bytes, value: bytes) -> Entry:
    (offset,) = _OFFSET.unpack_from(key, len(_OFFSETS))
    timestamp_ms, is_tombstone = _ENTRY_HEAD.unpack_from(value)
    return Entry(offset, timestamp_ms, is_tombstone, value[_ENTRY_HEAD.size :])


def _kafka_key(record_key: bytes) -> bytes:
    """Kafka's record key out of a stored one: the record type comes first, and the number of an update is left out."""
    (group_id_length,) = _LENGTH.unpack_from(record_key)
    end = _LENGTH.size + group_id_length + TOPIC_ID_LENGTH + _PARTITION_BYTES
    return record_key[end : end + _RECORD_TYPE_BYTES] + record_key[:end]
