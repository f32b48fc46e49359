"""The rules of consumer groups on histories of a few events."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode
from support.simulation.evidence import Evidence, Expectations
from support.simulation.history import CommitAnswered, CommitSent, CommittedRead, CommitTryLost, Event, History
from support.simulation.rules.committed_offsets import committed_offsets_survive


def sent(time: float, number: int, offset: int, *, is_forged: bool = False, is_aborted: bool = False) -> CommitSent:
    return CommitSent(time, number, "c", "m", 0, offset, is_forged, is_aborted)


def read(time: float, offset: int) -> CommittedRead:
    return CommittedRead(time + 0.1, time, "c", 0, offset)


def lost(time: float, offset: int) -> CommitTryLost:
    return CommitTryLost(time, "c", 0, offset)


def answered(time: float, number: int, code: int = 0) -> CommitAnswered:
    return CommitAnswered(time, number, code)


def broken(*events: Event) -> list[str]:
    history = History()
    for event in events:
        history.add(event)
    expectations = Expectations(groups=(), logs={}, delivery_count_limit=5, lock_duration_s=1.0)
    return [violation.rule for violation in committed_offsets_survive(Evidence(history, expectations))]


FIRST = (sent(1, 1, 5), answered(1.1, 1))


def test_what_was_committed_last_is_read() -> None:
    assert broken(read(0, -1), *FIRST, read(2, 5), sent(3, 2, 9), answered(3.1, 2), read(4, 9)) == []


@pytest.mark.parametrize("offset", [-1, 4, 6])
def test_anything_else_is_a_lost_commit(offset: int) -> None:
    assert broken(*FIRST, read(2, offset)) == ["a commit was lost"]


def test_an_older_commit_is_a_lost_one() -> None:
    assert broken(*FIRST, sent(3, 2, 9), answered(3.1, 2), read(4, 5)) == ["a commit was lost"]


def test_a_commit_without_an_answer_may_count_or_not() -> None:
    assert broken(*FIRST, sent(3, 2, 9), read(4, 5)) == []
    assert broken(*FIRST, sent(3, 2, 9), read(4, 9)) == []
    assert broken(*FIRST, sent(3, 2, 9), answered(3.5, 2, ErrorCode.REQUEST_TIMED_OUT), read(4, 9)) == []


def test_a_refused_commit_does_not_count() -> None:
    refused = answered(3.1, 2, ErrorCode.STALE_MEMBER_EPOCH)
    assert broken(*FIRST, sent(3, 2, 9), refused, read(4, 9)) == ["a commit was lost"]
    assert broken(*FIRST, sent(3, 2, 9), refused, read(4, 5)) == []


def test_a_commit_that_was_repeated_before_it_was_refused_may_count_or_not() -> None:
    refused = (lost(3.05, 9), answered(3.1, 2, ErrorCode.UNKNOWN_MEMBER_ID))
    assert broken(*FIRST, sent(3, 2, 9), *refused, read(4, 9)) == []
    assert broken(*FIRST, sent(3, 2, 9), *refused, read(4, 5)) == []
    assert broken(*FIRST, sent(3, 2, 9), *refused, read(4, 7)) == ["a commit was lost"]


def test_a_commit_that_was_repeated_may_arrive_again_after_a_newer_one() -> None:
    """Seed 811270189. Only that one may: each commit's own tries count."""
    newer = (sent(3, 2, 9), answered(3.1, 2))
    assert broken(sent(1, 1, 5), lost(1.05, 5), answered(1.1, 1), *newer, read(4, 5)) == []
    assert broken(*FIRST, lost(1.2, 5), *newer, read(4, 5)) == ["a commit was lost"]
    assert broken(*FIRST, lost(1.05, 4), *newer, read(4, 5)) == ["a commit was lost"]


def test_a_commit_goes_back_only_behind_one_of_unknown_outcome() -> None:
    later = (sent(3, 2, 9), answered(3.1, 2), sent(4, 3, 7), answered(4.1, 3))
    assert broken(*FIRST, *later) == ["a commit went back"]
    assert broken(*FIRST, sent(2, 9, 6), *later) == []


def test_what_is_committed_behind_such_a_late_arrival_is_read() -> None:
    """Seed 41140505: the next member began at the older offset, and commits from there."""
    late = (sent(1, 1, 5), lost(1.05, 5), answered(1.1, 1), sent(2, 2, 9), answered(2.1, 2), read(3, 5))
    assert broken(*late, sent(4, 3, 6), answered(4.1, 3), read(5, 6)) == []
    assert broken(*late, sent(4, 3, 6), answered(4.1, 3), sent(4.2, 4, 7), answered(4.3, 4), read(5, 6)) == [
        "a commit was lost"
    ]
    assert broken(*late, sent(4, 3, 6), answered(4.1, 3), read(5, 9)) == ["a commit was lost"]


def test_a_forged_commit_changes_nothing() -> None:
    forged = sent(2, 2, 1_000_000, is_forged=True)
    assert broken(*FIRST, forged, read(4, 1_000_000)) == ["a commit was lost"]
    assert broken(*FIRST, forged, answered(2.1, 2)) == ["a forged commit was taken"]
    assert broken(*FIRST, forged, answered(2.1, 2, ErrorCode.UNKNOWN_MEMBER_ID), read(4, 5)) == []


def test_a_commit_of_an_aborted_transaction_changes_nothing() -> None:
    aborted = sent(2, 2, 500_006, is_aborted=True)
    assert broken(*FIRST, aborted, read(4, 5)) == []
    assert broken(*FIRST, aborted, read(4, 500_006)) == ["an aborted commit was found", "a commit was lost"]
    later = (sent(5, 3, 9), answered(5.1, 3), sent(6, 4, 7), answered(6.1, 4))
    assert broken(*FIRST, aborted, *later) == ["a commit went back"], "it explains nothing"


def test_a_transaction_that_took_too_long_was_aborted() -> None:
    late = (sent(3, 2, 9), answered(3.1, 2, ErrorCode.INVALID_PRODUCER_EPOCH))
    assert broken(*FIRST, *late, read(4, 5)) == []
    assert broken(*FIRST, *late, read(4, 9)) == ["a commit was lost"]
