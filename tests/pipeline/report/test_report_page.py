"""The report as Chromium shows it: each chart's figures are those of the marts, which were written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from kshare.main import app
from kshare_pipeline.marts.definitions import MARTS
from kshare_pipeline.report.__main__ import main
from kshare_pipeline.report.charts import nice_top
from kshare_pipeline.report.figures import MART_NAMES, interval_of, read_figures
from kshare_pipeline.tables.layout import Layout
from support.environment.chromium import Element, opened, screenshot

DAY = date(2026, 11, 20)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
GROUP = 'work"<ers> & co'
OUTCOMES = ("accepted", "released", "rejected", "expired", "not_delivered")


def minute(number: int) -> datetime:
    return TEN + timedelta(minutes=number)


def counts(*values: int) -> dict[str, int]:
    return {f"{name}_records": value for name, value in zip(("acquired", *OUTCOMES), values, strict=True)}


def latency(number: int | None, p50: float | None, p90: float | None, p99: float | None) -> dict[str, Any]:
    when = {} if number is None else {"minute": minute(number)}
    return {"group": GROUP, **when, "p50_ms": p50, "p90_ms": p90, "p99_ms": p99}


def lag(number: int, partition: int, window: int | None, age: int | None) -> dict[str, Any]:
    place = {"group": GROUP, "topic_id": "T", "partition": partition, "minute": minute(number)}
    return {**place, "window_records": window, "oldest_first_delivery_ms": age}


ROWS: dict[str, list[dict[str, Any]]] = {
    "append_to_accept": [latency(0, 10, 20, 40), latency(1, 15.5, 30, 80), latency(2, None, None, None)],
    "append_to_accept_by_day": [latency(None, 12, 25, 77.25)],
    "redelivery": [
        {"group": GROUP, "delivery_count": 1, **counts(100, 80, 10, 0, 10, 0)},
        {"group": GROUP, "delivery_count": 2, **counts(20, 15, 0, 5, 0, 0)},
        {"group": "other", "delivery_count": 1, **counts(1, 1, 0, 0, 0, 0)},
    ],
    "workers": [
        {
            "group": GROUP,
            "minute": minute(number),
            "member_id": f"m{member}",
            **counts(0, number * 10 + member, 0, 0, 0, 0),
        }
        for number in (0, 1)
        for member in range(1, 10)
    ],
    "fairness": [
        {"group": GROUP, "minute": minute(0), "fairness": 0.8},
        {"group": GROUP, "minute": minute(1), "fairness": None},
        {"group": GROUP, "minute": minute(2), "fairness": 0.5},
    ],
    "lag": [lag(0, 0, 7, 100), lag(0, 1, 5, 300), lag(1, 0, 2, None), lag(2, 1, None, 50)],
    "poison_records": [
        {
            "group": GROUP,
            "topic": "orders",
            "partition": 3,
            "first_offset": 40,
            "last_offset": 44,
            "records": 5,
            "delivery_count": 2,
            "reason": "rejected",
            "time": minute(1),
        }
    ],
    "dead_letters": [
        {"group": GROUP, "topic": "orders", "dead_letter_topic": "dlq", "reason": "rejected", "records": 5}
    ],
    "archived": [
        {"group": GROUP, "topic": "orders", "reason": "rejected", "records": 5},
        {"group": GROUP, "topic": "mails", "reason": "rejected", "records": 1},
        {"group": GROUP, "topic": "orders", "reason": "gap", "records": 3},
    ],
    "completeness": [{"group": GROUP, "topic": "orders", "events": 50, "missing_events": 4}],
}


def write_marts(folder: Path, day: date, rows: dict[str, list[dict[str, Any]]]) -> None:
    for name in MART_NAMES:
        path = Layout(folder).mart_file(name, day)
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(rows[name]), path)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Element:
    """What `kshare report` wrote, opened."""
    folder = tmp_path_factory.mktemp("report")
    write_marts(folder / "data", DAY, ROWS)
    output = folder / "report.html"
    result = CliRunner().invoke(app, ["report", "--data-dir", str(folder / "data"), "--output", str(output)])
    assert result.exit_code == 0, result.output
    return opened(output, folder)


def section(page: Element) -> Element:
    return page.one("section", data_group=GROUP)


def line_values(page: Element, chart: str) -> dict[str, list[float]]:
    """Of each line, its figures; the points of the line lie where the circles do."""
    found = {}
    for line in section(page).one("figure", data_chart=chart).all("g"):
        circles = line.all("circle")
        places = " ".join(f"{circle.attributes['cx']},{circle.attributes['cy']}" for circle in circles)
        assert line.one("polyline").attributes["points"] == places
        found[line.attributes["data-series"]] = [float(circle.attributes["data-value"]) for circle in circles]
    return found


def heights_follow_values(marks: Sequence[tuple[float, float]]) -> None:
    """(value, length in the picture): all lengths have the same ratio to their value."""
    ratios = [length / value for value, length in marks if value]
    assert max(ratios) - min(ratios) < 0.02 * max(ratios)


def test_the_summary(page: Element) -> None:
    table = page.one("table", data_table="summary")
    head = [cell.text for cell in table.all("th")]
    (row, other) = [[cell.text for cell in line.all("td")] for line in table.one("tbody").all("tr")]
    assert other[0] == GROUP if row[0] == "other" else row[0] == GROUP
    mine = dict(zip(head, row if row[0] == GROUP else other, strict=True))
    assert mine == {
        "group": GROUP,
        "acquired": "120",
        "accepted": "95",
        "released": "10",
        "rejected": "5",
        "expired": "10",
        "not_delivered": "0",
        "archived": "9",
        "dead letters": "5",
        "p50 ms": "12",
        "p99 ms": "77.250",
        "events missing": "4",
    }


def test_lines(page: Element) -> None:
    assert line_values(page, "latency") == {"p50": [10, 15.5], "p90": [20, 30], "p99": [40, 80]}
    assert line_values(page, "fairness") == {"Jain's index": [0.8, 0.5]}
    # Both share-partitions have 7 and 5; then one has 2; what is not known changes nothing.
    assert line_values(page, "window") == {"window": [12, 7]}
    assert line_values(page, "age") == {"age": [300, 50]}
    throughput = line_values(page, "throughput")
    assert throughput["m9"] == [9, 19]
    assert throughput["all others"] == [1 + 2, 11 + 12]
    assert len(throughput) == 8
    first = section(page).one("figure", data_chart="latency").all("circle")[0]
    assert first.text == "p50, 2026-11-20 10:00: 10 ms"
    bottom = 240 - 28
    circles = section(page).one("figure", data_chart="latency").all("circle")
    heights_follow_values([(float(c.attributes["data-value"]), bottom - float(c.attributes["cy"])) for c in circles])


def test_bars(page: Element) -> None:
    figure = section(page).one("figure", data_chart="redelivery")
    assert {bar.attributes["data-bar"]: parts(bar) for bar in figure.all("g", class_="bar")} == {
        "delivery 1": [("accepted", 80), ("released", 10), ("expired", 10)],
        "delivery 2": [("accepted", 15), ("rejected", 5)],
    }
    bars = figure.all("rect")
    heights_follow_values([(float(r.attributes["data-value"]), float(r.attributes["height"])) for r in bars])
    first = figure.all("g", class_="bar")[0].all("rect")
    for lower, upper in pairwise(first):
        top_of_lower = float(lower.attributes["y"])
        bottom_of_upper = float(upper.attributes["y"]) + float(upper.attributes["height"])
        assert bottom_of_upper == pytest.approx(top_of_lower, abs=0.02), "they lie on each other"
    ended = section(page).one("figure", data_chart="dead-letters")
    assert {bar.attributes["data-bar"]: parts(bar) for bar in ended.all("g", class_="bar")} == {
        "archived: gap": [("archived", 3)],
        "archived: rejected": [("archived", 6)],
        "dlq: rejected": [("dead letter", 5)],
    }


def parts(bar: Element) -> list[tuple[str, float]]:
    return [(rect.attributes["data-part"], float(rect.attributes["data-value"])) for rect in bar.all("rect")]


def test_records_that_no_member_could_process(page: Element) -> None:
    rows = section(page).one("table", data_table="poison").one("tbody").all("tr")
    assert [[cell.text for cell in row.all("td")] for row in rows] == [
        ["orders", "3", "40", "44", "5", "2", "rejected", "2026-11-20 10:01:00"]
    ]


def test_a_group_without_anything_else_has_empty_charts(page: Element) -> None:
    figures = page.one("section", data_group="other").all("figure")
    assert [bool(figure.all("svg")) for figure in figures] == [False, False, False, False, False, True, False]


def test_the_page_needs_nothing_else(page: Element, tmp_path: Path) -> None:
    write_marts(tmp_path, DAY, ROWS)
    output = tmp_path / "page.html"
    assert main(["--data-dir", str(tmp_path), "--output", str(output), "--group", "other"]) == 0
    text = output.read_text()
    assert not re.search(r"https?:|//|<script|<link|@import|url\(", text.replace("<!DOCTYPE html>", ""))
    shown = opened(output, tmp_path)
    assert [one.attributes["data-group"] for one in shown.all("section")] == ["other"]
    assert screenshot(output, tmp_path).startswith(b"\x89PNG")


def test_days_are_chosen_and_missing_ones_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_marts(tmp_path, DAY, ROWS)
    write_marts(tmp_path, DAY + timedelta(days=1), {name: [] for name in ROWS} | {"redelivery": ROWS["redelivery"][2:]})
    assert read_figures(Layout(tmp_path), first=DAY + timedelta(days=1)).groups() == ["other"]
    assert read_figures(Layout(tmp_path), last=DAY).days == [DAY]
    arguments = ["--data-dir", str(tmp_path), "--output", str(tmp_path / "page.html")]
    assert main([*arguments, "--since", "2027-01-01"]) == 1
    assert "they are from 2026-11-20 to 2026-11-21" in capsys.readouterr().err
    result = CliRunner().invoke(app, ["report", "--data-dir", str(tmp_path / "nowhere")])
    assert result.exit_code != 0 and "there are none" in str(result.exception)


def test_the_report_reads_all_marts() -> None:
    assert set(MART_NAMES) == set(MARTS)


@pytest.mark.parametrize(
    ("hours", "expected_s"), [(0, 60), (3, 60), (7, 120), (24, 600), (24 * 7, 3600), (24 * 365, 86_400)]
)
def test_long_times_are_summed_up(hours: int, expected_s: int) -> None:
    assert interval_of([TEN, TEN + timedelta(hours=hours)]).seconds == expected_s


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.01, 2), (3, 5), (77, 100), (1000, 1000), (0.3, 0.5)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)
