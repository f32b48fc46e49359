"""The buffer of events that wait to be published, for all share-partitions of a node.

A segment holds the events of one future record: consecutive events of one share-partition. An event that does not fit
is dropped and counted. Its number is not reused, so that a reader sees that an event is missing; the next event begins
a new segment. Segments that were taken count against the limit until they are stored or given up.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_leader.history.limits import EVENT_OVERHEAD_BYTES, FLUSH_BYTES, RECORD_LIMIT_BYTES
from kshare_leader.history.numbers import Number
from kshare_leader.metrics import HistoryCounts


class Segment:
    """Consecutive events of one share-partition, of one state epoch and leader epoch."""

    __slots__ = ("_after", "_before", "events", "first_sequence", "is_taken", "key", "size_bytes")

    def __init__(self, key: bytes, before: str, first_sequence: int, after: str) -> None:
        self.key = key
        """The record's key."""
        self._before = before
        self.first_sequence = first_sequence
        self._after = after
        self.events: list[str] = []
        self.size_bytes = 0
        self.is_taken = False

    def value(self) -> bytes:
        """The record's value."""
        return f"{self._before}{self.first_sequence}{self._after}{','.join(self.events)}]}}".encode()


class HistoryBuffer:
    """See the module docstring. `wake` is called with whether the buffer should be flushed at once."""

    def __init__(self, *, limit_bytes: int, counts: HistoryCounts, wake: Callable[[bool], None]) -> None:
        self._limit_bytes = limit_bytes
        self._counts = counts
        self._wake = wake
        self._waiting: list[Segment] = []
        self._waiting_bytes = 0
        self.size_bytes = 0
        """The size of waiting segments, and of taken ones that are not released."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has_room(self, size_bytes: int) -> bool:
        """Whether an event of this size fits; counts it as dropped if not."""
        if self.size_bytes + size_bytes <= self._limit_bytes:
            return True
        self._counts.dropped += 1
        return False

    def begin(self, segment: Segment) -> None:
        """Adds a new segment, which stays open until it is taken."""
        self._waiting.append(segment)

    def grown(self, size_bytes: int) -> None:
        """Counts an event that was added to an open segment."""
        self.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        counts = self._counts
        counts.events += 1
        counts.buffer_bytes = self.size_bytes
        self._wake(self._waiting_bytes >= FLUSH_BYTES)

    def take(self) -> list[Segment]:
        """Removes and returns all waiting segments, oldest first; `release` their sizes once stored or given up."""
        taken, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        for segment in taken:
            segment.is_taken = True
        return taken

    def release(self, size_bytes: int) -> None:
        """Frees the size of taken segments that are stored or given up."""
        self.size_bytes -= size_bytes
        self._counts.buffer_bytes = self.size_bytes


class EventStream:
    """The events of one share-partition while it is served. `before` and `after` are the record around its number."""

    __slots__ = ("_after", "_before", "_buffer", "_key", "_number", "_segment")

    def __init__(self, buffer: HistoryBuffer, number: Number, key: bytes, before: str, after: str) -> None:
        self._buffer = buffer
        self._number = number
        self._key = key
        self._before = before
        self._after = after
        self._segment: Segment | None = None

    def add(self, text: str) -> None:
        """Adds an event, or drops it if the buffer is full."""
        number = self._number
        sequence = number.next
        number.next = sequence + 1
        size_bytes = len(text) + EVENT_OVERHEAD_BYTES
        buffer = self._buffer
        if not buffer.has_room(size_bytes):
            self._segment = None
            return
        segment = self._segment
        if segment is None or segment.is_taken or segment.size_bytes >= RECORD_LIMIT_BYTES:
            segment = self._segment = Segment(self._key, self._before, sequence, self._after)
            buffer.begin(segment)
        segment.events.append(text)
        segment.size_bytes += size_bytes
        buffer.grown(size_bytes)

    def end(self) -> None:
        """Ends the stream."""
        self._number.is_used = False
