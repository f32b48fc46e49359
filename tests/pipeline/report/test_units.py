"""Figures and words as people read them."""

from __future__ import annotations

from datetime import date

import pytest

from kshare_core.delivery_history import REASON_DELIVERY_COUNT_LIMIT
from kshare_pipeline.report.units import (
    count,
    counted,
    days_text,
    duration,
    member_text,
    offsets,
    ordinal,
    percent,
    reason_text,
)

MEMBER = "1e0d2f6a-6f55-4b3e-9d1c-0a4c7a1f2b3c"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "\u2013"),
        (0, "0 ms"),
        (0.41, "0.41 ms"),
        (7.25, "7.2 ms"),
        (850, "850 ms"),
        (999.6, "1 s"),
        (1_500, "1.5 s"),
        (12_000, "12 s"),
        (59_700, "1 m"),
        (265_052, "4 m 25 s"),
        (3_599_900, "1 h"),
        (7_500_000, "2 h 5 m"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations_have_at_most_two_units(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_counts_have_commas() -> None:
    assert [count(value) for value in (0, 12_345, 0.5, 1234.5, 2.0)] == ["0", "12,345", "0.5", "1,234", "2"]
    assert (counted(1, "record"), counted(12_345, "record")) == ("1 record", "12,345 records")


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 10, "0.0 %"),
        (1, 100_000, "less than 0.1 %"),
        (3, 1000, "0.3 %"),
        (1, 2, "50 %"),
        (994, 1000, "99.4 %"),
        (99_999, 100_000, "more than 99.9 %"),
        (7, 7, "100 %"),
        (0, 0, "\u2013"),
    ],
)
def test_a_few_are_never_shown_as_none(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


def test_members_are_named_by_their_client() -> None:
    assert member_text(MEMBER, {MEMBER: "billing-worker"}) == "billing-worker (1e0d2f6a)"
    assert member_text(MEMBER, {}) == "member 1e0d2f6a"
    assert member_text(None, {}) == "unknown member"


def test_words() -> None:
    assert reason_text(REASON_DELIVERY_COUNT_LIMIT) == "delivered as often as the group allows"
    assert reason_text("a_later_reason") == "a later reason"
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 22, 103)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "22nd", "103rd"]
    )
    assert (offsets(7, 7), offsets(1_000_007, 1_000_012)) == ("7", "1000007 to 1000012")


def test_days() -> None:
    first = date(2026, 11, 24)
    assert days_text(first, first) == "24 November 2026"
    assert days_text(first, date(2026, 11, 25)) == "24 to 25 November 2026"
    assert days_text(first, date(2026, 12, 2)) == "24 November to 2 December 2026"
    assert days_text(date(2026, 12, 31), date(2027, 1, 1)) == "31 December 2026 to 1 January 2027"
