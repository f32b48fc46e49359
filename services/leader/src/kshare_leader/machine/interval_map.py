"""An interval map: sorted, non-overlapping runs of offsets with the state of their records.

Rules: the runs cover every offset between the first and the last without a hole; two neighbours are never
equal (they would be one run), except between `slice_of` and `coalesce`. A look-up is a bisection in a plain
list of first offsets; 10,000 runs cost about a microsecond.

Available and Archiving runs are found without scanning the others: `runs_in` follows marks, a sorted list of offsets
for each of these states. Each such run has a mark inside it. A mark whose run has another state by now is outdated;
`runs_in` removes it when it finds it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kshare_core.states import RecordState
from kshare_leader.machine.transitions import ArchivingReason


class Owner(NamedTuple):
    """The owner of acquired records: a member, through one run of one gateway process, and one of its ports."""

    member_id: str
    gateway_id: int = -1
    gateway_incarnation: str = ""
    broker_number: int = 0


NO_WRITE = 0
"""The write id of a run without a pending write."""

_MARKED = frozenset({RecordState.AVAILABLE, RecordState.ARCHIVING})


class Run:
    """Consecutive offsets that share one state.

    `owner`, `lock_deadline_ms` and `fetch_number` (of the fetch that acquired it) are set while Acquired, else None, 0
    and 0. A `write_id` other than NO_WRITE means that the write of that id carries the change to `target`; until it
    ends, nothing else may change the run. `reason` is why the run is, or is to be, Archiving; None for a run
    that was read from the share coordinator, which does not store it.
    """

    __slots__ = (
        "delivery_count",
        "fetch_number",
        "first_offset",
        "last_offset",
        "lock_deadline_ms",
        "owner",
        "reason",
        "state",
        "target",
        "write_id",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        state: RecordState,
        delivery_count: int,
        owner: Owner | None = None,
        lock_deadline_ms: int = 0,
        fetch_number: int = 0,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.state = state
        self.delivery_count = delivery_count
        self.owner = owner
        self.lock_deadline_ms = lock_deadline_ms
        self.fetch_number = fetch_number
        self.write_id = NO_WRITE
        self.target = state
        self.reason: ArchivingReason | None = None

    @property
    def length(self) -> int:
        return self.last_offset - self.first_offset + 1

    def says_the_same_as(self, other: Run) -> bool:
        return (
            self.state is other.state
            and self.target is other.target
            and self.delivery_count == other.delivery_count
            and self.write_id == other.write_id
            and self.lock_deadline_ms == other.lock_deadline_ms
            and self.fetch_number == other.fetch_number
            and self.reason is other.reason
            and self.owner == other.owner
        )

    def cut_before(self, offset: int) -> Run:
        """Cuts the run before `offset` and returns the second part."""
        tail = Run(
            offset,
            self.last_offset,
            self.state,
            self.delivery_count,
            self.owner,
            self.lock_deadline_ms,
            self.fetch_number,
        )
        tail.write_id = self.write_id
        tail.target = self.target
        tail.reason = self.reason
        self.last_offset = offset - 1
        return tail

    def __repr__(self) -> str:
        text = f"{self.first_offset}-{self.last_offset} {self.state.name} {self.delivery_count}"
        return f"Run({text} {self.owner} {self.lock_deadline_ms} -> {self.write_id} {self.target.name})"


class IntervalMap:
    """See the module docstring. Runs that it returns may be changed in place, followed by `mark` and `coalesce`."""

    __slots__ = ("_firsts", "_marks", "_runs")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[Run] = []
        self._marks: dict[RecordState, list[int]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __getitem__(self, index: int) -> Run:
        return self._runs[index]

    def index_of(self, offset: int) -> int:
        """The index of the run that holds `offset`; 0 for an offset below all runs."""
        index = bisect_right(self._firsts, offset) - 1
        return max(index, 0)

    def overlapping(self, first_offset: int, last_offset: int) -> Sequence[Run]:
        """The runs that share an offset with first..last; their ends may lie outside that range."""
        start = self.index_of(first_offset)
        stop = bisect_right(self._firsts, last_offset, start)
        if start < stop and self._runs[start].last_offset < first_offset:
            start += 1
        return self._runs[start:stop]

    # Runs of one state

    def mark(self, run: Run) -> None:
        """Lets `runs_in` find a run; called when the run's state has changed."""
        if run.state not in _MARKED:
            return
        marks = self._marks.setdefault(run.state, [])
        offset = run.first_offset
        if not marks or marks[-1] < offset:
            marks.append(offset)
            return
        index = bisect_left(marks, offset)
        if marks[index] != offset:
            marks.insert(index, offset)

    def runs_in(self, state: RecordState, first_offset: int, last_offset: int) -> Iterator[Run]:
        """The Available or Archiving runs that share an offset with first..last.

        Their ends may lie outside that range. The map must not change during the iteration.
        """
        marks = self._marks.get(state)
        if not marks:
            return
        position = first_offset
        run = self._runs[self.index_of(first_offset)]
        if run.state is state and run.first_offset <= first_offset <= run.last_offset:
            yield run
            position = run.last_offset + 1
        index = bisect_left(marks, position)
        while index < len(marks) and marks[index] <= last_offset:
            run = self._runs[self.index_of(marks[index])]
            if run.state is state:
                yield run
                index = bisect_right(marks, run.last_offset, index)
            else:
                stop = index + 1
                while stop < len(marks) and self._runs[self.index_of(marks[stop])].state is not state:
                    stop += 1
                del marks[index:stop]

    # Changing the runs

    def slice_of(self, first_offset: int, last_offset: int) -> tuple[int, int]:
        """The indexes [start, stop) of the runs that make up exactly first..last, which the map must cover."""
        start = self._cut(first_offset)
        return start, self._cut(last_offset + 1)

    def _cut(self, offset: int) -> int:
        index = bisect_right(self._firsts, offset) - 1
        assert index >= 0, f"offset {offset} lies below all runs"
        run = self._runs[index]
        if run.first_offset == offset:
            return index
        index += 1
        if run.last_offset >= offset:
            tail = run.cut_before(offset)
            self._firsts.insert(index, offset)
            self._runs.insert(index, tail)
            self.mark(tail)
        return index

    def split(self, start: int, stop: int, offsets: Sequence[int]) -> int:
        """Cuts the runs in [start, stop) before each of the ascending `offsets`; returns the new stop."""
        parts: list[Run] = []
        following = iter(offsets)
        offset = next(following, None)
        for run in self._runs[start:stop]:
            parts.append(run)
            is_marked = run.state in _MARKED
            while offset is not None and offset <= run.last_offset:
                if offset > run.first_offset:
                    run = run.cut_before(offset)
                    parts.append(run)
                    if is_marked:
                        self.mark(run)
                offset = next(following, None)
        self._runs[start:stop] = parts
        self._firsts[start:stop] = [run.first_offset for run in parts]
        return start + len(parts)

    def runs(self, start: int, stop: int) -> Sequence[Run]:
        return self._runs[start:stop]

    def coalesce(self, start: int, stop: int) -> None:
        """Joins equal neighbours in [start, stop) and at its ends."""
        start = max(start - 1, 0)
        stop = min(stop + 1, len(self._runs))
        if stop - start < 2:
            return
        before = self._runs[start]
        kept = [before]
        for run in self._runs[start + 1 : stop]:
            if run.state is before.state and run.says_the_same_as(before):
                before.last_offset = run.last_offset
            else:
                kept.append(run)
                before = run
        if len(kept) < stop - start:
            self._runs[start:stop] = kept
            self._firsts[start:stop] = [run.first_offset for run in kept]

    def coalesce_over(self, first_offset: int, last_offset: int) -> None:
        """`coalesce` for the runs that share an offset with first..last."""
        if self._runs:
            start = self.index_of(first_offset)
            self.coalesce(start, bisect_right(self._firsts, last_offset, start))

    def append(self, run: Run) -> None:
        """Adds a run after the last one."""
        if self._runs:
            last = self._runs[-1]
            assert run.first_offset == last.last_offset + 1, f"{run} does not follow {last}"
            if run.state is last.state and run.says_the_same_as(last):
                last.last_offset = run.last_offset
                return
        self._runs.append(run)
        self._firsts.append(run.first_offset)
        self.mark(run)

    def drop_first(self, count: int) -> None:
        """Removes the first `count` runs."""
        below = self._runs[count - 1].last_offset + 1
        del self._runs[:count]
        del self._firsts[:count]
        for marks in self._marks.values():
            if marks and marks[0] < below:
                del marks[: bisect_left(marks, below)]
