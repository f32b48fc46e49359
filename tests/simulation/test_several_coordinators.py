"""Seeded histories of three coordinators on one etcd; see `support.coordinator.several_coordinators_history`."""

from __future__ import annotations

import pytest

from support.coordinator.several_coordinators_history import SeveralCoordinatorsHistory


@pytest.mark.parametrize("seed", [*range(12), 93])
def test_what_was_confirmed_is_there_and_nobody_answers_for_what_another_one_has(seed: int) -> None:
    counts = SeveralCoordinatorsHistory(seed).run()
    assert min(counts.commits, counts.transactions, counts.topics, counts.heartbeats) > 0, counts
    assert counts.checked_answers > 500, counts
