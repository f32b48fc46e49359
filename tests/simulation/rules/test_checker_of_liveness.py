"""The rule of liveness during faults: a stall counts where a quorum works and a group has something to get."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.simulation.evidence import Evidence, Expectations, Impairment
from support.simulation.history import Acquired, Event, History, ProduceConfirmed
from support.simulation.kafka_clients.protocol import ReadRecord
from support.simulation.rules.liveness import STALL_LIMIT_S, something_is_delivered

HOSTS = ("coordinator-1", "coordinator-2", "coordinator-3", "share-coordinator-1", "leader-1", "gateway-1", "gateway-2")
LATE = 10.0 + STALL_LIMIT_S


def stalls(
    second: float, *impairments: Impairment, confirmed: float = 0.5, committed: Sequence[str] = (), partitions: int = 1
) -> bool:
    """Whether the rule is broken where offset 0 is acquired at 1 s, offset 1 at `second`."""
    history = History()
    events: list[Event] = [
        ProduceConfirmed(0.5, "p", 0, 0, ("a",)),
        ProduceConfirmed(confirmed, "p", 0, 1, ("b",)),
        Acquired(1.0, 0.9, "g1", "m1", 0, (0, 0), 1),
        Acquired(second, second - 0.1, "g1", "m1", 0, (1, 1), 1),
    ]
    for event in sorted(events, key=lambda event: event.time):
        history.add(event)
    expected = Expectations(
        groups=["g1"],
        logs={number: [ReadRecord(0, "a", True, ())] for number in range(partitions)},
        delivery_count_limit=5,
        lock_duration_s=10.0,
        hosts=HOSTS,
        impairments=impairments,
        committed_groups=committed,
    )
    return bool(list(something_is_delivered(Evidence(history, expected))))


def test_a_stall_without_faults() -> None:
    assert stalls(LATE)
    assert not stalls(STALL_LIMIT_S)


@pytest.mark.parametrize(
    ("hosts", "is_stall"),
    [
        (("coordinator-1",), True),
        (("coordinator-1", "coordinator-2"), False),
        (("gateway-1",), True),
        (("gateway-1", "gateway-2"), False),
        (("leader-1",), False),
        (("share-coordinator-1",), False),
        ((), False),
    ],
)
def test_a_fault_counts_where_no_quorum_is_left(hosts: tuple[str, ...], is_stall: bool) -> None:
    assert stalls(LATE, Impairment(5.0, 15.0, hosts)) == is_stall
    assert stalls(LATE + 15.0, Impairment(5.0, 15.0, hosts)), "the time after the fault is long enough"


def test_faults_of_two_gateways_at_a_time() -> None:
    first, second = Impairment(5.0, 15.0, ("gateway-1",)), Impairment(14.0, 24.0, ("gateway-2",))
    assert not stalls(LATE, first, second)


def test_nothing_is_missed_where_nothing_waits() -> None:
    assert not stalls(LATE, confirmed=LATE - 1)
    assert not stalls(LATE, committed=["g1"])
    assert not stalls(LATE, partitions=2)
