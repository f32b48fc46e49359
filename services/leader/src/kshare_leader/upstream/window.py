"""The pieces of one upstream log that are in memory: reads are answered from them at once, or note what is missing.

A read never waits: where nothing is covered it returns nothing and notes what is missing, until a piece covers it or
the log gives it up.
Readers at other places of the log do not take that back. Pieces do not overlap; a new one replaces what it overlaps.
Above the limit the piece that was fetched longest ago goes first: what was fetched ahead of a reader is newer than what
the reader has passed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator
from operator import attrgetter

from kshare_leader.ports import AbortedTransaction, StoredBatch
from kshare_leader.upstream.pieces import Piece

MISSING_LIMIT = 64
UNLIMITED = 1 << 62

_FIRST_OFFSET = attrgetter("first_offset")
_LAST_OFFSET = attrgetter("last_offset")


class WindowBudget:
    """The limit of all windows of a node: above it, the window that was used longest ago loses its oldest piece."""

    def __init__(self, limit_bytes: int) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._windows: dict[Window, None] = {}
        """The windows with pieces, in the order of their use: the one that was used longest ago first."""

    @property
    def share_bytes(self) -> int:
        """The limit, divided among the windows in use."""
        return self._limit_bytes // max(1, len(self._windows))

    def used(self, window: Window) -> None:
        if window in self._windows:
            del self._windows[window]
            self._windows[window] = None

    def changed(self, window: Window, bytes_more: int) -> None:
        """A window grew or shrank."""
        self.size_bytes += bytes_more
        if window.size_bytes:
            self._windows.setdefault(window)
        else:
            self._windows.pop(window, None)

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    def shrink_to(self, size_bytes: int) -> None:
        """Drops pieces, of the window that was used longest ago first, until at most `size_bytes` are left."""
        while self.size_bytes > size_bytes:
            oldest = next(iter(self._windows), None)
            if oldest is None:
                return
            oldest.drop_oldest()

    def shrink(self, newest: Window) -> None:
        """Drops pieces until the limit is met, but never the newest piece of the window `newest`."""
        while self.size_bytes > self._limit_bytes:
            other = next((window for window in self._windows if window is not newest), None)
            if other is not None:
                other.drop_oldest()
            elif newest.piece_count > 1:
                newest.drop_oldest()
            else:
                return


class Window:
    """Pieces of one log, at most `limit_bytes` of them, but always the newest one that was added."""

    def __init__(self, limit_bytes: int, budget: WindowBudget | None = None) -> None:
        self.size_bytes = 0
        self._budget = budget or WindowBudget(UNLIMITED)
        self._missing: dict[int, None] = {}
        self._limit_bytes = limit_bytes
        self._pieces: list[Piece] = []
        self._fetched: dict[int, None] = {}
        """First offsets of pieces in the order in which they were fetched."""

    def add(self, piece: Piece) -> None:
        """Takes a piece; those that it overlaps are dropped."""
        for other in self._overlapped(piece):
            self._drop(other)
        insort(self._pieces, piece, key=_FIRST_OFFSET)
        self._fetched[piece.first_offset] = None
        self._grow(piece.size_bytes)
        for offset in [each for each in self._missing if piece.first_offset <= each < piece.end_offset]:
            del self._missing[offset]
        self._shrink(piece)
        self._budget.shrink(self)

    def _grow(self, bytes_more: int) -> None:
        self.size_bytes += bytes_more
        self._budget.changed(self, bytes_more)

    def forget_missing_below(self, offset: int) -> None:
        """What begins below the log's start cannot be fetched."""
        for each in [each for each in self._missing if each < offset]:
            del self._missing[each]

    @property
    def piece_count(self) -> int:
        return len(self._pieces)

    def drop_oldest(self) -> None:
        """Drops the piece that was fetched longest ago; there is one."""
        self._drop(self._pieces[bisect_left(self._pieces, next(iter(self._fetched)), key=_FIRST_OFFSET)])

    @property
    def missing(self) -> Collection[int]:
        """The offsets that reads lack, the one that is missing for the longest time first."""
        return self._missing.keys()

    def forget_missing(self, offset: int) -> None:
        """Gives up a demand; a read that still lacks the offset makes it again."""
        self._missing.pop(offset, None)

    def read(self, fetch_offset: int, max_bytes: int) -> list[StoredBatch]:
        """Whole batches in order, the first one being the one that holds `fetch_offset` or the next after it.

        At most `max_bytes`, but at least one batch where `fetch_offset` is covered up to a batch.
        """
        found: list[StoredBatch] = []
        left_bytes = max_bytes
        self._budget.used(self)
        for piece in self._from(fetch_offset):
            start = bisect_left(piece.batches, fetch_offset, key=_LAST_OFFSET)
            for batch in piece.batches[start:]:
                if found and batch.length > left_bytes:
                    return found
                found.append(batch)
                left_bytes -= batch.length
        if not found:
            self._note_missing(self.covered_end(fetch_offset))
        return found

    def covered_end(self, offset: int) -> int:
        """The end of the coverage that begins at or before `offset`; `offset` itself where it is not covered."""
        end = offset
        for piece in self._from(offset):
            end = piece.end_offset
        return end

    def covered(self, offset: int) -> tuple[int, int]:
        """`covered_end`, and how many bytes there are from the piece with `offset` to it."""
        end, size_bytes = offset, 0
        for piece in self._from(offset):
            end = piece.end_offset
            size_bytes += piece.size_bytes
        return end, size_bytes

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions of the pieces in this range, by their last offsets, each cut to its piece."""
        found: list[AbortedTransaction] = []
        for piece in self._from(first_offset):
            if piece.first_offset >= end_offset:
                break
            found += [run for run in piece.aborted if run.last_offset >= first_offset and run.first_offset < end_offset]
        return found

    def clear(self) -> None:
        """Forgets everything: the log has other records now."""
        self._pieces.clear()
        self._fetched.clear()
        self._missing.clear()
        self._grow(-self.size_bytes)

    def _note_missing(self, offset: int) -> None:
        """Keeps the newest MISSING_LIMIT demands: readers come again."""
        self._missing.setdefault(offset)
        if len(self._missing) > MISSING_LIMIT:
            del self._missing[next(iter(self._missing))]

    def _from(self, offset: int) -> Iterator[Piece]:
        """The piece that covers `offset`, and those that follow without a gap."""
        index = bisect_right(self._pieces, offset, key=_FIRST_OFFSET) - 1
        if index < 0 or self._pieces[index].end_offset <= offset:
            return
        expected = self._pieces[index].first_offset
        for piece in self._pieces[index:]:
            if piece.first_offset != expected:
                return
            yield piece
            expected = piece.end_offset

    def _overlapped(self, piece: Piece) -> list[Piece]:
        index = max(0, bisect_right(self._pieces, piece.first_offset, key=_FIRST_OFFSET) - 1)
        end = bisect_left(self._pieces, piece.end_offset, key=_FIRST_OFFSET)
        return [other for other in self._pieces[index:end] if other.end_offset > piece.first_offset]

    def _drop(self, piece: Piece) -> None:
        del self._pieces[bisect_left(self._pieces, piece.first_offset, key=_FIRST_OFFSET)]
        del self._fetched[piece.first_offset]
        self._grow(-piece.size_bytes)

    def _shrink(self, newest: Piece) -> None:
        while self.size_bytes > self._limit_bytes and len(self._pieces) > 1:
            oldest = next(first for first in self._fetched if first != newest.first_offset)
            self._drop(self._pieces[bisect_left(self._pieces, oldest, key=_FIRST_OFFSET)])
