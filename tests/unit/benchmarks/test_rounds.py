"""Order and arithmetic of benchmark rounds: who runs when, what counts, and how ratios are made."""

from __future__ import annotations

import os
from collections.abc import Mapping

from benchmarks import report
from benchmarks.processor_time import processor_ms
from benchmarks.rounds import Spread, measure, order, ratios, spread
from support.environment.stolen_time import stolen_share

SYSTEMS = ["kafka", "ours", "single"]


def test_each_system_is_first_second_and_last_equally_often() -> None:
    orders = [order(SYSTEMS, number) for number in range(6)]
    for place in range(3):
        assert sorted(found[place] for found in orders) == sorted(SYSTEMS * 2)


def test_no_system_always_follows_the_same_other() -> None:
    orders = [order(SYSTEMS, number) for number in range(2)]
    for system in SYSTEMS:
        before = [found[found.index(system) - 1] for found in orders]
        assert len(set(before)) == 2, system


def test_the_warm_up_runs_everything_and_does_not_count() -> None:
    calls: list[tuple[str, str]] = []
    heard: list[tuple[int, str, str, float]] = []

    def sample(system: str, scenario: str) -> Mapping[str, float]:
        calls.append((scenario, system))
        return {f"{scenario} records/s": float(len(calls))}

    def hear(number: int, system: str, figure: str, value: float) -> None:
        heard.append((number, system, figure, value))

    samples = measure(SYSTEMS, ["produce", "share"], 2, sample, hear)
    assert calls == [
        *(("produce", system) for system in ("kafka", "ours", "single")),
        *(("share", system) for system in ("kafka", "ours", "single")),
        *(("produce", system) for system in ("single", "ours", "kafka")),
        *(("share", system) for system in ("single", "ours", "kafka")),
        *(("produce", system) for system in ("ours", "single", "kafka")),
        *(("share", system) for system in ("ours", "single", "kafka")),
    ]
    assert samples == {
        "produce records/s": {"ours": [8, 13], "single": [7, 14], "kafka": [9, 15]},
        "share records/s": {"ours": [11, 16], "single": [10, 17], "kafka": [12, 18]},
    }
    assert [line[0] for line in heard] == [0] * 6 + [1] * 6 + [2] * 6


def test_ratios_are_made_within_a_round_and_above_one_is_better() -> None:
    assert ratios("share-consume records/s", [200, 90], [100, 100]) == [2.0, 0.9]
    assert ratios("paced p50_ms", [2.0, 5.0], [1.0, 10.0]) == [0.5, 2.0]


def test_quartiles_leave_no_sample_out() -> None:
    assert spread([5, 1, 2, 4, 3]) == Spread(2, 3, 4)
    assert spread([7]) == Spread(7, 7, 7)
    assert spread([1, 1, 1, 1000]) == Spread(1, 1, 250.75)


def test_the_table_has_every_figure_with_its_quartiles_and_the_median_of_the_ratios() -> None:
    samples = {"produce records/s": {"kafka": [100.0, 200.0, 300.0], "ours": [100.0, 100.0, 600.0]}}
    assert report.table(samples, "kafka", ["kafka", "ours"]).splitlines() == [
        "| figure | kafka | ours | ratio |",
        "|---|---|---|---|",
        "| produce records/s | 200 [150 to 250] | 100 [100 to 350] | **x1.00** [0.75 to 1.50] |",
    ]


def test_a_figure_that_does_not_apply_to_a_system_is_a_dash_and_judges_nothing() -> None:
    samples = {"share-consume records/s": {"kafka": [100.0], "ours": [200.0]}}
    assert report.table(samples, "kafka", ["kafka", "direct", "ours"]).splitlines()[-1] == (
        "| share-consume records/s | 100 [100 to 100] | - | - | 200 [200 to 200] | **x2.00** [2.00 to 2.00] |"
    )
    assert list(report.verdicts(samples, "kafka", {("share-consume records/s", "direct"): 1.0})) == []


def test_a_target_is_judged_by_the_median_ratio() -> None:
    samples = {"produce records/s": {"kafka": [100.0, 100.0, 100.0], "ours": [300.0, 90.0, 90.0]}}
    targets = {("produce records/s", "ours"): 1.0, ("not measured /s", "ours"): 1.0}
    [(is_reached, line)] = report.verdicts(samples, "kafka", targets)
    assert not is_reached
    assert line == "produce records/s, ours: x0.90, target 1.00: MISSED"


def test_processor_time_grows_by_what_a_process_uses() -> None:
    before_ms = processor_ms(os.getpid())
    counted = 0
    while processor_ms(os.getpid()) < before_ms + 30:  # three ticks of the clock
        counted += 1
    assert counted


def test_stolen_time_is_a_share_of_all_that_passed() -> None:
    assert stolen_share((10, 1000), (30, 1400)) == 0.05
    assert stolen_share((10, 1000), (10, 1000)) == 0.0
