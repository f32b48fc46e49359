"""Planted bugs must make the simulation fail within a few seeds; faults that the rules have to stand must not.

Here is one of each feature that the first seeds find; `make mutations` runs all of them over 200 seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from kshare_leader.node import LeaderNode
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from support.simulation.cluster import EMBEDDED, KAFKA
from support.simulation.hosts import Node, SimulatedHost
from support.simulation.mutations.catalogue import BY_NAME, HARMLESS, PLANTED
from support.simulation.mutations.planted_bug import PlantedBug
from support.simulation.mutations.search import search
from support.simulation.plan import draw_plan
from support.simulation.scenario import SeedRun, run_seed

QUICK_SEEDS = range(1, 4)
"""Of each feature, a bug that one of these finds is planted in each test run."""
SEEDS = range(1, 31)
"""Other seeds are tried where the known one does not find it any more, as after a change of the workload."""

OF_KAFKA_TOO = {
    "the leader answers acknowledgements before their state is durable": 4,
    "the leader forgets acknowledgements that it confirmed": 2,
    "a record is given to two members": 1,
    "the share coordinator forgets writes that it confirmed": 3,
    "read_committed groups get all records": 2,
}
"""Bugs whose way through the system is another one with the kafka engine, and the seed that finds each there.

What producers, transactions, deletions and disks may do wrong is the cluster's there; the other rules are of leaders
and members alone."""


def first_found(bugs: Sequence[PlantedBug]) -> list[str]:
    """The name of the first bug of a feature that a few seeds find; none where all are rare."""
    return [bug.name for bug in bugs if bug.engine == EMBEDDED and bug.seed in QUICK_SEEDS][:1]


RUNS = [(EMBEDDED, name, BY_NAME[name].seed) for bugs in PLANTED.values() for name in first_found(bugs)]
RUNS += [(KAFKA, name, seed) for name, seed in OF_KAFKA_TOO.items()]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("engine", "name", "known_seed"), RUNS)
def test_a_planted_bug_is_found(engine: str, name: str, known_seed: int) -> None:
    found = search(replace(BY_NAME[name], engine=engine), [known_seed, *SEEDS])
    assert found.seed is not None, f"{len(SEEDS)} seeds did not notice that {name}; they found {found.others}"


class SickLeader(LeaderNode):
    """Its health check reports something until the end."""

    def problems(self) -> list[str]:
        return ["planted"]


def test_a_node_that_is_not_healthy_after_all_faults_is_found() -> None:
    run = SeedRun(replace(draw_plan(1), records=20, fault_count=0), faults=[])
    host = run.cluster.hosts["leader-1"]
    build = host.build

    def build_sick(environment: Environment, network: Network, host: SimulatedHost) -> Node:
        node = build(environment, network, host)
        node.__class__ = SickLeader
        return node

    host.build = build_sick
    assert {violation.rule for violation in run.run().violations} == {"a node is not healthy"}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_fault_that_the_rules_stand_is_not_found(name: str, seed: int) -> None:
    outcome = run_seed(seed, HARMLESS[name]())
    assert not outcome.failed, outcome.report()
