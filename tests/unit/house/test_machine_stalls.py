"""Stalls of the machine are credited once, only within the measured time, and for at most a fifth of the bound."""

from __future__ import annotations

import pytest

from support.environment.machine_stalls import Moment, credit_s

BOUND_S = 100.0


def moments(*times: float, stolen: float = 0.0) -> list[Moment]:
    """`stolen`: seconds of each second."""
    return [Moment(at, at * stolen) for at in times]


@pytest.mark.parametrize(
    ("found", "credited"),
    [
        (moments(), 0.0),
        (moments(1.0), 0.0),
        (moments(4.9, 5.0, 5.1, 5.3, 5.4, 12.0), 6.4),
        (moments(1.0, 6.0, 6.1, 9.1, 9.2, 14.0, 15.0), 0.8 + 2.8 + 2.6),
        (moments(1.0, 20.0), 6.8),
        (moments(1.0, 4.0), 0.0),
        (moments(*[4.0 + 0.1 * step for step in range(100)], stolen=0.5), 3.5),
        (moments(1.0, 20.0, stolen=0.9), 6.8),
    ],
)
def test_what_is_credited(found: list[Moment], credited: float) -> None:
    """For what took from 5 to 12."""
    assert credit_s(found, 5.0, 12.0, BOUND_S) == pytest.approx(credited)


def test_at_most_a_fifth_of_the_bound_is_credited() -> None:
    assert credit_s(moments(1.0, 20.0), 5.0, 12.0, 5.0) == pytest.approx(1.0)
