"""Seeded histories of three coordinators on one etcd or existing cluster.

See `support.coordinator.several_coordinators_history`.
"""

from __future__ import annotations

import pytest

from support.coordinator.several_coordinators_history import SeveralCoordinatorsHistory


@pytest.mark.parametrize("store", ["etcd", "kafka"])
@pytest.mark.parametrize("seed", [*range(12), 93])
def test_confirmed_writes_are_kept_and_only_owners_answer(seed: int, store: str) -> None:
    counts = SeveralCoordinatorsHistory(seed, store=store).run()
    assert min(counts.commits, counts.transactions, counts.topics, counts.heartbeats) > 0, counts
    assert counts.checked_answers > 500, counts
