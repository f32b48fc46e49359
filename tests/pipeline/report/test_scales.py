"""The axes of the report's charts: round ticks, and outliers that do not flatten the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from kshare_pipeline.report.charts import Line, line_chart
from kshare_pipeline.report.scales import count_scale, duration_scale, nice_top, time_label, time_ticks
from support.environment.chromium import parsed

SIX = datetime(2026, 11, 20, 6, 7, tzinfo=UTC)
OUTLIER_MS = 265_052.0


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.01, 2), (3, 5), (77, 100), (1000, 1000), (0.3, 0.5)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_one_outlier_does_not_flatten_durations() -> None:
    scale = duration_scale([40.0] * 50 + [80.0] * 50 + [OUTLIER_MS])
    assert scale.is_logarithmic and not scale.is_outlier(OUTLIER_MS)
    assert scale.part(80) - scale.part(40) > 0.05
    assert [scale.label(tick) for tick in scale.ticks] == ["10 ms", "100 ms", "1 s", "10 s", "1 m", "10 m"]


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (0.0, ["0 ms", "0.01 ms"]),
        (80.0, ["0 ms", "20 ms", "40 ms", "60 ms", "80 ms"]),
        (3_700.0, ["0 ms", "1 s", "2 s", "3 s", "4 s"]),
        (100_000.0, ["0 ms", "30 s", "1 m", "1 m 30 s", "2 m"]),
        (3 * 86_400_000.0, ["0 ms", "1 d", "2 d", "3 d"]),
    ],
)
def test_durations_have_ticks_in_their_units(highest: float, labels: list[str]) -> None:
    scale = duration_scale([highest / 2, highest])
    assert [scale.label(tick) for tick in scale.ticks] == labels
    assert not scale.is_logarithmic


def test_durations_of_zero_have_an_axis_too() -> None:
    assert duration_scale([0, 0, 5]).part(0) == 0
    logarithmic = duration_scale([0, 1, 1, 1, 5000])
    assert logarithmic.is_logarithmic and logarithmic.part(0) == 0 and logarithmic.part(5000) < 1


def test_outliers_of_counts_are_marked_at_the_edge() -> None:
    values = [100.0] * 40 + [9_000.0]
    scale = count_scale(values)
    assert scale.ticks[-1] == 200 and scale.is_outlier(9_000) and scale.part(9_000) == 1
    points = [(SIX + timedelta(minutes=at), value) for at, value in enumerate(values)]
    chart = parsed(line_chart("c", "Counts", "records", [Line("m", points)], scale=count_scale))
    (mark,) = chart.all("polygon", class_="outlier")
    assert mark.attributes["data-value"] == "9000" and mark.text == "m, 2026-11-20 06:47: 9,000 records"
    assert chart.one("p", class_="note").text == "▲ 1 value lies above the axis; the highest is 9,000."


def test_counts_without_an_outlier_are_all_on_the_axis() -> None:
    assert count_scale([10, 20, 70]).ticks[-1] == 100
    assert count_scale([0, 0, 0, 3]).ticks[-1] == 5, "where most are zero, the highest is no outlier"
    assert count_scale([]).ticks[-1] == 1


@pytest.mark.parametrize("minutes", [1, 7, 33, 60, 200, 24 * 60, 40 * 60, 7 * 24 * 60, 90 * 24 * 60])
def test_ticks_of_time_are_round_and_even(minutes: int) -> None:
    last = SIX + timedelta(minutes=minutes)
    ticks = time_ticks(SIX, last)
    assert 1 <= len(ticks) <= 7 and all(SIX <= tick <= last for tick in ticks)
    assert len({later - earlier for earlier, later in pairwise(ticks)}) <= 1
    if minutes >= 200:
        assert len(ticks) >= 3 and all(tick.minute in (0, 30) for tick in ticks)


def test_midnight_is_labelled_with_its_day() -> None:
    midnight = datetime(2026, 11, 21, tzinfo=UTC)
    assert time_label(midnight, timedelta(days=2)) == "21 Nov"
    assert time_label(midnight, timedelta(hours=2)) == "00:00"
    assert time_label(SIX, timedelta(days=2)) == "06:07"
