"""The audit's knowledge of a share-partition's offsets: sorted runs without a hole between the first and the last.

Ended runs below the first open one are kept for a while, to detect a second accept or dead letter and to name the event
of the first. Runs below these are `FORGOTTEN`: only known as ended. So memory is bounded by the window of the
share-partition and by `ENDED_RUNS_KEPT`, independent of the length of the history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from kshare.audit.events import HistoryEvent

ENDED_RUNS_KEPT = 1_000


class Standing(Enum):
    """The known standing of an offset; the first three have not ended."""

    AVAILABLE = 1
    ACQUIRED = 2
    UNKNOWN = 3
    """Not known to have ended: events may be missing. Its delivery count is at least `delivery_count`."""
    ACCEPTED = 4
    REJECTED = 5
    ARCHIVED = 6
    """Has a reason; if that is one of the log, it need not be durable (`loaded_state.UNSTORED_REASONS`)."""
    DEAD_LETTERED = 7
    DONE = 8
    """Ended in the durable state; how is unknown."""

    def __init__(self, number: int) -> None:
        self.is_ended = number > 3


@dataclass(slots=True)
class KnownRun:
    """Offsets first..last of one standing; `because` is the event that caused it, if any."""

    first_offset: int
    last_offset: int
    standing: Standing
    delivery_count: int = 0
    member_id: str | None = None
    reason: str | None = None
    because: HistoryEvent | None = None
    is_archiving: bool = False
    """Loaded as Archiving: the history may have its dead letter again."""

    @property
    def length(self) -> int:
        return self.last_offset - self.first_offset + 1


class OffsetRuns:
    """See the module's docstring."""

    __slots__ = ("_firsts", "_runs", "ended_before")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[KnownRun] = []
        self.ended_before = -1
        """All runs before this offset have ended; runs from here on were not checked."""

    def __iter__(self) -> Iterator[KnownRun]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def first_offset(self) -> int:
        return self._firsts[0]

    @property
    def end_offset(self) -> int:
        return self._runs[-1].last_offset + 1

    def extend(self, first_offset: int, last_offset: int, standing: Standing) -> None:
        """Extends the runs to include `first_offset` and `last_offset`; new ones have `standing`."""
        if not self._runs:
            self._insert(0, KnownRun(first_offset, last_offset, standing))
            return
        if first_offset < self.first_offset:
            self._insert(0, KnownRun(first_offset, self.first_offset - 1, standing))
            self.ended_before = -1
        if last_offset >= self.end_offset:
            self._insert(len(self._runs), KnownRun(self.end_offset, last_offset, standing))

    def carve(self, first_offset: int, last_offset: int) -> list[KnownRun]:
        """The runs of exactly these offsets, which must be known; runs that reach beyond are split."""
        start = self._cut(first_offset)
        stop = self._cut(last_offset + 1)
        return self._runs[start:stop]

    def overlapping(self, first_offset: int, last_offset: int) -> list[KnownRun]:
        """The runs that overlap these offsets; none is split."""
        start = max(bisect_right(self._firsts, first_offset) - 1, 0)
        stop = bisect_right(self._firsts, last_offset)
        return [run for run in self._runs[start:stop] if run.last_offset >= first_offset]

    def look_anew(self, from_offset: int) -> None:
        """Resets the search for open runs: runs from this offset on may be open again."""
        self.ended_before = min(self.ended_before, from_offset)

    def first_open(self) -> KnownRun | None:
        """The first run that has not ended."""
        index = self._index_of_first_open()
        return self._runs[index] if index < len(self._runs) else None

    def open_before(self, offset: int) -> list[KnownRun]:
        """The open runs before an offset; one that reaches beyond it is split."""
        self._cut(offset)
        index = self._index_of_first_open()
        found: list[KnownRun] = []
        while index < len(self._runs) and self._firsts[index] < offset:
            if not self._runs[index].standing.is_ended:
                found.append(self._runs[index])
            index += 1
        return found

    def forget_ended(self) -> list[KnownRun]:
        """Removes ended runs from the front if there are many, and returns them."""
        if len(self._runs) <= 2 * ENDED_RUNS_KEPT:
            return []
        count = self._index_of_first_open() - ENDED_RUNS_KEPT
        if count < ENDED_RUNS_KEPT:
            return []
        forgotten = self._runs[:count]
        del self._runs[:count], self._firsts[:count]
        return forgotten

    def _index_of_first_open(self) -> int:
        index = bisect_right(self._firsts, self.ended_before - 1) - 1 if self.ended_before > 0 else 0
        index = max(index, 0)
        while index < len(self._runs) and self._runs[index].standing.is_ended:
            index += 1
        self.ended_before = self._firsts[index] if index < len(self._runs) else self.end_offset if self._runs else -1
        return index

    def _cut(self, offset: int) -> int:
        """The index of the run that begins at `offset`, which may be the end."""
        index = bisect_right(self._firsts, offset) - 1
        if index < 0:
            return 0
        run = self._runs[index]
        if run.first_offset == offset:
            return index
        if offset > run.last_offset:
            return index + 1
        self._insert(index + 1, replace(run, first_offset=offset))
        run.last_offset = offset - 1
        return index + 1

    def _insert(self, index: int, run: KnownRun) -> None:
        self._firsts.insert(index, run.first_offset)
        self._runs.insert(index, run)
