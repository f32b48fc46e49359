"""Rules that are broken on purpose must make the simulation fail within a few seeds; faults that are not, must not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kshare_leader.node import LeaderNode
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from support.simulation.cluster import EMBEDDED, KAFKA
from support.simulation.faults import Fault
from support.simulation.hosts import Node, SimulatedHost
from support.simulation.mutations import BROKEN_RULES, HARMLESS
from support.simulation.plan import DRAW_PLAN, draw_plan
from support.simulation.scenario import SeedRun, run_seed

SEEDS = range(1, 31)

SIGNS = {
    "the share coordinator answers before its write is durable": (
        "delivered after its confirmation",
        "delivery count forgotten",
        "state went back",
        "not drained",
    ),
    "the leader answers a produce before it is durable": (
        "produced and confirmed, but lost",
        "not where the answer said",
        "delivered what is not in the log",
        "a bug came to light",
        "not drained",
    ),
    "the leader answers acknowledgements before their state is durable": (
        "delivered after its confirmation",
        "delivery count forgotten",
    ),
    "the leader forgets acknowledgements": ("delivered after its confirmation", "delivery count forgotten"),
    "a record is given to two members": ("two holders", "delivery count does not grow"),
    "a member's records are released although its session goes on": (
        "two holders",
        "acknowledgement refused without a reason",
    ),
    "a leader forgets who holds what": ("a lock was forgotten",),
    "every delivery counts as the first": ("delivery count does not grow",),
    "acknowledgements of what is held are refused": ("acknowledgement refused without a reason",),
    "the share coordinator forgets writes": ("a confirmed state was not stored",),
    "an exception is taken for a failing disk": ("a bug came to light",),
    "an unexpected error is only logged": ("a bug came to light",),
    "the leader epoch of a write is not compared": (
        "a write of an older leader epoch was stored",
        "state went back",
        "delivered after its confirmation",
    ),
    "read_committed groups get all records": ("an aborted record was delivered", "delivered before it was committed"),
    "some transactions end the other way": (
        "aborted, and yet committed",
        "committed, and yet aborted",
        "committed without being asked to",
        "half of a transaction",
    ),
    "deleted records are kept": ("the log start went back", "deleted, and delivered afterwards"),
    "dead letters are lost": ("given up without a dead letter",),
    "dead letters are appended again": ("two dead letters of one record",),
}
"""The rules of which one must be found broken."""


FAULTS = {
    "the leader epoch of a write is not compared": (
        Fault(1.0, "slow-link", ("leader-1", "share-coordinator-1"), duration=14.0, strength=0.3),
        *(Fault(3.0 + 2 * number, "crash", ("leader-1",), 0.1) for number in range(6)),
    ),
}
"""Instead of a seed's own, those that show it: state writes that arrive after their sender's end."""

OF_KAFKA_TOO = (
    "the leader answers acknowledgements before their state is durable",
    "the leader forgets acknowledgements",
    "a record is given to two members",
    "the share coordinator forgets writes",
    "read_committed groups get all records",
)
"""Those whose way through the system is another one with the kafka engine. What producers, transactions, deletions and
disks may do wrong is the cluster's there; the other rules are of leaders and members alone."""
RUNS = [(EMBEDDED, name) for name in BROKEN_RULES] + [(KAFKA, name) for name in OF_KAFKA_TOO]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("engine", "name"), RUNS)
def test_a_broken_rule_is_found(engine: str, name: str) -> None:
    found: list[str] = []
    for seed in SEEDS:
        outcome = SeedRun(DRAW_PLAN[engine](seed), BROKEN_RULES[name](), faults=FAULTS.get(name)).run()
        found.extend(violation.rule for violation in outcome.violations)
        if set(found) & set(SIGNS[name]):
            return
    raise AssertionError(f"{len(SEEDS)} seeds did not notice that {name}; they found {sorted(set(found))}")


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
