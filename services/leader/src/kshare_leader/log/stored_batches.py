"""The stored batches of one log: look-ups by offset and by time, and the scan that opens a log.

Every batch read from disk is checked against its CRC, which costs a thirtieth of the read itself, so a damaged batch is
never served. The fields outside of the CRC (base offset and length) are checked against the batch's key and size.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kshare_core.errors import CorruptRecords, KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_core.leader_epochs import EpochEntry
from kshare_leader.log import keys
from kshare_leader.log.leader_epoch_history import LeaderEpochHistory
from kshare_leader.log.record_reader import LOWEST_TIMESTAMP
from kshare_leader.log.segments import (
    UNKNOWN_TIME,
    Positions,
    Segment,
    SegmentTable,
    after_batch,
    decode_positions,
    decode_segment,
)
from kshare_leader.ports import StoredBatch
from kshare_runtime.large_values.files import DamagedValue
from kshare_runtime.ports import KeyRange, KeyValueStore, Write
from kshare_wire.record_batches import NO_TIMESTAMP, check_crc, read_header

FIRST_OFFSET = 0
MAX_OFFSET = (1 << 63) - 1


class OpenedExtent(NamedTuple):
    """The extent of a log as found on disk: its start, end, segments and leader epochs."""

    positions: Positions
    segments: SegmentTable
    end_offset: int
    unindexed_bytes: int
    """Bytes after the last entry of the index of timestamps."""
    leader_epochs: LeaderEpochHistory


class _Extent(NamedTuple):
    """What the scan that opens a log has to know of a batch."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_timestamp_ms: int


class StoredBatches:
    """The reads of one log from the store; StorageFailure where the disk fails or a batch is damaged.

    `rows` is the store below, where batches in files have their places only: keys are read there, whatever the files
    have.
    """

    def __init__(self, store: KeyValueStore, key: TopicPartition, *, rows: KeyValueStore | None = None) -> None:
        self._store = store
        self._rows = rows or store
        self._name = f"{topic_id_text(key.topic_id)}-{key.partition}"
        self._prefix = keys.partition_prefix(key)
        self._prefix_end = keys.after_prefix(self._prefix)

    def from_offset(self, offset: int, end_offset: int = MAX_OFFSET) -> Iterator[StoredBatch]:
        """Stored batches from the one that holds `offset`, or the next, up to those that begin at `end_offset`."""
        holder = self._holder_of(offset) if 0 < offset < MAX_OFFSET else None
        if holder is None:
            start = keys.long_key(self._prefix, max(offset, 0))
        elif holder.base_offset < end_offset:
            yield holder  # a megabyte that need not be read again
            start = keys.long_key(self._prefix, holder.base_offset + 1)
        else:
            return
        end = self._prefix_end if end_offset == MAX_OFFSET else keys.long_key(self._prefix, end_offset)
        for key, data in self._store.scan(keys.LOG, start, end):
            yield self._stored_batch(key, data)

    def _holder_of(self, offset: int) -> StoredBatch | None:
        """The batch that holds `offset`; one that begins there, as in a read from end to end, needs no scan."""
        if (first := self._at(offset)) is not None:
            return first
        upper = keys.long_key(self._prefix, offset + 1)
        for key, data in self._store.scan(keys.LOG, self._prefix, upper, reverse=True):
            batch = self._stored_batch(key, data)
            return batch if batch.last_offset >= offset else None
        return None

    def slice_from(self, offset: int, end_offset: int, max_bytes: int) -> list[StoredBatch]:
        """The batches of `from_offset`, up to the one that reaches `max_bytes`."""
        found: list[StoredBatch] = []
        for batch in self.from_offset(offset, end_offset):
            found.append(batch)
            max_bytes -= batch.length
            if max_bytes <= 0:
                break
        return found

    def _stored_batch(self, key: bytes, data: bytes) -> StoredBatch:
        base_offset = keys.number_of(key)
        try:
            header = read_header(data)
            check_crc(data, header)
        except KafkaError as error:
            raise self._damaged(base_offset, str(error)) from error
        if header.base_offset != base_offset:
            raise self._damaged(base_offset, f"its header has base offset {header.base_offset}")
        if header.size != len(data):
            raise self._damaged(base_offset, f"it has {len(data)} bytes, but its header says {header.size}")
        return StoredBatch(
            base_offset, header.last_offset, data, header.is_control, header.is_transactional, header.producer_id
        )

    def _damaged(self, base_offset: int, why: str) -> CorruptRecords:
        return CorruptRecords(f"the batch at offset {base_offset} of partition {self._name} is damaged: {why}")

    def indexed_offset_before(self, timestamp_ms: int) -> int:
        """The highest indexed offset below which every record is older than `timestamp_ms`."""
        upper = keys.timestamp_key(self._prefix, timestamp_ms)
        for _, value in self._store.scan(keys.TIMESTAMPS, self._prefix, upper, reverse=True):
            return keys.parse_timestamp_value(value)
        return FIRST_OFFSET

    def useless_index(self, start_offset: int, newest_ms: int) -> tuple[list[Write], list[KeyRange]]:
        """The entries of the timestamp index that are useless for a log that starts at `start_offset`.

        They are ranges to be removed, whatever the log's size: those before the first entry above the start, and those
        of timestamps above `newest_ms`, the log's newest record, whose place the write takes (`lowered_index`).
        """
        last = self._last_entry()
        if last is None:
            return [], []
        newest, end_offset = last
        writes: list[Write] = []
        ranges: list[KeyRange] = []
        if newest > newest_ms:
            end_offset = max(end_offset, self.indexed_offset_before(newest_ms + 1))
            writes.append(self._entry(newest_ms, end_offset))
            above = keys.timestamp_key(self._prefix, newest_ms + 1)
            ranges.append(KeyRange(keys.TIMESTAMPS, above, keys.timestamp_key(self._prefix, newest) + b"\0"))
            newest = newest_ms
        needed = keys.timestamp_key(self._prefix, self._first_needed(start_offset, newest))
        if next(self._store.scan(keys.TIMESTAMPS, self._prefix, needed), None) is not None:
            ranges.append(KeyRange(keys.TIMESTAMPS, self._prefix, needed))
        return writes, ranges

    def _last_entry(self) -> tuple[int, int] | None:
        """The newest timestamp of the timestamp index and its offset."""
        for key, value in self._store.scan(keys.TIMESTAMPS, self._prefix, self._prefix_end, reverse=True):
            return keys.timestamp_of(key), keys.parse_timestamp_value(value)
        return None

    def _first_needed(self, start_offset: int, newest_ms: int) -> int:
        """A timestamp before which all entries have offsets up to `start_offset`; at most `newest_ms`.

        Offsets grow with timestamps, so some forty seeks find it, and one where nothing is to be removed. An entry of
        an older version may be out of order; the look-ups that would begin there begin earlier without it.
        """
        low, high = LOWEST_TIMESTAMP, newest_ms
        middle = low
        while low < high:
            found = self._entry_between(middle, newest_ms)
            if found is None or found[1] > start_offset:
                high = middle
            else:
                low = found[0] + 1
            middle = (low + high) // 2
        return low

    def _entry_between(self, first_ms: int, end_ms: int) -> tuple[int, int] | None:
        """The timestamp and the offset of the first entry with first_ms <= timestamp < end_ms."""
        start, end = keys.timestamp_key(self._prefix, first_ms), keys.timestamp_key(self._prefix, end_ms)
        for key, value in self._store.scan(keys.TIMESTAMPS, start, end):
            return keys.timestamp_of(key), keys.parse_timestamp_value(value)
        return None

    def _entry(self, timestamp_ms: int, end_offset: int) -> Write:
        key = keys.timestamp_key(self._prefix, timestamp_ms)
        return Write(keys.TIMESTAMPS, key, keys.timestamp_value(end_offset))

    def crowded_index_keys(self, cuts: Sequence[int], first_ms: int, limit: int) -> tuple[list[bytes], int | None]:
        """Keys of the timestamp index's entries that have a later one before the next of the offsets `cuts`.

        Of `limit` entries from the timestamp `first_ms` on; and the timestamp to go on from, None behind the last cut.
        The newest entry is not among them, because an opened log is read from the end of its index.
        """
        found: list[bytes] = []
        before: tuple[bytes, int] | None = None
        entries = self._store.scan(keys.TIMESTAMPS, keys.timestamp_key(self._prefix, first_ms), self._prefix_end)
        for count, (key, value) in enumerate(entries):
            piece = bisect_left(cuts, keys.parse_timestamp_value(value))
            if piece == len(cuts):
                break
            if before is not None and before[1] == piece:
                found.append(before[0])
            if count == limit:
                return found, keys.timestamp_of(key)
            before = key, piece
        return found, None

    def lowered_index(self, newest_ms: int) -> list[Write]:
        """The writes after which no entry of the timestamp index is newer than `newest_ms`, the log's newest record.

        Nearly always none. Entries that outlive the records they were made of would hide later ones with older records,
        and an opened log is read from the end of its index.
        """
        stale, end_offset = self._entries_above(newest_ms)
        if not stale:
            return []
        return [*(Write(keys.TIMESTAMPS, key, None) for key in stale), self._entry(newest_ms, end_offset)]

    def _entries_above(self, newest_ms: int) -> tuple[list[bytes], int]:
        """The keys of entries above a timestamp, and the end offset of the index."""
        found: list[bytes] = []
        end_offset = FIRST_OFFSET
        for key, value in self._store.scan(keys.TIMESTAMPS, self._prefix, self._prefix_end, reverse=True):
            end_offset = max(end_offset, keys.parse_timestamp_value(value))
            if keys.timestamp_of(key) <= newest_ms:
                break
            found.append(key)
        return found, end_offset

    def open_extent(self, *, tolerates_damage: bool = False) -> OpenedExtent:
        """The extent that a log opens with; StorageFailure where records are missing or the last batch is damaged.

        With `tolerates_damage` a damaged batch before the last one is counted without its timestamps: nothing reads its
        records, and it must not keep the others from being served. Of the last batch, the log's end offset and its
        newest leader epoch have to be known. Where all records were deleted, the rows have both and no batch is read,
        so that a damaged last batch can be given up in that way.
        """
        value = self._store.get(keys.POSITIONS, self._prefix)
        rows = list(self._store.scan(keys.SEGMENTS, self._prefix, self._prefix_end))
        try:
            positions = Positions() if value is None else decode_positions(value)
            segments = SegmentTable(
                [decode_segment(keys.number_of(key), row) for key, row in rows], positions.start_offset
            )
        except struct.error as error:
            raise StorageFailure(f"the segments of partition {self._name} are damaged: {error}") from error
        known_end = segments.active.end_offset
        is_emptied = bool(rows) and self._is_emptied(positions, segments.active)
        last = None if is_emptied else self._last_batch()
        stored_end = FIRST_OFFSET if last is None else last.last_offset + 1
        if positions.start_offset < known_end and stored_end < known_end:
            text = f"partition {self._name} has lost the records at offsets {stored_end} to {known_end - 1}"
            raise StorageFailure(text)
        unindexed_bytes = 0
        if not is_emptied:
            unindexed_bytes = self._count_unsaved(positions, segments, tolerates_damage=tolerates_damage)
        leader_epochs = self._leader_epochs(positions.start_offset, last)
        return OpenedExtent(positions, segments, max(stored_end, known_end), unindexed_bytes, leader_epochs)

    def _is_emptied(self, positions: Positions, active: Segment) -> bool:
        """Whether all records were deleted, and none was appended since; `active` is the row of the active segment.

        The batches below the start may still be there, until `remove_unreachable`.
        """
        if not active.base_offset == active.end_offset <= positions.start_offset:
            return False
        self._store.finish_writes()  # a batch may be on its way into a file
        return self.base_offset_before(MAX_OFFSET - 1) < active.end_offset

    def _leader_epochs(self, start_offset: int, last: StoredBatch | None) -> LeaderEpochHistory:
        """The leader epochs of the rows, and of batches up to `last` that an older version appended without rows."""
        rows = self._store.scan(keys.LEADER_EPOCHS, self._prefix, self._prefix_end)
        try:
            stored = [EpochEntry(keys.number_of(key), keys.parse_offset_value(value)) for key, value in rows]
        except struct.error as error:
            raise StorageFailure(f"the leader epochs of partition {self._name} are damaged: {error}") from error
        if last is None:
            return LeaderEpochHistory(stored)
        found: list[EpochEntry] = []
        newest, end_offset = _leader_epoch(last), last.last_offset + 1
        epoch, low = (stored[-1].leader_epoch, stored[-1].start_offset) if stored else (-1, start_offset)
        while epoch < newest:
            batch = self._first_of_later_epoch(epoch, low, end_offset)
            if batch is None:
                break
            epoch, low = _leader_epoch(batch), batch.last_offset + 1
            found.append(EpochEntry(epoch, batch.base_offset))
        return LeaderEpochHistory(stored, found)

    def _first_of_later_epoch(self, leader_epoch: int, low: int, high: int) -> StoredBatch | None:
        """The first batch of a later leader epoch between two offsets; epochs grow with offsets."""
        found: StoredBatch | None = None
        while low < high:
            middle = (low + high) // 2
            batch = next(self.from_offset(middle), None)
            if batch is not None and _leader_epoch(batch) <= leader_epoch:
                low = batch.last_offset + 1
            else:
                found, high = batch, middle
        return found

    def _count_unsaved(self, positions: Positions, segments: SegmentTable, *, tolerates_damage: bool) -> int:
        """Counts the batches after the active segment's row; returns the bytes after the index's last entry."""
        _, index_end = self._entries_above(segments.newest_timestamp_ms)
        first_offset = max(positions.start_offset, min(index_end, segments.active.end_offset))
        saved = segments.active
        try:
            return _count(self._extents(first_offset), segments, index_end)
        except (CorruptRecords, DamagedValue):
            if not tolerates_damage:
                raise
        segments.active = saved
        return _count(self._extents_despite_damage(first_offset), segments, index_end)

    def _extents(self, first_offset: int) -> Iterator[_Extent]:
        """The extents of the batches of `from_offset`."""
        for batch in self.from_offset(first_offset):
            newest_ms = read_header(batch.data).max_timestamp_ms
            yield _Extent(batch.base_offset, batch.last_offset + 1, len(batch.data), newest_ms)

    def _extents_despite_damage(self, first_offset: int) -> Iterator[_Extent]:
        """As `_extents`; a damaged batch ends where the next one begins, and has no timestamp.

        Each batch is read anew, so that a disk that returned wrong bytes once does not cost a batch its timestamps.
        """
        for (base_offset, row_bytes), (next_offset, _) in pairwise([*self._row_sizes(first_offset), (MAX_OFFSET, 0)]):
            try:
                batch = self._at(base_offset)
            except (CorruptRecords, DamagedValue):
                if next_offset == MAX_OFFSET:
                    raise
                yield _Extent(base_offset, next_offset, row_bytes, NO_TIMESTAMP)
                continue
            if batch is not None and batch.last_offset >= first_offset:
                newest_ms = read_header(batch.data).max_timestamp_ms
                yield _Extent(base_offset, batch.last_offset + 1, len(batch.data), newest_ms)

    def _row_sizes(self, first_offset: int) -> list[tuple[int, int]]:
        """The base offset and row size of each batch, from the last one that begins at or before `first_offset`.

        The row of a batch in a file has its length too, but no checksum. A wrong length would have retention.bytes
        remove records.
        """
        self._store.finish_writes()  # a batch may be on its way into a file
        start = keys.long_key(self._prefix, max(self.base_offset_before(first_offset), 0))
        return [(keys.number_of(key), len(row)) for key, row in self._rows.scan(keys.LOG, start, self._prefix_end)]

    def base_offset_before(self, offset: int) -> int:
        """The highest base offset up to `offset`, from -1 on; -1 where there is none. Begun writes may be missing."""
        upper = keys.long_key(self._prefix, offset + 1)
        for key, _ in self._rows.scan(keys.LOG, self._prefix, upper, reverse=True):
            return keys.number_of(key)
        return -1

    def _at(self, base_offset: int) -> StoredBatch | None:
        key = keys.long_key(self._prefix, base_offset)
        data = self._store.get(keys.LOG, key)
        return None if data is None else self._stored_batch(key, data)

    def _last_batch(self) -> StoredBatch | None:
        for key, data in self._store.scan(keys.LOG, self._prefix, self._prefix_end, reverse=True):
            return self._stored_batch(key, data)
        return None


def _count(extents: Iterable[_Extent], segments: SegmentTable, index_end: int) -> int:
    """Counts batches in the active segment, from its end on; returns the bytes of those from `index_end` on."""
    saved_end = segments.active.end_offset
    unindexed_bytes = 0
    for extent in extents:
        if extent.base_offset >= index_end:
            unindexed_bytes += extent.size_bytes
        if extent.base_offset >= saved_end:
            segments.active = after_batch(segments.active, *extent, UNKNOWN_TIME)
    return unindexed_bytes


def _leader_epoch(batch: StoredBatch) -> int:
    return read_header(batch.data).partition_leader_epoch
