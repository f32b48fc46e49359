"""Without a crash, an acknowledgement that is answered with an error took no effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.simulation.cluster import ENGINES, KAFKA
from support.simulation.faults import Fault
from support.simulation.moving_partitions import HOSTS, SLOW_S, MovingRun, check, moving_plan
from support.simulation.scenario import SeedRun

SHARE_COORDINATOR = "share-coordinator-1"


@pytest.mark.parametrize("seed", range(1, 4))
def test_while_partitions_move(seed: int) -> None:
    """State writes take as long as the fence of a move, so that moves meet writes in flight."""
    run = MovingRun(moving_plan(seed), rounds=6, slow_hosts=(*HOSTS, SHARE_COORDINATOR))
    check(run.run())
    assert run.switches == 6


class SlowStateWrites(SeedRun):
    """A run in which a state write takes up to SLOW_S on each way."""

    async def _let_faults_happen(self) -> None:
        latency = self.cluster.fabric.conditions.link_latency
        for leader in ("leader-1", "leader-2"):
            latency[leader, SHARE_COORDINATOR] = latency[SHARE_COORDINATOR, leader] = SLOW_S
        await super()._let_faults_happen()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("host", ["leader-1", "gateway-1", SHARE_COORDINATOR])
def test_while_nodes_are_stopped(host: str, engine: str) -> None:
    faults = [Fault(0.5 + number, "stop", (host,), duration=0.2) for number in range(5)]
    plan = moving_plan(4, fault_seconds=6.0)
    if engine == KAFKA:
        plan = replace(plan, shape=replace(plan.shape, engine=KAFKA, brokers=3))
    outcome = SlowStateWrites(plan, faults=faults).run()
    assert not outcome.failed, outcome.report()
