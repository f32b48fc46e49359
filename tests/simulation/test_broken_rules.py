"""Rules that are broken on purpose must make the simulation fail within a few seeds; faults that are not, must not."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from support.simulation.faults import Fault
from support.simulation.mutations import BROKEN_RULES, HARMLESS
from support.simulation.plan import draw_plan
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
    "a record is given to two members": ("two holders", "delivered after its confirmation"),
    "the leader epoch of a write is not compared": ("state went back", "delivered after its confirmation"),
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


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", BROKEN_RULES)
def test_a_broken_rule_is_found(name: str) -> None:
    found: list[str] = []
    for seed in SEEDS:
        outcome = SeedRun(draw_plan(seed), BROKEN_RULES[name](), faults=FAULTS.get(name)).run()
        found.extend(violation.rule for violation in outcome.violations)
        if set(found) & set(SIGNS[name]):
            return
    raise AssertionError(f"{len(SEEDS)} seeds did not notice that {name}; they found {sorted(set(found))}")


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_fault_that_the_rules_stand_is_not_found(name: str, seed: int) -> None:
    outcome = run_seed(seed, HARMLESS[name]())
    assert not outcome.failed, outcome.report()
