"""Seeded histories of the whole system: faults, then peace, then the account.

`--seeds N` runs seeds 1 to N (default 10), `--seed S` only S; see support.simulation for running many of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from support.simulation.cluster import EMBEDDED
from support.simulation.runner import run_seeds
from support.simulation.scenario import run_seed

DEFAULT_SEEDS = 10


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Roles log each fault; the trace says more."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "simulated_seed" in metafunc.fixturenames:
        single = metafunc.config.getoption("--seed")
        count = metafunc.config.getoption("--seeds") or DEFAULT_SEEDS
        metafunc.parametrize("simulated_seed", [single] if single is not None else range(1, count + 1))


def test_a_seed_breaks_no_rule(simulated_seed: int) -> None:
    outcome = run_seed(simulated_seed)
    assert not outcome.failed, (
        f"{outcome.report()}\nagain: python -m support.simulation --seed {simulated_seed} --trace"
    )


def test_a_run_that_raises_is_a_seed_that_failed_and_the_next_one_runs() -> None:
    raised, passed = run_seeds([("no engine", 7), (EMBEDDED, 1)], processes=1)
    assert (raised.seed, raised.failed, passed.failed) == (7, True, False)
    assert "no engine engine, seed 7: the run raised" in raised.report and "Error" in raised.report


@pytest.mark.parametrize("seed", [3, 4])
def test_one_seed_gives_one_history(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.history.lines() == second.history.lines()
    assert first.digest == second.digest
    assert run_seed(seed + 101).digest != first.digest
