"""Seeds whose leaders are two or three, between which partitions move at random while everything else goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.simulation.moving_partitions import MovingRun, check
from support.simulation.plan import Plan, draw_plan


def disturbed_plan(seed: int) -> Plan:
    plan = draw_plan(seed)
    shape = replace(plan.shape, leaders=2 + seed % 2)
    return replace(plan, shape=shape, records=min(plan.records, 400), fault_count=max(plan.fault_count, 3))


@pytest.mark.parametrize("seed", range(9_001, 9_007))
def test_a_seed_with_moves_and_faults(seed: int) -> None:
    run = MovingRun(disturbed_plan(seed))
    check(run.run())
    assert any(step.detail == "COMPLETE" for step in run.seen), "something moved"
