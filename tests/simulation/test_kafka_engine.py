"""The kafka engine under simulation: seeded histories, rules broken on purpose, and what only an existing cluster does.

The seeds are those of `test_seeds`, with brokers, several coordinators and roles without disks. In the end of each seed
every process of kshare dies at once, and all begin with nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from support.simulation.cluster import KAFKA
from support.simulation.faults import Fault
from support.simulation.mutations.fenced_logs import PLANTED
from support.simulation.mutations.planted_bug import PlantedBug
from support.simulation.plan import draw_kafka_plan
from support.simulation.scenario import SeedRun, run_seed

DEFAULT_SEEDS = 10
"""The tenth showed an owner that took a high watermark that was behind for lost records."""
SEEDS = range(1, 31)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "simulated_seed" in metafunc.fixturenames:
        single = metafunc.config.getoption("--seed")
        count = metafunc.config.getoption("--seeds") or DEFAULT_SEEDS
        metafunc.parametrize("simulated_seed", [single] if single is not None else range(1, count + 1))


def test_a_seed_breaks_no_rule(simulated_seed: int) -> None:
    outcome = run_seed(simulated_seed, engine=KAFKA)
    assert not outcome.failed, (
        f"{outcome.report()}\nagain: python -m support.simulation --engine kafka --seed {simulated_seed} --trace"
    )


def test_one_seed_gives_one_history() -> None:
    first, second = run_seed(3, engine=KAFKA), run_seed(3, engine=KAFKA)
    assert first.history.lines() == second.history.lines()
    assert run_seed(4, engine=KAFKA).digest != first.digest


def stale_owners() -> list[Fault]:
    """One owner after the other is replaced while its requests are under way."""
    owners = ("share-coordinator-1", "coordinator-1", "share-coordinator-2", "coordinator-2")
    return [Fault(4.0 + 18 * number, "stale-owner", (owner,), 16.0, 9.0) for number, owner in enumerate(owners)]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    for seed in SEEDS:
        plan = draw_kafka_plan(seed)
        shape = replace(plan.shape, share_coordinators=2, coordinators=2, brokers=3)
        # Nodes that come and go would replace owners as well, and not while their writes are in flight.
        plan = replace(plan, shape=shape, activities=(), fault_seconds=76.0, records=800)
        outcome = SeedRun(plan, bug.mutation(), faults=stale_owners()).run()
        if set(bug.rules) & {violation.rule for violation in outcome.violations}:
            return
    raise AssertionError(f"{len(SEEDS)} seeds did not notice that {bug.name}")
