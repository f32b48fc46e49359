"""The approximate append times of a log's newest records, without an entry for each record.

An entry says: offsets up to here were appended at about this time. Appends within RESOLUTION_S share an entry. At
ENTRIES_LIMIT every second entry is dropped, so times of records that wait long are less exact.
"""

from __future__ import annotations

from bisect import bisect_right

RESOLUTION_S = 0.001
ENTRIES_LIMIT = 512


class AppendTimes:
    """The append times of one log since it was opened here, in seconds of a monotonic clock."""

    __slots__ = ("_ends", "_first_offset", "_times")

    def __init__(self, first_offset: int) -> None:
        """Times of offsets below `first_offset` are unknown."""
        self._first_offset = first_offset
        self._ends: list[int] = []
        self._times: list[float] = []

    def note(self, end_offset: int, now: float) -> None:
        """Notes that all offsets up to `end_offset` (exclusive) that were not noted before were appended now."""
        times, ends = self._times, self._ends
        if times and now - times[-1] < RESOLUTION_S:
            ends[-1] = end_offset
            return
        times.append(now)
        ends.append(end_offset)
        if len(times) > ENTRIES_LIMIT:
            # Of two neighbours the later end stays, with the earlier time.
            self._times, self._ends = times[0:-1:2] + times[-1:], ends[1::2] + ends[-1:]

    def at(self, offset: int) -> float | None:
        """The time when the record at `offset` was appended; None where it is unknown."""
        if offset < self._first_offset:
            return None
        index = bisect_right(self._ends, offset)
        return self._times[index] if index < len(self._times) else None
