"""The memory that windows may use: each on its own, and all of a node together."""

from __future__ import annotations

from kshare_leader.ports import StoredBatch
from kshare_leader.upstream.pieces import Piece
from kshare_leader.upstream.window import Window, WindowBudget

SIZE = 100


def piece(first_offset: int) -> Piece:
    """Ten records in one batch of SIZE bytes."""
    batch = StoredBatch(first_offset, first_offset + 9, bytes(SIZE))
    return Piece(first_offset, first_offset + 10, [batch], (), SIZE)


def offsets(window: Window, *wanted: int) -> list[int]:
    """Those of `wanted` whose records are in the window."""
    return [offset for offset in wanted if window.covered_end(offset) > offset]


def test_what_was_fetched_ahead_of_the_reader_outlives_what_it_has_read() -> None:
    window = Window(5 * SIZE)
    for first in (0, 10, 20, 30):
        window.add(piece(first))
    assert [batch.base_offset for batch in window.read(0, 2 * SIZE)] == [0, 10]
    window.add(piece(40))
    window.add(piece(50))
    window.add(piece(60))
    assert offsets(window, 0, 10, 20, 30, 40, 50, 60) == [20, 30, 40, 50, 60]
    assert window.size_bytes == 5 * SIZE


def test_the_window_that_was_read_longest_ago_gives_way_first() -> None:
    budget = WindowBudget(4 * SIZE)
    first, second, third = (Window(10 * SIZE, budget) for _ in range(3))
    for window in (first, second):
        window.add(piece(0))
        window.add(piece(10))
    assert budget.share_bytes == 2 * SIZE
    first.read(0, 1)
    third.add(piece(0))
    assert [offsets(window, 0, 10) for window in (first, second, third)] == [[0, 10], [10], [0]]
    third.add(piece(10))
    assert [offsets(window, 0, 10) for window in (first, second, third)] == [[0, 10], [], [0, 10]]
    assert budget.size_bytes == sum(window.size_bytes for window in (first, second, third)) == 4 * SIZE
    first.clear()
    assert budget.size_bytes == 2 * SIZE and budget.share_bytes == 4 * SIZE


def test_the_newest_piece_stays_however_small_the_budget() -> None:
    window = Window(10 * SIZE, WindowBudget(SIZE // 2))
    for first in (0, 10):
        window.add(piece(first))
    assert offsets(window, 0, 10) == [10]


def test_an_offset_that_was_deleted_is_not_missed_any_more() -> None:
    window = Window(10 * SIZE)
    assert window.read(3, SIZE) == [] and window.read(25, SIZE) == []
    assert next(iter(window.missing)) == 3
    window.forget_missing_below(20)
    assert next(iter(window.missing)) == 25


def test_windows_that_shrink_lose_pieces_of_the_window_that_was_used_longest_ago() -> None:
    budget = WindowBudget(10 * SIZE)
    first, second = Window(10 * SIZE, budget), Window(10 * SIZE, budget)
    for window in (first, second):
        for offset in (0, 10, 20):
            window.add(piece(offset))
    first.read(0, SIZE)
    budget.shrink_to(4 * SIZE)
    assert (first.size_bytes, second.size_bytes) == (3 * SIZE, SIZE)
    budget.shrink_to(0)
    assert (first.size_bytes, second.size_bytes, budget.size_bytes) == (0, 0, 0)
    budget.shrink_to(0)
    first.add(piece(0))
    assert budget.size_bytes == SIZE
