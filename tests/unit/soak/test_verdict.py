"""A figure that grows fails a soak; one that is only noisy, or grows in the warm-up, does not."""

from __future__ import annotations

import random

import pytest

from soak.verdict import LEAST_SAMPLES, Totals, trend

SAMPLES = 400


def noisy(level: float, growth: float) -> list[float]:
    """Samples around a level that grows by `growth` from the first to the last."""
    drawn = random.Random(1)
    return [level + growth * at / SAMPLES + drawn.uniform(-5, 5) for at in range(SAMPLES)]


@pytest.mark.parametrize(("growth", "flat"), [(0.0, True), (-50.0, True), (60.0, False), (200.0, False)])
def test_growth_is_told_from_noise(growth: float, flat: bool) -> None:
    assert trend("memory", noisy(100.0, growth)).is_flat is flat


def test_growth_in_the_warm_up_counts_for_nothing() -> None:
    assert trend("memory", [*range(100), *[100.0] * 300]).is_flat


def test_few_samples_are_not_judged() -> None:
    found = trend("memory", [float(at) for at in range(LEAST_SAMPLES - 1)])
    assert not found.is_measured
    assert found.is_flat
    assert not trend("memory", [1.0]).is_measured


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
