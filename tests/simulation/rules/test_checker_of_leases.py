"""The rules of leases and handovers on small histories: what a node knew itself decides, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from kshare_core.leases import held_s
from support.simulation.evidence import Evidence, Expectations, Violation
from support.simulation.history import (
    Acquired,
    Event,
    History,
    LeaderEpochSeen,
    LeaseRenewed,
    LogHandedOver,
    StateLoaded,
    StateOwnersSeen,
    StatesHandedOver,
    StateWritten,
)
from support.simulation.loop import MonotonicClock
from support.simulation.rules.leases import nobody_serves_without_a_lease, nothing_is_served_after_its_handover

LEADER, SHARE_COORDINATOR = "leader-1#1", "share-coordinator-1#1"


def acquired(arrived_at: float, *, leader: str = LEADER, partition: int = 0) -> Acquired:
    sent_at, time = arrived_at - 0.01, arrived_at + 3.0
    return Acquired(time, sent_at, "g1", "m1", partition, (5, 5), 1, leader, "1 a", 1, arrived_at)


def loaded(arrived_at: float) -> StateLoaded:
    sent_at, time = arrived_at - 0.01, arrived_at + 3.0
    return StateLoaded(time, arrived_at, sent_at, "g1", 0, LEADER, 1, 1, 0, (), SHARE_COORDINATOR)


def written(arrived_at: float, *, state_partition: int = 2) -> StateWritten:
    sent_at, time = arrived_at - 0.01, arrived_at + 3.0
    return StateWritten(time, sent_at, "g1", 0, 1, 1, 0, (), 7, SHARE_COORDINATOR, state_partition, arrived_at)


def broken(
    rule: Callable[[Evidence], Iterator[Violation]], *events: Event, clocks: Mapping[str, MonotonicClock] | None = None
) -> list[str]:
    history = History()
    for event in events:
        history.add(event)
    expectations = Expectations(
        groups=("g1",), logs={}, delivery_count_limit=5, lock_duration_s=10.0, clocks=clocks or {}
    )
    return [violation.rule for violation in rule(Evidence(history, expectations))]


LEASE_MS = 10_000
HELD_UNTIL_S = held_s(LEASE_MS)
"""Of a lease that counts from 0."""


@pytest.mark.parametrize("make", [loaded, written])
def test_a_share_coordinator_answers_nothing_after_its_lease(make: Callable[[float], Event]) -> None:
    renewed = LeaseRenewed(1.0, SHARE_COORDINATOR, 0.0, LEASE_MS)
    in_time, late = make(HELD_UNTIL_S - 0.1), make(HELD_UNTIL_S + 0.1)
    assert broken(nobody_serves_without_a_lease, renewed, in_time) == []  # under way in time, and answered later
    assert broken(nobody_serves_without_a_lease, renewed, late) == ["served after its lease"]
    again = LeaseRenewed(9.0, SHARE_COORDINATOR, 8.0, LEASE_MS)
    assert broken(nobody_serves_without_a_lease, renewed, again, late) == []


def test_a_leader_acquires_nothing_after_its_lease() -> None:
    renewed, late_s = LeaseRenewed(1.0, LEADER, 0.0, LEASE_MS), HELD_UNTIL_S + 0.1
    assert broken(nobody_serves_without_a_lease, renewed, acquired(late_s)) == ["served after its lease"]
    assert broken(nobody_serves_without_a_lease, renewed, acquired(late_s, leader="leader-2#1")) == []


def test_a_lease_ends_by_the_clock_of_its_node() -> None:
    clock = MonotonicClock()
    clock.set_rate(1.05, 0.0)
    renewed, arrived_s = LeaseRenewed(1.0, LEADER, 0.0, LEASE_MS), HELD_UNTIL_S - 0.1
    rule = nobody_serves_without_a_lease
    assert broken(rule, renewed, acquired(arrived_s), clocks={"leader-1": clock}) == ["served after its lease"]
    assert broken(rule, renewed, acquired(arrived_s), clocks={"leader-2": clock}) == []


def test_an_older_answer_does_not_shorten_a_lease() -> None:
    events = LeaseRenewed(1.0, LEADER, 0.5, LEASE_MS), LeaseRenewed(2.0, LEADER, 0.1, LEASE_MS)
    assert broken(nobody_serves_without_a_lease, *events, acquired(HELD_UNTIL_S + 0.3)) == []


def test_a_state_partition_is_not_written_after_its_handover() -> None:
    sent = StatesHandedOver(5.0, SHARE_COORDINATOR, 2, 40)
    assert broken(nothing_is_served_after_its_handover, sent, written(4.9)) == []
    assert broken(nothing_is_served_after_its_handover, sent, written(5.1)) == ["written after its handover"]
    assert broken(nothing_is_served_after_its_handover, sent, written(5.1, state_partition=3)) == []


def test_a_new_owner_epoch_ends_the_handover_of_a_state_partition() -> None:
    """The move was called off, or the state partition came back."""
    sent = StatesHandedOver(5.0, SHARE_COORDINATOR, 2, 40)
    same, newer = (StateOwnersSeen(6.0, SHARE_COORDINATOR, ((2, epoch), (3, 50))) for epoch in (40, 41))
    assert broken(nothing_is_served_after_its_handover, sent, same, written(7.0)) == ["written after its handover"]
    assert broken(nothing_is_served_after_its_handover, sent, newer, written(7.0)) == []
    early = newer._replace(time=4.0)  # it reached a node that stood still, which handed over when it went on
    assert broken(nothing_is_served_after_its_handover, early, sent, written(7.0)) == []


def test_a_log_is_not_served_after_its_handover() -> None:
    sent = LogHandedOver(5.0, LEADER, 0, 8)
    rule = nothing_is_served_after_its_handover
    assert broken(rule, sent, acquired(4.9)) == []
    assert broken(rule, sent, acquired(5.1)) == ["acquired after its handover"]
    assert broken(rule, sent, acquired(5.1, partition=1), acquired(5.1, leader="leader-2#1")) == []
    assert broken(rule, sent, LeaderEpochSeen(6.0, LEADER, 0, 9), acquired(7.0)) == []
