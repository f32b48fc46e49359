"""A figure that grows fails a soak; one that is only noisy, or grows in the warm-up, does not.

In a long run each figure has to be measured, and processes that no fault kills have figures of their own.
"""

from __future__ import annotations

import random

import pytest

from soak.samples import Sample
from soak.verdict import LEAST_SAMPLES, Spared, Totals, restarts_of_spared, trend, trends

SAMPLES = 400


def noisy(level: float, growth: float) -> list[float]:
    """Samples around a level that grows by `growth` from the first to the last."""
    drawn = random.Random(1)
    return [level + growth * at / SAMPLES + drawn.uniform(-5, 5) for at in range(SAMPLES)]


@pytest.mark.parametrize(("growth", "flat"), [(0.0, True), (-50.0, True), (60.0, False), (200.0, False)])
def test_growth_is_told_from_noise(growth: float, flat: bool) -> None:
    assert trend("memory", noisy(100.0, growth)).is_flat is flat


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_growth_in_steps_is_not_taken_for_noise(steps: int) -> None:
    height = 60.0 / steps
    values = [value + height * (at * (steps + 1) // SAMPLES) for at, value in enumerate(noisy(100.0, 0.0))]
    assert not trend("memory", values).is_flat


def test_growth_in_the_warm_up_counts_for_nothing() -> None:
    assert trend("memory", [*range(100), *[100.0] * 300]).is_flat


@pytest.mark.parametrize("count", [1, LEAST_SAMPLES - 1])
def test_few_samples_are_not_judged_and_fail_only_a_run_that_has_to_measure(count: int) -> None:
    values = [100.0] * count
    assert not trend("memory", values).is_measured
    assert trend("memory", values).passes
    assert not trend("memory", values, is_required=True).passes


def sample(at_s: float, memory_mb: float, pid: int = 7) -> Sample:
    return Sample(
        at_s=at_s,
        memory_mb={"leader": memory_mb, "leader-2": 50.0},
        descriptors={"leader": 40, "leader-2": 40},
        disk_mb=7.0,
        delivered_per_s=200.0,
        p50_ms=1.0,
        p99_ms=2.0,
        backlog=3,
        pids={"leader": pid, "leader-2": round(at_s)},
    )


def test_a_leak_that_kills_hide_is_found_in_the_half_in_which_a_process_is_spared() -> None:
    killed = [sample(float(at), 80.0 + at % 20) for at in range(SAMPLES)]
    spared = [sample(float(SAMPLES + at), 80.0 + at * 16 / SAMPLES) for at in range(SAMPLES)]
    found = {one.name: one for one in trends([*killed, *spared], Spared(["leader"], SAMPLES))}
    assert found["leader: memory, MB"].passes
    assert not found["leader: memory, MB, spared"].passes
    assert found["leader: descriptors, spared"].passes
    assert "leader-2: memory, MB, spared" not in found


def test_a_spared_process_may_have_more_memory_than_it_had_when_it_was_killed_again_and_again() -> None:
    killed = [sample(float(at), 80.0 + at % 5) for at in range(SAMPLES)]
    spared = [sample(float(SAMPLES + at), 100.0 + at % 5) for at in range(SAMPLES)]
    assert all(one.passes for one in trends([*killed, *spared], Spared(["leader"], SAMPLES)))


def test_a_long_run_has_to_measure_the_spared_processes() -> None:
    samples = [sample(float(at), 80.0) for at in range(SAMPLES)]
    late = {one.name: one.passes for one in trends(samples, Spared(["leader"], SAMPLES - 9))}
    assert late["leader: memory, MB"]
    assert not late["leader: memory, MB, spared"]
    assert all(one.passes for one in trends(samples[:9], None))


def test_a_spared_process_that_ends_is_a_violation() -> None:
    samples = [sample(float(at), 80.0, pid=8 if at < 5 else 9) for at in range(10)]
    assert restarts_of_spared(samples, Spared(["leader"], 5.0)) == []
    assert restarts_of_spared(samples, Spared(["leader"], 4.0)) == [
        "leader was spared, and ended nevertheless; its pids were 8, 9"
    ]


@pytest.mark.parametrize(
    "broken",
    [
        Totals(lost=1),
        Totals(settled_twice=1),
        Totals(redelivered_after_confirmation=1),
        Totals(aborted_delivered=1),
        Totals(violations=["a dead letter is missing"]),
    ],
)
def test_each_broken_promise_fails(broken: Totals) -> None:
    assert not broken.is_sound


def test_unconfirmed_answers_and_redeliveries_are_no_broken_promises() -> None:
    assert Totals(unconfirmed_accepts=3, redeliveries=9, without_answer=2).is_sound
