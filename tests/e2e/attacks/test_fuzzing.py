"""A short run of hostile requests against real processes; `make test-hostile` has long ones."""

from __future__ import annotations

import time

import pytest

from support.environment.memory_folder import memory_folder
from support.hostile.rpc_senders import run_calls
from support.hostile.run import SETTINGS, TOPICS, run_hostile

CALM_S = 5.5
SECONDS = 5.5
REQUESTS = 1_000
CONNECTIONS = 8
CALLS_S = 3.0


@pytest.mark.parametrize("has_sasl", [False, True], ids=["plain", "sasl-and-authorizer"])
def test_requests_that_no_client_sends_beside_a_good_client(has_sasl: bool) -> None:
    """Every API and version; a fresh seed in each run, which the report of a failure has.

    The good client loses nothing. Its latency is bounded by `make test-hostile`, which takes long enough to measure it.
    """
    seed = int(time.time())
    with memory_folder() as folder:
        found = run_hostile(
            folder,
            seed=seed,
            requests=REQUESTS,
            seconds=SECONDS,
            calm_s=CALM_S,
            connections=CONNECTIONS,
            has_sasl=has_sasl,
        )
    report = f"seed {seed}\n{found.report()}"
    assert not found.problems, report


def test_calls_that_no_role_makes_beside_a_good_client() -> None:
    """Every method of every role, as a broken or older role could call it."""
    seed = int(time.time())
    with memory_folder() as folder:
        found = run_calls(
            folder,
            SETTINGS,
            seed=seed,
            seconds=CALLS_S,
            topics=TOPICS,
        )
    report = f"seed {seed}\n{found.report()}"
    assert not found.problems, report
    assert found.outcomes.answered, report
