"""Events that wait to be published, of all share-partitions of a node.

A segment is what becomes one record of the topic: consecutive events of one share-partition. An event that finds no
room is dropped and counted, and keeps its number, so that a reader sees that one is missing; the next event begins a
segment.
Segments that were taken count against the limit until they are stored or given up.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_leader.history.limits import EVENT_OVERHEAD_BYTES, FLUSH_BYTES, RECORD_LIMIT_BYTES
from kshare_leader.history.numbers import Number
from kshare_leader.measures import HistoryCounts


class Segment:
    """Consecutive events of one share-partition, of one state epoch and leader epoch."""

    __slots__ = ("_after", "_before", "events", "first_sequence", "is_taken", "key", "size_bytes")

    def __init__(self, key: bytes, before: str, first_sequence: int, after: str) -> None:
        self.key = key
        """The record's."""
        self._before = before
        self.first_sequence = first_sequence
        self._after = after
        self.events: list[str] = []
        self.size_bytes = 0
        self.is_taken = False

    def value(self) -> bytes:
        """The record's."""
        return f"{self._before}{self.first_sequence}{self._after}{','.join(self.events)}]}}".encode()


class HistoryBuffer:
    """See the module's text. `wake` is called with whether there is so much that it should go at once."""

    def __init__(self, *, limit_bytes: int, counts: HistoryCounts, wake: Callable[[bool], None]) -> None:
        self._limit_bytes = limit_bytes
        self._counts = counts
        self._wake = wake
        self._waiting: list[Segment] = []
        self._waiting_bytes = 0
        self.size_bytes = 0
        """Of what waits, and of what was taken and is not released."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has_room(self, size_bytes: int) -> bool:
        """Whether an event of this size may be added; counts it as dropped where not."""
        if self.size_bytes + size_bytes <= self._limit_bytes:
            return True
        self._counts.dropped += 1
        return False

    def begin(self, segment: Segment) -> None:
        """A segment whose events are to be published; it stays open until it is taken."""
        self._waiting.append(segment)

    def grown(self, size_bytes: int) -> None:
        """An event was added to an open segment."""
        self.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        counts = self._counts
        counts.events += 1
        counts.buffer_bytes = self.size_bytes
        self._wake(self._waiting_bytes >= FLUSH_BYTES)

    def take(self) -> list[Segment]:
        """All that wait, in the order in which they began; `release` their sizes when they are stored or given up."""
        taken, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        for segment in taken:
            segment.is_taken = True
        return taken

    def release(self, size_bytes: int) -> None:
        """Of what was taken, so much is stored or given up."""
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
        """Adds an event, or drops it where there is no room."""
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
        """There will be no more."""
        self._number.is_used = False
