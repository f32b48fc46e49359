"""The segments and positions of a log, which retention, compaction and DeleteRecords decide by.

A segment here is not a file but a row: its range of offsets, its size in bytes and its newest timestamp. The rows exist
so that retention removes the same whole segments as Kafka's (LogSegment.shouldRoll of Kafka 4.3). A segment is rolled
before the batch that would make it larger than segment.bytes, and before a batch whose newest timestamp is more than
segment.ms (less a jitter) after the segment's first one. The last segment is the active one.

**Cost of appends.** An append changes the active segment in memory only. Its row is written when a segment is rolled
and, with the index of timestamps, after every INDEX_INTERVAL_BYTES. Opening a log counts the batches after the row
again from their headers. A row says up to which offset it counts, so records must exist up to there: a log whose last
batch ends before that has lost records and is refused.

When all records were deleted, the row of the active segment, which is empty then, keeps the log's end offset: offsets
are never used again.

**Positions.** One more row has the log start offset and the first offset that compaction has not processed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from kshare_leader.log import keys
from kshare_leader.log.topic_settings import TopicSettings
from kshare_runtime.ports import Write
from kshare_wire.record_batches import NO_TIMESTAMP

UNKNOWN_TIME = -1
OFFSETS_LIMIT = (1 << 31) - 1
"""The largest distance of offsets within one segment."""

_SEGMENT = struct.Struct(">qqqqqqq")
_POSITIONS = struct.Struct(">qq")


class Positions(NamedTuple):
    """The durable positions of a log."""

    start_offset: int = 0
    first_dirty_offset: int = 0
    """Compaction has processed all records below."""


class Segment(NamedTuple):
    """One segment. Times are in milliseconds; UNKNOWN_TIME where a time is not known."""

    base_offset: int
    end_offset: int
    """The offset after its last batch, as far as `size_bytes` counts them."""
    size_bytes: int = 0
    largest_timestamp_ms: int = NO_TIMESTAMP
    newest_base_offset: int = 0
    """The base offset of the first batch that has the largest timestamp."""
    first_timestamp_ms: int = NO_TIMESTAMP
    """The newest timestamp of its first batch; segment.ms counts from it."""
    first_append_ms: int = UNKNOWN_TIME
    """The clock at its first append; segment.ms counts from it where batches have no timestamps."""
    last_append_ms: int = UNKNOWN_TIME

    @property
    def newest_ms(self) -> int:
        """The time that retention.ms counts from (LogSegment.largestTimestamp)."""
        return self.largest_timestamp_ms if self.largest_timestamp_ms >= 0 else self.last_append_ms


def encode_segment(segment: Segment) -> bytes:
    """Its fields after the base offset, 8 bytes each."""
    return _SEGMENT.pack(*segment[1:])


def decode_segment(base_offset: int, value: bytes) -> Segment:
    """The inverse of `encode_segment`; struct.error where the bytes are none."""
    return Segment(base_offset, *_SEGMENT.unpack(value))


def encode_positions(positions: Positions) -> bytes:
    """Start and first dirty offset, 8 bytes each."""
    return _POSITIONS.pack(*positions)


def decode_positions(value: bytes) -> Positions:
    """The inverse of `encode_positions`; struct.error where the bytes are none."""
    return Positions(*_POSITIONS.unpack(value))


def segment_write(prefix: bytes, segment: Segment) -> Write:
    return Write(keys.SEGMENTS, keys.long_key(prefix, segment.base_offset), encode_segment(segment))


class StartChange(NamedTuple):
    """A new start of a log: the writes and the segments that it removes."""

    positions: Positions
    writes: list[Write]
    gone: list[Segment]


class PendingSegments:
    """The changes of a turn of appends to the segments of one log."""

    __slots__ = ("_jitter_seed", "_now_ms", "_settings", "active", "closed", "is_saved")

    def __init__(self, active: Segment, settings: TopicSettings, now_ms: int, jitter_seed: bytes) -> None:
        self.active = active
        self.closed: list[Segment] = []
        """Segments that this turn rolled."""
        self.is_saved = False
        """Whether the active segment's row is written with the turn."""
        self._settings = settings
        self._now_ms = now_ms
        self._jitter_seed = jitter_seed

    def add(self, base_offset: int, next_offset: int, size_bytes: int, newest_timestamp_ms: int) -> None:
        """Counts a batch; `newest_timestamp_ms` is -1 where the batch has no timestamp."""
        active = self.active
        if active.size_bytes and self._must_roll(next_offset, size_bytes, newest_timestamp_ms):
            if active.last_append_ms < 0:
                active = active._replace(last_append_ms=self._now_ms)
            self.closed.append(active)
            self.is_saved = True
            active = Segment(base_offset, base_offset)
        self.active = after_batch(active, base_offset, next_offset, size_bytes, newest_timestamp_ms, self._now_ms)

    def writes(self, prefix: bytes) -> Iterator[Write]:
        for segment in self.closed:
            yield segment_write(prefix, segment)
        if self.is_saved:
            yield segment_write(prefix, self.active)

    def _must_roll(self, next_offset: int, size_bytes: int, newest_timestamp_ms: int) -> bool:
        active, settings = self.active, self._settings
        if active.size_bytes > settings.segment_bytes - size_bytes:
            return True
        if next_offset - 1 - active.base_offset > OFFSETS_LIMIT:
            return True
        if active.first_timestamp_ms >= 0:
            waited_ms = newest_timestamp_ms - active.first_timestamp_ms
        else:
            waited_ms = self._now_ms - active.first_append_ms if active.first_append_ms >= 0 else 0
        return waited_ms > settings.roll_ms - self._jitter_ms()

    def _jitter_ms(self) -> int:
        """A duration below segment.jitter.ms, always the same for the same segment."""
        limit_ms = min(self._settings.segment_jitter_ms, self._settings.segment_ms)
        if limit_ms <= 0:
            return 0
        return crc32(self._jitter_seed + self.active.base_offset.to_bytes(8, "big")) % limit_ms


def after_batch(
    segment: Segment, base_offset: int, next_offset: int, size_bytes: int, newest_timestamp_ms: int, now_ms: int
) -> Segment:
    """The segment with one more batch at its end; `now_ms` is UNKNOWN_TIME where it was appended some time ago."""
    is_newest = newest_timestamp_ms > segment.largest_timestamp_ms
    is_first = not segment.size_bytes
    return Segment(
        segment.base_offset,
        next_offset,
        segment.size_bytes + size_bytes,
        newest_timestamp_ms if is_newest else segment.largest_timestamp_ms,
        base_offset if is_newest else segment.newest_base_offset,
        newest_timestamp_ms if is_first else segment.first_timestamp_ms,
        now_ms if is_first or segment.first_append_ms < 0 else segment.first_append_ms,
        now_ms,
    )


class SegmentTable:
    """The durable segments of one log, plus the newest batches of the active one in memory. Never empty."""

    def __init__(self, rows: Iterable[Segment], start_offset: int) -> None:
        found = list(rows)
        self.active = found.pop() if found else Segment(start_offset, start_offset)
        self.closed = found
        self.version = 0
        """Changes when segments are removed; a compaction under way is then aborted."""

    def __iter__(self) -> Iterator[Segment]:
        yield from self.closed
        yield self.active

    def __len__(self) -> int:
        return len(self.closed) + 1

    @property
    def size_bytes(self) -> int:
        return sum([segment.size_bytes for segment in self])

    @property
    def newest_timestamp_ms(self) -> int:
        """NO_TIMESTAMP if no record has one."""
        return max([segment.largest_timestamp_ms for segment in self])

    def newest_without(self, gone: Sequence[Segment]) -> int:
        """`newest_timestamp_ms` once these segments are gone."""
        offsets = {segment.base_offset for segment in gone}
        left = [segment.largest_timestamp_ms for segment in self if segment.base_offset not in offsets]
        return max(left, default=NO_TIMESTAMP)

    def commit(self, pending: PendingSegments) -> None:
        self.closed.extend(pending.closed)
        self.active = pending.active

    def by_newest(self) -> list[Segment]:
        """The segments whose records have timestamps, from the newest timestamp down."""
        found = [segment for segment in self if segment.largest_timestamp_ms >= 0]
        return sorted(found, key=lambda segment: (-segment.largest_timestamp_ms, segment.base_offset))

    def note_time(self, now_ms: int) -> None:
        """Sets the time of the last append to now where that append was before the log was opened."""
        if self.active.size_bytes and self.active.last_append_ms < 0:
            self.active = self.active._replace(last_append_ms=now_ms)

    def below(self, start_offset: int, end_offset: int) -> list[Segment]:
        """The segments without readable records when a log that ends at `end_offset` starts at `start_offset`."""
        gone = [segment for segment in self.closed if segment.end_offset <= start_offset]
        if start_offset >= end_offset and self.active.base_offset < end_offset:
            gone.append(self.active)
        return gone

    def remove(self, gone: list[Segment], end_offset: int) -> None:
        """Removes `gone`, the oldest segments; where they include the active one, an empty one replaces it."""
        if not gone:
            return
        self.version += 1
        if gone[-1].base_offset == self.active.base_offset:
            self.closed, self.active = [], Segment(end_offset, end_offset)
        else:
            del self.closed[: len(gone)]

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replaces adjacent closed segments by `new`."""
        first = next(index for index, segment in enumerate(self.closed) if segment.base_offset == old[0].base_offset)
        self.closed[first : first + len(old)] = [new]


def plan_start(segments: SegmentTable, positions: Positions, end_offset: int, prefix: bytes) -> StartChange:
    """The changes to the rows of a log that ends at `end_offset` when its start moves to `positions`."""
    gone = segments.below(positions.start_offset, end_offset)
    writes = [Write(keys.POSITIONS, prefix, encode_positions(positions))]
    writes += [Write(keys.SEGMENTS, keys.long_key(prefix, segment.base_offset), None) for segment in gone]
    is_active_gone = bool(gone) and gone[-1].base_offset == segments.active.base_offset
    active = Segment(end_offset, end_offset) if is_active_gone else segments.active
    return StartChange(positions, [*writes, segment_write(prefix, active)], gone)
