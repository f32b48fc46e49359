"""All hosts lose their power at once at the end of a seed: what a role confirmed before its disk had it is found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from support.simulation.cluster import EMBEDDED, KAFKA
from support.simulation.mutations import Mutation
from support.simulation.plan import Plan, draw_plan
from support.simulation.scenario import Outcome, SeedRun
from support.simulation.swarm import draw_swarm_plan


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def calm_plan(*, loses_power: bool) -> Plan:
    return replace(
        draw_plan(1), records=40, transactions=4, fault_count=0, fault_seconds=3.0, loses_power_at_end=loses_power
    )


def outcome_of(plan: Plan, *unsynced_roles: str) -> Outcome:
    return SeedRun(plan, Mutation(unsynced_roles=unsynced_roles), faults=[]).run()


@pytest.mark.parametrize(
    ("role", "rule"),
    [
        ("leader", "produced and confirmed, but lost"),
        ("share-coordinator", "delivered after its confirmation"),
        ("coordinator", "confirmed, and gone after a power loss"),
    ],
)
def test_a_disk_that_lies_about_its_syncs_is_found(role: str, rule: str) -> None:
    assert rule in {violation.rule for violation in outcome_of(calm_plan(loses_power=True), role).violations}


def test_without_the_power_loss_no_fault_shows_that_the_disks_lie() -> None:
    outcome = outcome_of(calm_plan(loses_power=False), "leader", "share-coordinator", "coordinator")
    assert not outcome.failed, outcome.report()


def test_disks_that_sync_keep_all_that_was_confirmed() -> None:
    outcome = outcome_of(calm_plan(loses_power=True))
    assert not outcome.failed, outcome.report()
    deaths = [line for line in outcome.history.lines() if line.endswith("#1 dies")]
    assert len(deaths) == len(outcome.plan.shape.host_names())


def test_a_third_of_the_seeds_of_the_embedded_engine_lose_power_at_the_end() -> None:
    assert 80 < sum(draw_swarm_plan(seed, EMBEDDED).loses_power_at_end for seed in range(300)) < 120
    assert not any(draw_swarm_plan(seed, KAFKA).loses_power_at_end for seed in range(300))
