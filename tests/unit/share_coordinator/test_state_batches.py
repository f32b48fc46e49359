"""How state batches combine, against a dictionary with an entry for each offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_share_coordinator.machine.state_batches import StateBatch, combine_state_batches, is_canonical
from support.share_coordinator.shell import batches

Run = tuple[int, int, int, int]


@pytest.mark.parametrize(
    ("older", "newer", "start_offset", "combined"),
    [
        ([], [(5, 9, 0, 1)], -1, [(5, 9, 0, 1)]),
        ([(5, 9, 0, 1)], [], -1, [(5, 9, 0, 1)]),
        # the same again
        ([(5, 9, 0, 1)], [(5, 9, 0, 1)], -1, [(5, 9, 0, 1)]),
        # neighbours that are equal merge, others do not
        ([(5, 9, 0, 1)], [(10, 12, 0, 1)], -1, [(5, 12, 0, 1)]),
        ([(5, 9, 0, 1)], [(10, 12, 0, 2)], -1, [(5, 9, 0, 1), (10, 12, 0, 2)]),
        ([(5, 9, 0, 1)], [(11, 12, 0, 1)], -1, [(5, 9, 0, 1), (11, 12, 0, 1)]),
        ([(1, 2, 2, 1), (5, 9, 2, 1)], [(3, 4, 2, 1)], -1, [(1, 9, 2, 1)]),
        # the higher count wins, on either side
        ([(5, 9, 0, 1)], [(7, 12, 0, 2)], -1, [(5, 6, 0, 1), (7, 12, 0, 2)]),
        ([(5, 9, 0, 2)], [(7, 12, 4, 1)], -1, [(5, 9, 0, 2), (10, 12, 4, 1)]),
        # then the higher state
        ([(5, 9, 0, 1)], [(7, 7, 2, 1)], -1, [(5, 6, 0, 1), (7, 7, 2, 1), (8, 9, 0, 1)]),
        ([(7, 7, 2, 1)], [(5, 9, 0, 1)], -1, [(5, 6, 0, 1), (7, 7, 2, 1), (8, 9, 0, 1)]),
        ([(5, 9, 2, 1)], [(5, 9, 4, 1)], -1, [(5, 9, 4, 1)]),
        # Archiving comes after Available and before Archived, with the same count
        ([(5, 9, 0, 2)], [(6, 8, 3, 2)], -1, [(5, 5, 0, 2), (6, 8, 3, 2), (9, 9, 0, 2)]),
        ([(5, 9, 3, 2)], [(5, 6, 4, 2)], -1, [(5, 6, 4, 2), (7, 9, 3, 2)]),
        ([(5, 9, 3, 2)], [(5, 9, 0, 1)], -1, [(5, 9, 3, 2)]),
        ([(5, 9, 4, 2)], [(5, 9, 3, 2)], -1, [(5, 9, 4, 2)]),
        # below the start offset nothing stays
        ([(5, 9, 0, 1), (10, 12, 2, 1)], [], 10, [(10, 12, 2, 1)]),
        ([(5, 9, 0, 1)], [(3, 4, 2, 1)], 7, [(7, 9, 0, 1)]),
        ([(5, 9, 0, 1)], [(5, 20, 2, 1)], 30, []),
        # batches of one write may overlap and come in any order
        ([], [(10, 12, 2, 1), (5, 11, 0, 1)], -1, [(5, 9, 0, 1), (10, 12, 2, 1)]),
    ],
)
def test_combining(older: list[Run], newer: list[Run], start_offset: int, combined: list[Run]) -> None:
    before = batches(*older)
    assert combine_state_batches(before, batches(*newer), start_offset) == batches(*combined)
    assert before == batches(*older)


runs = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 60),
    st.integers(0, 15),
    st.sampled_from([0, 2, 3, 4]),
    st.integers(0, 3),
)


@given(st.lists(st.lists(runs, max_size=12), max_size=6), st.integers(-1, 80))
def test_combining_equals_a_maximum_for_each_offset(writes: list[list[StateBatch]], start_offset: int) -> None:
    combined: list[StateBatch] = []
    expected: dict[int, tuple[int, int]] = {}
    for write in writes:
        combined = combine_state_batches(combined, write, start_offset)
        for batch in write:
            for offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1):
                found = (batch.delivery_count, batch.delivery_state)
                expected[offset] = max(expected.get(offset, found), found)
    assert is_canonical(combined)
    assert {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in combined
        for offset in range(batch.first_offset, batch.last_offset + 1)
    } == expected
    for write in writes:  # any repetition
        assert combine_state_batches(combined, write, start_offset) == combined


def test_ten_thousand_batches_that_all_overlap_are_combined_soon() -> None:
    hostile = batches(*[(i, 20_000 - i, 0, i % 7) for i in range(10_000)])
    combined = combine_state_batches((), hostile, -1)
    assert is_canonical(combined)
    assert (combined[0].first_offset, combined[-1].last_offset) == (0, 20_000)
