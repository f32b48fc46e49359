"""When a state log is shortened, and up to where.

A log is never compacted: the newest record of a key may be one that does not count. Its owner appends marks, each of
which a reader may begin with, and removes what is before the newest one below every live snapshot. States that are not
written keep old snapshots; once the log is much longer than what it holds, they are written again, oldest first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MARKS_LIMIT = 1_000
"""Marks that are remembered; of more, every second one is forgotten."""


@dataclass(frozen=True, slots=True)
class PruningPolicy:
    """`kshare.state.log.*`."""

    mark_interval_ms: int = 3_600_000
    mark_interval_records: int = 10_000
    minimum_records: int = 50_000
    """A log of so many records is not worth the writing of states that did not change."""


class LogLength:
    """The marks of a log, and its length. Offsets stand for records: of those that do not count there are few."""

    def __init__(self, policy: PruningPolicy, start_offset: int, claimed_at: int, now_s: float) -> None:
        self.start_offset = start_offset
        self._policy = policy
        self._marks = deque([claimed_at])
        self._marked_at_s = now_s
        self._next_at = 0

    def needs_mark(self, end_offset: int, now_s: float) -> bool:
        """Whether enough was appended since the newest mark, or long enough ago."""
        appended = end_offset - self._marks[-1] - 1
        if appended >= self._policy.mark_interval_records:
            return True
        return appended > 0 and (now_s - self._marked_at_s) * 1000 >= self._policy.mark_interval_ms

    def marked(self, offset: int, now_s: float) -> None:
        """A mark was confirmed."""
        self._marks.append(offset)
        self._marked_at_s = now_s
        if len(self._marks) > MARKS_LIMIT:
            self._marks = deque(list(self._marks)[::2])

    def deletable_before(self, oldest_offset: int | None) -> int | None:
        """The offset up to which the log is not needed; None if it was removed already.

        `oldest_offset` is that of the oldest live snapshot.
        """
        while len(self._marks) > 1 and (oldest_offset is None or self._marks[1] < oldest_offset):
            self._marks.popleft()
        newest = self._marks[0]
        is_needed = oldest_offset is not None and oldest_offset < newest
        return None if is_needed or newest <= self.start_offset else newest

    def is_too_long(self, end_offset: int, live_records: int) -> bool:
        """Whether states that did not change are to be written again: not at once where the last time did not help."""
        limit = self._limit(live_records)
        if end_offset - self.start_offset <= limit or end_offset < self._next_at:
            return False
        self._next_at = end_offset + limit // 4
        return True

    def cold_before(self, end_offset: int, live_records: int) -> int:
        """The mark below which states are to be written again: the first one in the newer half of the log's limit.

        That costs less than one record for each that was appended. The newest mark is at the log's end.
        """
        half = end_offset - self._limit(live_records) // 2
        return next((mark for mark in self._marks if mark >= half), self._marks[-1])

    def _limit(self, live_records: int) -> int:
        return max(2 * live_records, self._policy.minimum_records)
