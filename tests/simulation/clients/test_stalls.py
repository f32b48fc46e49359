"""How long a partition delivered nothing after a fault: the longest time, not the first."""

from __future__ import annotations

import pytest

from support.recorded.stalls import Stall, Window, longest_stall

KILLED = Window("killed", 1.0, 4.0, 10.0)


@pytest.mark.parametrize(
    ("arrivals", "stall"),
    [
        ([0.5, 3.0, 6.5, 7.0], Stall(KILLED, 0, 7.0, 20.0)),
        ([4.5, 5.0, 13.0, 14.0, 19.0], Stall(KILLED, 0, 5.0, 13.0)),
        ([12.0, 13.0, 14.0, 19.0], Stall(KILLED, 0, 4.0, 12.0)),
        ([5.0, 12.0, 25.0], Stall(KILLED, 0, 12.0, 20.0)),
        ([], Stall(KILLED, 0, 4.0, 20.0)),
    ],
)
def test_the_longest_time_between_the_fault_and_the_next_one(arrivals: list[float], stall: Stall) -> None:
    assert longest_stall(KILLED, 20.0, {0: arrivals}) == stall


def test_a_partition_that_does_not_resume_is_not_hidden_by_another() -> None:
    every_second = [float(second) for second in range(20)]
    found = longest_stall(KILLED, 20.0, {0: every_second, 1: every_second[:8], 2: every_second})
    assert (found.partition, found.length_s) == (1, 13.0)
    assert str(found) == "killed 13.0 s"
