"""When records were appended, with few entries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kshare_leader.log.append_times import ENTRIES_LIMIT, RESOLUTION_S, AppendTimes


def test_offsets_within_and_without_what_is_known() -> None:
    times = AppendTimes(10)
    assert times.at(10) is None
    times.note(15, 1.0)
    times.note(20, 2.0)
    assert [times.at(offset) for offset in (9, 10, 14, 15, 19, 20)] == [None, 1.0, 1.0, 2.0, 2.0, None]


def test_appends_within_the_resolution_share_an_entry() -> None:
    times = AppendTimes(0)
    times.note(5, 1.0)
    times.note(9, 1.0 + RESOLUTION_S / 2)
    times.note(12, 1.0 + RESOLUTION_S * 1.5)
    assert [times.at(offset) for offset in (0, 8, 9)] == [1.0, 1.0, 1.0 + RESOLUTION_S * 1.5]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3 * ENTRIES_LIMIT))
def test_what_is_known_is_never_later_than_the_append_and_the_newest_is_exact(counts: list[int]) -> None:
    times = AppendTimes(0)
    appended: list[float] = []
    for second, count in enumerate(counts):
        appended += [float(second)] * count
        times.note(len(appended), float(second))
    for offset, appended_at in enumerate(appended):
        found = times.at(offset)
        assert found is not None
        assert appended_at - len(counts) / ENTRIES_LIMIT * 2 - 2 <= found <= appended_at
    assert times.at(len(appended) - 1) == appended[-1]
    assert times.at(len(appended)) is None
