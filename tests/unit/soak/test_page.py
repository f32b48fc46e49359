"""The page of a soak: the verdict, every total, and the samples at their places."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest

from soak.page import POINTS, page
from soak.samples import Sample
from soak.verdict import Totals, Trend
from support.environment.chromium import parsed

BEGAN = datetime(2026, 11, 26, tzinfo=UTC)
FLAT = Trend("leader: memory, MB", 100.0, 101.0, 5.0, is_measured=True)
GROWING = Trend("leader: memory, MB", 100.0, 120.0, 5.0, is_measured=True)
UNMEASURED = Trend("leader: memory, MB", 0.0, 0.0, 0.0, is_measured=False)


def sample(at_s: float, p99_ms: float | None = 2.0) -> Sample:
    return Sample(
        at_s=at_s,
        memory_mb={"leader": 80.0 + at_s},
        descriptors={"leader": 40},
        disk_mb=7.0,
        delivered_per_s=200.0,
        p50_ms=1.0 if p99_ms is not None else None,
        p99_ms=p99_ms,
        backlog=3,
        pids={"leader": 7},
    )


def page_of(totals: Totals, trends: list[Trend], samples: list[Sample]) -> str:
    return page({"commit": "0123<abc>"}, asdict(totals), totals, trends, samples, BEGAN)


@pytest.mark.parametrize(
    ("totals", "trends", "verdict"),
    [
        (Totals(), [FLAT], "passed"),
        (Totals(), [FLAT, GROWING], "failed"),
        (Totals(lost=1), [FLAT], "failed"),
        (Totals(violations=["record 7 < 8"]), [FLAT], "failed"),
        (Totals(), [FLAT, UNMEASURED], "passed"),
        (Totals(), [FLAT, replace(UNMEASURED, is_required=True)], "failed"),
    ],
)
def test_the_verdict_stands_in_the_title(totals: Totals, trends: list[Trend], verdict: str) -> None:
    found = page_of(totals, trends, [sample(0.0)])
    assert f'kshare soak: <span class="{"good" if verdict == "passed" else "bad"}">{verdict}' in found
    assert "0123&lt;abc&gt;" in found
    assert ("record 7 &lt; 8" in found) is bool(totals.violations)


def test_every_chart_has_the_samples_and_a_look_without_deliveries_leaves_a_gap() -> None:
    drawn = parsed(page_of(Totals(), [FLAT], [sample(0.0), sample(5.0, None), sample(10.0, 9.0)]))
    latency = drawn.one("figure", data_chart="latency")
    assert [mark.attributes["data-value"] for mark in latency.all("circle")] == ["1", "1", "2", "9"]
    memory = drawn.one("figure", data_chart="memory")
    assert [mark.attributes["data-value"] for mark in memory.all("circle")] == ["80", "85", "90"]


def test_many_samples_are_combined_to_their_highest() -> None:
    samples = [sample(float(at), p99_ms=500.0 if at == 1 else 2.0) for at in range(POINTS * 4)]
    latency = parsed(page_of(Totals(), [FLAT], samples)).one("figure", data_chart="latency")
    values = [mark.attributes["data-value"] for mark in latency.all("circle")]
    assert len(values) == POINTS * 2
    assert "500" in values
