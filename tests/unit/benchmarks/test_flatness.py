"""Flatness: which figures belong to one series, what its factor is, and which verdict a target gets."""

from __future__ import annotations

from benchmarks.rounds import is_better_when_lower
from benchmarks.scaling import flatness
from benchmarks.scaling.flatness import at_size, factors, series

COST = "scaling-log servers' CPU, s per million records"
SAMPLES = {
    "100 B, four consumers records/s": {"kafka": [1.0], "ours": [2.0]},
    at_size(COST, 1_000): {"kafka": [3.0, 9.0, 2.0], "ours": [8.0, 8.0, 8.0]},
    at_size(COST, 20): {"kafka": [1.0, 2.0, 9.0], "ours": [4.0, 5.0, 90.0]},
    at_size(COST, 100): {"kafka": [2.5, 2.5, 2.5], "ours": [10.0, 1.0, 10.0]},
    at_size("single size records/s", 5): {"kafka": [1.0], "ours": [1.0]},
}


def test_a_series_has_the_sizes_of_one_figure_in_ascending_order() -> None:
    found = series(SAMPLES)
    assert list(found) == [COST]
    assert list(found[COST]) == [20, 100, 1_000]
    assert found[COST][100]["ours"] == [10.0, 1.0, 10.0]


def test_the_factor_is_the_largest_median_over_the_smallest_of_each_system() -> None:
    assert factors(series(SAMPLES)[COST]) == {"kafka": 1.5, "ours": 2.0}


def test_a_system_that_lacks_a_size_or_wrote_nothing_has_no_factor() -> None:
    sizes: flatness.Series = {
        1: {"kafka": [1.0], "direct": [1.0], "ours": [0.0]},
        2: {"kafka": [2.0], "ours": [5.0]},
    }
    assert factors(sizes) == {"kafka": 2.0}


def test_the_table_has_a_row_for_each_series_and_is_empty_without_any() -> None:
    assert flatness.table(SAMPLES, ["kafka", "direct", "ours"]).splitlines() == [
        "| largest median / smallest | sizes | kafka | direct | ours |",
        "|---|---|---|---|---|",
        f"| {COST} | 20, 100, 1,000 | x1.50 | - | x2.00 |",
    ]
    idle = "scaling-members without the drain servers' CPU, ms per second"
    grows = {at_size(idle, 0): {"kafka": [1.0]}, at_size(idle, 500): {"kafka": [9.0]}}
    assert idle in series(grows)
    assert flatness.table(grows, ["kafka"]) == "", "what idle members cost grows with their number"
    assert flatness.table({"produce records/s": {"kafka": [1.0]}}, ["kafka"]) == ""


def test_a_verdict_is_given_for_measured_figures_of_the_named_systems() -> None:
    targets = {COST: 1.6, "not measured": 1.3}
    assert list(flatness.verdicts(SAMPLES, targets, ["ours"])) == [
        (False, f"{COST}, ours: flat within x2.00, target 1.6: MISSED")
    ]
    assert list(flatness.verdicts(SAMPLES, {COST: 2.0}, ["ours"])) == [
        (True, f"{COST}, ours: flat within x2.00, target 2.0: reached")
    ]


def test_the_size_behind_a_name_does_not_change_what_is_better() -> None:
    assert is_better_when_lower(at_size(COST, 20))
    assert not is_better_when_lower(at_size("scaling-log records/s", 20))
