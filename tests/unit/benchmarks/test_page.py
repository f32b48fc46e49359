"""The page of `make bench-report`: every sample is in it, where the axis says, and it loads nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.page.__main__ import main, page
from benchmarks.page.plots import ratio_plot, sample_plot, size_plot
from benchmarks.rounds import Spread
from benchmarks.run_file import Run, read_run
from benchmarks.scaling.flatness import at_size
from support.environment.chromium import Element, parsed

KAFKA, OURS = "Apache <Kafka>", "ours & theirs"
SYSTEMS = [KAFKA, OURS]
COST = "scaling-groups servers' CPU, s per million records"
RUN = Run(
    described={"commit": "0123abc", "day": "2026-11-25"},
    baseline=KAFKA,
    systems=SYSTEMS,
    scenarios={
        "produce": ["produce records/s", "produce p50_ms"],
        "scaling-groups": [at_size(COST, 1), at_size(COST, 16)],
    },
    samples={
        "produce records/s": {KAFKA: [100.0, 300.0, 200.0], OURS: [50.0, 600.0, 400.0]},
        "produce p50_ms": {KAFKA: [2.0, 2.0, 2.0]},
        at_size(COST, 1): {KAFKA: [4.0, 4.0, 4.0], OURS: [1.0, 2.0, 3.0]},
        at_size(COST, 16): {KAFKA: [4.0, 5.0, 6.0], OURS: [2.0, 3.0, 8.0]},
    },
)


def values(element: Element, name: str, **attributes: str) -> list[float]:
    return [float(mark.attributes["data-value"]) for mark in element.all(name, **attributes)]


def test_each_scenario_has_its_plots_and_its_table() -> None:
    found = parsed(page([RUN]))
    produce, scaling = found.all("section")
    assert [figure.attributes["data-chart"] for figure in produce.all("figure")] == [
        "produce records/s",
        "produce p50_ms",
    ]
    assert [figure.attributes["data-chart"] for figure in scaling.all("figure")] == [COST]
    rows = [[cell.text for cell in row.all("td")] for row in produce.one("table").one("tbody").all("tr")]
    assert rows == [
        ["produce records/s", "200 [150 to 250]", "400 [225 to 500]", "x2.00 [1.25 to 2.00]"],
        ["produce p50_ms", "2.00 [2.00 to 2.00]", "-", "-"],
    ]
    assert "commit: 0123abc" in found.one("article").text


def test_the_flatness_of_each_system_is_in_the_overview() -> None:
    table = parsed(page([RUN])).one("table", data_table="flatness")
    assert [cell.text for cell in table.one("tbody").all("td")] == [COST, "1, 16", "x1.25", "x1.50"]


def test_a_plot_has_every_sample_at_its_height() -> None:
    plot = parsed(sample_plot("produce records/s", "higher is better", RUN.samples["produce records/s"], SYSTEMS))
    ours = plot.one("g", data_system=OURS)
    assert values(ours, "circle", class_="sample") == [50, 600, 400]
    assert values(ours, "rect") == [400]
    bottom = 220 - 28
    for dot in ours.all("circle"):
        height = bottom - float(dot.attributes["cy"])
        assert height == pytest.approx(float(dot.attributes["data-value"]) / 1000 * 176, abs=0.06)
    whisker = ours.one("line")
    assert float(whisker.attributes["y1"]) == pytest.approx(bottom - 88, abs=0.06), "the upper quartile is 500 of 1,000"
    assert float(whisker.attributes["y2"]) == pytest.approx(bottom - 39.6, abs=0.06), (
        "the lower quartile is 225 of 1,000"
    )


def test_a_series_is_a_line_of_medians_for_each_system() -> None:
    sizes = {1: RUN.samples[at_size(COST, 1)], 16: RUN.samples[at_size(COST, 16)]}
    plot = parsed(size_plot(COST, "lower is better", sizes, SYSTEMS))
    assert values(plot.one("g", data_system=KAFKA), "circle") == [4, 5]
    ours = plot.one("g", data_system=OURS)
    assert values(ours, "circle") == [2, 3]
    places = [f"{circle.attributes['cx']},{circle.attributes['cy']}" for circle in ours.all("circle")]
    assert ours.one("polyline").attributes["points"] == " ".join(places)
    assert ours.all("circle")[1].text == f"16: {OURS}: 3 [2.500 to 5.500]"


def test_ratios_of_half_and_double_lie_at_equal_distances_from_even() -> None:
    rows = {"half": {OURS: Spread(0.5, 0.5, 0.5)}, "even": {OURS: Spread(1, 1, 1)}, "double": {OURS: Spread(1, 2, 2)}}
    plot = parsed(ratio_plot("ratios", rows, SYSTEMS))
    half, even, double = (float(circle.attributes["cx"]) for circle in plot.all("circle"))
    assert even - half == pytest.approx(double - even, abs=0.1)
    assert even > half
    assert float(plot.one("line", class_="even").attributes["x1"]) == pytest.approx(even, abs=0.1)


def test_without_samples_a_plot_says_so() -> None:
    assert "no samples" in sample_plot("a", "", {}, SYSTEMS)
    assert "no samples" in size_plot("a", "", {1: {}, 2: {}}, SYSTEMS)
    assert "no samples" in ratio_plot("a", {"row": {}}, SYSTEMS)


def test_the_page_is_one_file_that_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, output = tmp_path / "first.json", tmp_path / "second.json", tmp_path / "below" / "page.html"
    RUN.write(first)
    RUN.write(second)
    assert read_run(first) == RUN
    assert main([str(first), str(second), "--output", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    text = output.read_text()
    assert not re.search(r"https?:|//|<script|<link|@import|url\(|<img", text.replace("<!DOCTYPE html>", ""))
    assert len(parsed(text).all("article")) == 2


def test_a_missing_file_and_one_of_another_kind_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none.json")])
    assert "none.json; make bench writes it" in capsys.readouterr().err
    older = tmp_path / "older.json"
    older.write_text(json.dumps({"run": {}, "samples": {}}))
    with pytest.raises(SystemExit, match=r"older\.json: has no 'described'"):
        main([str(older)])
