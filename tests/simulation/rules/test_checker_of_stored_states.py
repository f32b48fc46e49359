"""The rule of stored states: of all writes that took effect, the highest count and then the highest state is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.simulation.evidence import Evidence, Expectations
from support.simulation.history import Event, History, StateLoaded, StateWriteArrived, StateWritten
from support.simulation.rules.stored_states import StoredStateRules

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
EXPECTED = Expectations(groups=["g1"], logs={0: []}, delivery_count_limit=5, lock_duration_s=10.0)
Stored = tuple[int, int]
"""Delivery state and delivery count of offset 5."""


def arrived(call: int, stored: Stored) -> Event:
    return StateWriteArrived(float(call), call, "leader-1", "g1", 0, 1, -1, ((5, 5, *stored),))


def confirmed(call: int, stored: Stored) -> Event:
    return StateWritten(call + 0.5, float(call), "g1", 0, 1, 1, -1, ((5, 5, *stored),), call)


def read(stored: Stored | None) -> Event:
    batches = () if stored is None else ((5, 5, *stored),)
    return StateLoaded(10.0, 9.0, 8.9, "g1", 0, "leader-1", 1, 1, 0, batches)


def broken(*events: Event, expected: Expectations = EXPECTED) -> set[str]:
    history = History()
    for event in events:
        history.add(event)
    return {violation.rule for violation in StoredStateRules(Evidence(history, expected)).violations()}


@pytest.mark.parametrize(
    ("unanswered", "found", "is_broken"),
    [
        (None, (AVAILABLE, 2), False),
        (None, None, True),
        (None, (AVAILABLE, 1), True),
        (None, (ACKNOWLEDGED, 3), True),
        ((ACKNOWLEDGED, 2), (ACKNOWLEDGED, 2), False),
        ((ACKNOWLEDGED, 2), (AVAILABLE, 2), False),
        ((AVAILABLE, 3), (AVAILABLE, 3), False),
        ((ARCHIVED, 1), (ARCHIVED, 1), True),
    ],
)
@pytest.mark.parametrize("comes_first", [False, True])
def test_what_a_read_may_find(
    unanswered: Stored | None, found: Stored | None, is_broken: bool, comes_first: bool
) -> None:
    known = [arrived(2, (AVAILABLE, 2)), confirmed(2, (AVAILABLE, 2))]
    other = [] if unanswered is None else [arrived(1 if comes_first else 3, unanswered)]
    events = [*other, *known] if comes_first else [*known, *other]
    assert broken(*events, read(found)) == ({"a confirmed state was not stored"} if is_broken else set())


@pytest.mark.parametrize("switches_owners", [False, True])
@pytest.mark.parametrize(("sent_at", "was_confirmed"), [(2.4, False), (2.6, True)])
def test_only_an_owner_that_can_be_replaced_unknowingly_may_miss_what_was_confirmed_after_a_read_was_sent(
    switches_owners: bool, sent_at: float, was_confirmed: bool
) -> None:
    """The write is confirmed at 2.5, and the read arrives at 9.0 at an owner that was paused."""
    events = [arrived(1, (AVAILABLE, 1)), confirmed(1, (AVAILABLE, 1)), arrived(2, (AVAILABLE, 2))]
    old = StateLoaded(10.0, 9.0, sent_at, "g1", 0, "leader-1", 1, 1, 0, ((5, 5, AVAILABLE, 1),))
    found = broken(
        *events, confirmed(2, (AVAILABLE, 2)), old, expected=replace(EXPECTED, switches_owners=switches_owners)
    )
    may_be_old = switches_owners and not was_confirmed
    assert found == (set() if may_be_old else {"a confirmed state was not stored"})
