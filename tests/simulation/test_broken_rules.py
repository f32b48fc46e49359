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

OF_KAFKA_TOO = (
    "the leader answers acknowledgements before their state is durable",
    "the leader forgets acknowledgements that it confirmed",
    "a record is given to two members",
    "the share coordinator forgets writes that it confirmed",
    "read_committed groups get all records",
)
"""Those whose way through the system is another one with the kafka engine. What producers, transactions, deletions and
disks may do wrong is the cluster's there; the other rules are of leaders and members alone."""


def first_found(bugs: Sequence[PlantedBug]) -> list[str]:
    """The name of the first bug of a feature that a few seeds find; none where all are rare."""
    return [bug.name for bug in bugs if bug.engine == EMBEDDED and bug.seed in QUICK_SEEDS][:1]


RUNS = [(EMBEDDED, name) for bugs in PLANTED.values() for name in first_found(bugs)]
RUNS += [(KAFKA, name) for name in OF_KAFKA_TOO]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("engine", "name"), RUNS)
def test_a_planted_bug_is_found(engine: str, name: str) -> None:
    bug = replace(BY_NAME[name], engine=engine)
    found = search(bug, [*([] if bug.seed is None else [bug.seed]), *SEEDS])
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
