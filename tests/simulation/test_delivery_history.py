"""The delivery history of seeded runs agrees with what members and the network saw, with and without faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kshare_core.delivery_history import EventType
from support.simulation.cluster import EMBEDDED, KAFKA
from support.simulation.plan import DRAW_PLAN, MOVES, draw_plan
from support.simulation.rules.delivery_history import HistoryRun, problems_of
from support.simulation.scenario import SeedRun


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Roles log each fault."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_faults_everything_is_told(seed: int) -> None:
    run = HistoryRun(replace(draw_plan(seed), fault_count=0), faults=[])
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    rules = problems_of(run, may_lose=False)
    assert rules.problems == []
    assert rules.counts[EventType.ACCEPTED] and rules.counts[EventType.ACQUIRED]


@pytest.mark.parametrize(("engine", "seed"), [(EMBEDDED, 5), (EMBEDDED, 6), (EMBEDDED, 7), (KAFKA, 1), (KAFKA, 2)])
def test_with_faults_what_is_told_is_true(engine: str, seed: int) -> None:
    plan = DRAW_PLAN[engine](seed)
    if engine == EMBEDDED:  # partitions move between leaders, and the last events of a former one may come late
        plan = replace(plan, activities=(MOVES,), shape=replace(plan.shape, leaders=max(2, plan.shape.leaders)))
    run = HistoryRun(replace(plan, fault_count=10))
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    rules = problems_of(run, may_lose=True)
    assert rules.problems == []
    assert rules.counts[EventType.LOADED] > 1


def test_one_seed_gives_one_history() -> None:
    plan = replace(draw_plan(9), fault_count=4)
    first, second = HistoryRun(plan), HistoryRun(plan)
    assert first.run().digest == second.run().digest
    assert first.records == second.records != []


def test_a_full_buffer_does_not_delay_members() -> None:
    """Everything happens at the same virtual time as without a history."""
    plan = replace(draw_plan(10), fault_count=2)
    full = {"kshare.delivery.history.enable": "true", "kshare.delivery.history.buffer.bytes": "0"}
    with_history = replace(plan, shape=replace(plan.shape, configs={**plan.shape.configs, **full}))
    without, beside = SeedRun(plan).run(), SeedRun(with_history).run()
    assert not without.failed and without.history.lines() == beside.history.lines()
