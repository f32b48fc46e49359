"""When a state log is marked and shortened."""

from __future__ import annotations

from kshare_share_coordinator.state_log.pruning import MARKS_LIMIT, LogLength, PruningPolicy

POLICY = PruningPolicy(mark_interval_ms=60_000, mark_interval_records=100, minimum_records=1_000)


def log(start_offset: int = 0, claimed_at: int = 0) -> LogLength:
    return LogLength(POLICY, start_offset, claimed_at, now_s=0.0)


def test_a_mark_is_due_after_records_or_time_and_only_with_new_records() -> None:
    length = log()
    assert not length.needs_mark(100, 59.0)
    assert length.needs_mark(101, 0.0)
    assert length.needs_mark(2, 60.0)
    assert not length.needs_mark(1, 3600.0)
    length.marked(101, 70.0)
    assert not length.needs_mark(102, 3600.0)
    assert not length.needs_mark(103, 129.0)
    assert length.needs_mark(103, 130.0)


def test_what_is_before_the_newest_mark_below_every_live_snapshot_can_go() -> None:
    length = log()
    for mark in (100, 200, 300):
        length.marked(mark, 0.0)
    assert length.deletable_before(50) is None
    assert length.deletable_before(250) == 200
    length.start_offset = 200
    assert length.deletable_before(250) is None
    assert length.deletable_before(None) == 300, "without a live state all of it can go"


def test_a_claim_is_a_mark() -> None:
    length = log(claimed_at=500)
    assert length.deletable_before(400) is None
    assert length.deletable_before(501) == 500


def test_a_log_is_too_long_by_what_it_holds() -> None:
    assert not log().is_too_long(1_000, 10)
    assert log().is_too_long(1_001, 10)
    assert not log().is_too_long(3_000, 1_500)
    assert log().is_too_long(3_001, 1_500)
    assert not log(start_offset=2_500).is_too_long(3_001, 1)


def test_a_log_that_stays_too_long_is_not_written_without_end() -> None:
    length = log()
    assert length.is_too_long(2_000, 10)
    assert not length.is_too_long(2_249, 10)
    assert length.is_too_long(2_250, 10)


def test_states_below_the_first_mark_of_the_newer_half_are_written_again() -> None:
    length = log()
    for mark in (100, 600, 800, 1_100):
        length.marked(mark, 0.0)
    assert length.cold_before(1_101, 10) == 800
    assert length.cold_before(1_300, 10) == 800
    assert length.cold_before(9_000, 10) == 1_100


def test_marks_are_limited() -> None:
    length = log()
    for mark in range(10, 10 * 3 * MARKS_LIMIT, 10):
        length.marked(mark, 0.0)
    assert len(length._marks) <= MARKS_LIMIT
    newest = 10 * 3 * MARKS_LIMIT - 10
    assert length.deletable_before(newest + 1) == newest
