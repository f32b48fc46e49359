"""A short run of hostile requests against real processes; `make test-hostile` has long ones."""

from __future__ import annotations

import time

import pytest

from support.environment.memory_folder import memory_folder
from support.hostile.run import run_hostile

CALM_S = 5.5
SECONDS = 5.5
REQUESTS = 1_500
P99_LIMIT_MS = 250.0
"""As beside the other attacks."""


@pytest.mark.quiet
def test_requests_that_no_client_sends_beside_a_good_client() -> None:
    """Every API and version; a fresh seed in each run, which the report of a failure has."""
    seed = int(time.time())
    with memory_folder() as folder:
        found = run_hostile(folder, seed=seed, requests=REQUESTS, seconds=SECONDS, calm_s=CALM_S)
    report = f"seed {seed}\n{found.report()}"
    assert not found.problems, report
    assert found.attacked.p99_ms < P99_LIMIT_MS, report
