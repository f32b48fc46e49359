"""An index of acquisition locks by deadline and by owner, which avoids scanning all runs.

An entry means that a lock on first..last was given to an owner until a deadline. Entries are not removed when a lock
ends or is renewed; a reader of an entry checks the runs there, which are authoritative. All entries are rebuilt when
there are many more entries than runs. So an entry costs a heap push and an append, and the number of entries stays
proportional to the number of runs in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from kshare_core.states import RecordState
from kshare_leader.machine.interval_map import Owner, Run

NEVER = 1 << 62
"""The next deadline if there is no lock."""

SPARE_ENTRIES = 64
"""How many entries are allowed beyond two per run."""


class AcquisitionLocks:
    """See the module docstring. All offsets are inclusive."""

    __slots__ = ("_by_owner", "_deadlines", "_entries")

    def __init__(self) -> None:
        self._deadlines: list[tuple[int, int, int]] = []
        self._by_owner: dict[Owner, list[tuple[int, int]]] = {}
        self._entries = 0
        """The number of entries in all lists of `_by_owner`."""

    @property
    def next_deadline_ms(self) -> int:
        """A lower bound of all lock deadlines; NEVER without locks."""
        return self._deadlines[0][0] if self._deadlines else NEVER

    def __len__(self) -> int:
        return max(len(self._deadlines), self._entries)

    def add(self, owner: Owner, deadline_ms: int, first_offset: int, last_offset: int) -> None:
        heappush(self._deadlines, (deadline_ms, first_offset, last_offset))
        self._by_owner.setdefault(owner, []).append((first_offset, last_offset))
        self._entries += 1

    def first_held_deadline_ms(self, runs_between: Callable[[int, int], Iterable[Run]]) -> int:
        """The earliest deadline of a held lock; removes the outdated entries before it."""
        deadlines = self._deadlines
        while deadlines:
            deadline_ms, first, last = deadlines[0]
            if any(
                run.state is RecordState.ACQUIRED and run.lock_deadline_ms == deadline_ms
                for run in runs_between(first, last)
            ):
                return deadline_ms
            heappop(deadlines)
        return NEVER

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Removes and returns the entries whose deadline is `now_ms` or earlier: their first and last offsets."""
        due: list[tuple[int, int]] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, first, last = heappop(deadlines)
            due.append((first, last))
        return due

    def take_of(self, is_owner: Callable[[Owner], bool]) -> list[tuple[int, int]]:
        """Removes and returns the entries of some owners. Their deadlines stay, for locks that cannot end yet."""
        taken: list[tuple[int, int]] = []
        for owner in [owner for owner in self._by_owner if is_owner(owner)]:
            entries = self._by_owner.pop(owner)
            self._entries -= len(entries)
            taken.extend(entries)
        return taken

    def tidy(self, acquired_count: int, runs: Iterable[Run], run_count: int) -> None:
        """Removes outdated entries if nothing is Acquired, or if there are many more entries than runs."""
        if not acquired_count:
            if self._deadlines or self._by_owner:
                self._clear()
        elif len(self) > 2 * run_count + SPARE_ENTRIES:
            self._clear()
            for run in runs:
                if run.state is RecordState.ACQUIRED:
                    assert run.owner is not None
                    self._deadlines.append((run.lock_deadline_ms, run.first_offset, run.last_offset))
                    self._by_owner.setdefault(run.owner, []).append((run.first_offset, run.last_offset))
            heapify(self._deadlines)
            self._entries = len(self._deadlines)

    def _clear(self) -> None:
        self._deadlines = []
        self._by_owner = {}
        self._entries = 0
