"""Any interleaving of the five RPCs, crashes, full disks and moves of state partitions equals the naive rules.

2,000 seeded histories in four parts. A failing one is run again by its number: MovingStates(seed).run().
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from support.share_coordinator.reassignment_history import MovingStates

HISTORIES = 1_000
PARTS = 4


@pytest.fixture(autouse=True)
def quick_and_quiet() -> Iterator[None]:
    """No log lines; and the garbage collection after each history looks at that history only."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_any_interleaving_with_moves_equals_the_naive_rules(part: int) -> None:
    seeds = range(part, HISTORIES, PARTS)
    assert len(seeds) * PARTS == HISTORIES
    totals: Counter[str] = Counter()
    for seed in seeds:
        try:
            counts = MovingStates(seed).run()
        except AssertionError as problem:
            raise AssertionError(f"history {seed}: {problem}") from problem
        totals.update(counts._asdict())
        totals["histories"] += 1
    assert totals["histories"] == HISTORIES // PARTS
    # A history that moves nothing, or in which nothing goes wrong, would show little.
    assert totals["answers"] >= 50 * totals["histories"]
    assert totals["moves_completed"] >= 2 * totals["histories"]
    assert totals["moves_taken_back"] >= totals["histories"] // 4
    assert totals["faults_in_moves"] >= totals["histories"] // 2
    assert totals["unknown"] >= totals["histories"] // 4


def test_a_history_is_its_seeds_alone() -> None:
    assert MovingStates(5).run() == MovingStates(5).run()
