"""The ordinary consumer of a soak notices an offset that is left out, and a commit that was forgotten."""

from __future__ import annotations

import pytest

from soak.ordinary_consumer import OrdinaryConsumer

COMMITTED = 5


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ([0, 1, 2], None),
        ([0, 1, 2, 3, 4, 5, 6, 5, 6, 7], None),
        ([1], "after offset -1 came 1"),
        ([0, 1, 3], "after offset 1 came 3"),
        ([0, 1, 2, 3, 4, 5, 6, 4], "4 came, 5 was committed"),
    ],
)
def test_offsets_that_come(offsets: list[int], problem: str | None) -> None:
    consumer = OrdinaryConsumer("127.0.0.1:1", "orders", "readers")
    for offset in offsets:
        consumer.came(0, offset)
        if offset == COMMITTED:
            consumer.committed(0, COMMITTED)
    assert consumer.violations == ([] if problem is None else [f"ordinary consumer, partition 0: {problem}"])
    assert consumer.records == max(offsets) + 1
