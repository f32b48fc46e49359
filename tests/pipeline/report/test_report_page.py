"""The report as Chromium shows it: each chart's figures are those of the marts, which were written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kshare.main import app
from kshare_pipeline.marts.definitions import MARTS
from kshare_pipeline.report.__main__ import main
from kshare_pipeline.report.figures import MART_NAMES, interval_of, read_figures
from kshare_pipeline.tables.layout import Layout
from support.environment.chromium import Element, opened, screenshot
from support.environment.page_layout import laid_out
from support.pipeline.example_marts import example_rows, write_example_marts, write_marts

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
    "members": [{"group": GROUP, "member_id": "m9", "client_id": "<worker>"}],
    "fairness": [
        {"group": GROUP, "minute": minute(0), "members": 9, "fairness": 0.8, "largest_share": 0.3},
        {"group": GROUP, "minute": minute(1), "members": 9, "fairness": None, "largest_share": None},
        {"group": GROUP, "minute": minute(2), "members": 2, "fairness": 0.5, "largest_share": 1.0},
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
        places = [f"{circle.attributes['cx']},{circle.attributes['cy']}" for circle in circles]
        assert " ".join(path.attributes["points"] for path in line.all("polyline")).split() == places
        found[line.attributes["data-series"]] = [float(circle.attributes["data-value"]) for circle in circles]
    return found


def heights_follow_values(marks: Sequence[tuple[float, float]]) -> None:
    """(value, length in the picture): all lengths have the same ratio to their value."""
    ratios = [length / value for value, length in marks if value]
    assert max(ratios) - min(ratios) < 0.02 * max(ratios)


def test_the_verdict_names_each_group_with_its_figures(page: Element) -> None:
    (verdict,) = page.all("div", data_verdict="bad")
    assert verdict.one("p").text == "1 of 2 groups had records that nobody processed."
    assert [(item.one("a").text, item.own_text) for item in verdict.all("li")] == [
        (GROUP, ": 6 records (5.9 %) given up: 6 rejected by a member; 5 dead letters stored."),
        ("other", ": 1 record accepted, 100 % at the first delivery."),
    ]
    at = {one.attributes["id"]: one.attributes["data-group"] for one in page.all("section")}
    links = {link.attributes["href"].removeprefix("#"): link.text for link in page.one("nav").all("a")[1:]}
    assert links == at
    assert [item.one("span").text for item in section(page).one("ul").all("li")] == ["✗", "!", "!", "!", "✓"]
    assert "Data until 2026-11-20 10:02; this page was made" in page.one("header").text


def test_the_summary(page: Element) -> None:
    table = page.one("table", data_table="summary")
    head = [cell.text for cell in table.all("th")]
    rows = [[cell.text for cell in line.all("td")] for line in table.one("tbody").all("tr")]
    (mine,) = [dict(zip(head, row, strict=True)) for row in rows if row[0] == GROUP]
    assert mine == {
        "group": GROUP,
        "delivered": "120",
        "accepted": "95",
        "released": "10",
        "rejected": "5",
        "lock expired": "10",
        "did not reach": "0",
        "dead letters": "5",
        "half within": "12 ms",
        "99 % within": "77 ms",
        "lost events": "4",
    }


def test_lines(page: Element) -> None:
    latency = line_values(page, "latency")
    assert latency == {"half of the records": [10, 15.5], "90 %": [20, 30], "99 %": [40, 80]}
    assert line_values(page, "fairness") == {"evenness": [0.8, 0.5]}
    # Both share-partitions have 7 and 5; then one has 2; what is not known changes nothing.
    assert line_values(page, "window") == {"records": [12, 7]}
    assert line_values(page, "age") == {"wait": [300, 50]}
    throughput = line_values(page, "throughput")
    assert throughput["<worker> (m9)"] == [9, 19]
    assert throughput["member m8"] == [8, 18]
    assert throughput["all others"] == [1 + 2, 11 + 12]
    assert len(throughput) == 8
    circles = section(page).one("figure", data_chart="latency").all("circle")
    assert circles[0].text == "half of the records, 2026-11-20 10:00: 10 ms"
    bottom = 220 - 28
    heights_follow_values([(float(c.attributes["data-value"]), bottom - float(c.attributes["cy"])) for c in circles])


def test_no_line_is_drawn_across_minutes_without_data(page: Element) -> None:
    """Fairness has minutes 0 and 2, and is not known in minute 1."""
    paths = section(page).one("figure", data_chart="fairness").all("polyline")
    assert [len(path.attributes["points"].split()) for path in paths] == [1, 1]
    joined = section(page).one("figure", data_chart="latency").all("polyline")
    assert [len(path.attributes["points"].split()) for path in joined] == [2, 2, 2]


def test_shares_of_how_deliveries_ended(page: Element) -> None:
    figure = section(page).one("figure", data_chart="redelivery")
    assert {bar.attributes["data-bar"]: parts(bar) for bar in figure.all("g", class_="bar")} == {
        "1st delivery": [("accepted", 80), ("released", 10), ("lock expired", 10)],
        "2nd delivery": [("accepted", 15), ("rejected", 5)],
    }
    for bar in figure.all("g", class_="bar"):
        marks = [(float(r.attributes["data-value"]), float(r.attributes["width"])) for r in bar.all("rect")]
        heights_follow_values(marks)
        assert sum(width for _, width in marks) == pytest.approx(480, abs=0.1), "each bar is as wide as the chart"


def parts(bar: Element) -> list[tuple[str, float]]:
    return [(rect.attributes["data-part"], float(rect.attributes["data-value"])) for rect in bar.all("rect")]


def test_given_up_records_by_reason_with_examples(page: Element) -> None:
    (reason,) = section(page).all("div", data_reason="rejected")
    assert reason.one("h4").text == "Rejected by a member: 6 records"
    assert reason.all("p")[0].text == "Dead letters: 5 of orders in dlq."
    (row,) = reason.one("tbody").all("tr")
    cells = [cell.text for cell in row.all("td")]
    assert cells == ["orders, partition 3", "40 to 44 (5 records)", "2nd delivery", "2026-11-20 10:01:00"]
    assert reason.one("code").text == "kshare peek orders --partition 3 --offset 40 --max 5"
    assert section(page).all("p")[-1].text.endswith("3 acknowledged as a gap by a member.")


def test_a_group_without_anything_else_has_empty_charts(page: Element) -> None:
    figures = page.one("section", data_group="other").all("figure")
    assert [bool(figure.all("svg")) for figure in figures] == [False, False, False, False, True]


def test_the_page_fits_a_phone_light_and_dark(tmp_path: Path) -> None:
    write_example_marts(tmp_path)
    output = tmp_path / "page.html"
    assert main(["--data-dir", str(tmp_path), "--output", str(output)]) == 0
    light, dark = laid_out(output, tmp_path, 360)
    for one in (light, dark):
        assert one.faults == [] and one.width <= 360, "nothing is cut off, overlaps or has to be scrolled"
        assert one.smallest_text_px > 9.5
    assert light.back == "rgb(255, 255, 255)" and dark.back == "rgb(20, 23, 27)"


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
    assert set(MART_NAMES) == set(MARTS) == set(example_rows(DAY))


@pytest.mark.parametrize(
    ("hours", "expected_s"), [(0, 60), (3, 60), (7, 120), (24, 600), (24 * 7, 3600), (24 * 365, 86_400)]
)
def test_long_times_are_summed_up(hours: int, expected_s: int) -> None:
    assert interval_of([TEN, TEN + timedelta(hours=hours)]).seconds == expected_s
