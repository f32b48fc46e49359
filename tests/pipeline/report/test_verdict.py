"""The verdict about a group: each rule at its threshold, with the figures in words."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from kshare_pipeline.report.figures import MART_NAMES, Figures
from kshare_pipeline.report.verdict import Level, Verdict, headline, verdict_of

OUTCOMES = ("accepted", "released", "rejected", "expired", "not_delivered")
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)


def figures(**rows: list[dict[str, Any]]) -> Figures:
    """Of group g; each delivery that is not told was accepted at first."""
    found = {name: [{"group": "g", **row} for row in rows.get(name, [])] for name in MART_NAMES}
    return Figures([date(2026, 11, 20)], found)


def deliveries(count: int = 1, **ended: int) -> dict[str, Any]:
    return {"delivery_count": count, **{f"{name}_records": ended.get(name, 0) for name in OUTCOMES}}


def texts(found: Verdict, level: Level) -> list[str]:
    return [finding.text for finding in found.findings if finding.level is level]


def test_a_group_that_is_well() -> None:
    latency = [{"p50_ms": 12.0, "p99_ms": 265_052.0}]
    redelivery = [deliveries(accepted=12_000), deliveries(2, accepted=345)]
    found = verdict_of(figures(redelivery=redelivery, append_to_accept_by_day=latency), "g")
    assert found.level is Level.GOOD
    assert texts(found, Level.GOOD) == [
        "12,345 records accepted, 97 % at the first delivery, half within 12 ms of their append and 99 % within"
        " 4 m 25 s."
    ]


@pytest.mark.parametrize(
    ("outcome", "wasted", "is_warned"),
    [("expired", 9, False), ("expired", 10, True), ("released", 49, False), ("not_delivered", 10, True)],
)
def test_wasted_deliveries_are_a_warning_from_a_share_on(outcome: str, wasted: int, is_warned: bool) -> None:
    redelivery = [deliveries(accepted=1000 - wasted, **{outcome: wasted})]
    found = verdict_of(figures(redelivery=redelivery), "g")
    assert (found.level is Level.WARNING) is is_warned
    if is_warned:
        assert texts(found, Level.WARNING)[0].startswith(f"1.0 % of deliveries ({wasted} of 1,000): ")


def test_given_up_and_deleted_records_are_bad() -> None:
    archived = [
        {"reason": "rejected", "records": 30},
        {"reason": "delivery_count_limit", "records": 7},
        {"reason": "below_log_start", "records": 5},
        {"reason": "gap", "records": 100},
    ]
    stored = [{"reason": "rejected", "records": 30}]
    found = verdict_of(figures(redelivery=[deliveries(accepted=963)], archived=archived, dead_letters=stored), "g")
    assert texts(found, Level.BAD) == [
        "37 records (3.7 %) given up: 30 rejected by a member, 7 delivered as often as the group allows;"
        " 30 dead letters stored.",
        "5 records deleted from the log (retention or DeleteRecords) before they were done.",
    ]
    assert found.findings[0].level is Level.BAD, "the worst comes first"


@pytest.mark.parametrize(("latest_ms", "is_behind"), [(59_000, False), (120_000, True)])
def test_a_group_that_falls_behind_at_the_end(latest_ms: int, is_behind: bool) -> None:
    ages = [*[1000] * 30, latest_ms]
    lag = [{"minute": TEN + timedelta(minutes=at), "oldest_first_delivery_ms": age} for at, age in enumerate(ages)]
    found = verdict_of(figures(redelivery=[deliveries(accepted=1)], lag=lag), "g")
    expected = ["At the end records waited up to 2 m for their first delivery; 1 s is usual."]
    assert texts(found, Level.WARNING) == (expected if is_behind else [])
    recovered = [*lag, {"minute": TEN + timedelta(hours=2), "oldest_first_delivery_ms": 1000}]
    assert verdict_of(figures(redelivery=[deliveries(accepted=1)], lag=recovered), "g").level is Level.GOOD


def test_uneven_work_needs_more_than_one_member() -> None:
    uneven = {"fairness": 0.3, "largest_share": 0.9}
    for members, level in ((1, Level.GOOD), (4, Level.WARNING)):
        found = verdict_of(figures(redelivery=[deliveries(accepted=1)], fairness=[uneven | {"members": members}]), "g")
        assert found.level is level
    assert "the busiest of 4 members accepts 90 %" in found.findings[0].text


def test_lost_events_and_nothing_accepted_are_warnings() -> None:
    found = verdict_of(figures(completeness=[{"events": 96, "missing_events": 4}]), "g")
    assert texts(found, Level.WARNING) == [
        "4 events of the history lost (4.0 %): the figures here lack what they would have told.",
        "No record was accepted.",
    ]


def test_the_headline_counts_groups() -> None:
    well = verdict_of(figures(redelivery=[deliveries(accepted=1)]), "g")
    warned = verdict_of(figures(), "g")
    bad = verdict_of(figures(archived=[{"reason": "rejected", "records": 1}]), "g")
    assert headline([well, well]).text == "All is well in 2 groups."
    assert headline([well, warned]).text == "No record was given up, but 1 of 2 groups should be looked at."
    assert headline([bad, warned, well]).level is Level.BAD
    assert headline([bad, warned]).text == (
        "1 of 2 groups had records that nobody processed; 1 other had wasted deliveries or gaps."
    )
