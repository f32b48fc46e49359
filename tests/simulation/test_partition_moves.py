"""Topic partitions move between leaders under load, and a role is killed at each step of a move."""

from __future__ import annotations

import pytest

from support.simulation.cluster import COORDINATOR
from support.simulation.moving_partitions import STEPS, MovingRun, Step, check, moving_plan

VICTIMS = {
    "coordinator": (COORDINATOR,),
    "source": ("leader-1",),
    "target": ("leader-2",),
    "everybody": (COORDINATOR, "leader-1", "leader-2"),
}


def test_there_and_back_without_a_crash() -> None:
    run = MovingRun(moving_plan(1), rounds=4)
    check(run.run())
    assert run.switches == 4
    assert set(STEPS) <= set(run.seen), "every step of the table is taken"
    assert all(run.seen[step] >= 4 for step in STEPS if step.method.name == "TransferPartition"), "in several pages"


@pytest.mark.parametrize("victims", VICTIMS)
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_move_is_complete_or_undone(step: Step, victims: str) -> None:
    run = MovingRun(moving_plan(2), step=step, victims=VICTIMS[victims])
    check(run.run())
    assert run.has_killed
