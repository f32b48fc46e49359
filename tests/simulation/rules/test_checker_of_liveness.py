"""The rule of liveness during faults: what they leave alone delivers within the limit, and how often that was asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kshare_core.states import AcknowledgeType
from support.simulation.evidence import Evidence, Expectations, Impairment
from support.simulation.history import (
    AcknowledgeSent,
    Acquired,
    Delivered,
    Event,
    FaultEvent,
    FetchesFrom,
    History,
    LeaderSeen,
    LeaseRenewed,
    PartitionTaken,
    ProduceConfirmed,
    StateLoaded,
    StateOwnersSeen,
    StateWritten,
    TransactionBegun,
    TransactionEndConfirmed,
)
from support.simulation.kafka_clients.protocol import ReadRecord
from support.simulation.rules.liveness import (
    AFTERWARDS,
    BESIDE_A_FAULT,
    CALL_S,
    DURING_FAULTS,
    LIMIT_S,
    something_is_delivered,
)
from support.simulation.rules.undisturbed import SETTLING_S, TAKEOVER_S

ROLES = {"coordinator": 3, "share-coordinator": 2, "leader": 2, "gateway": 2, "broker": 1}
HOSTS = tuple(f"{role}-{number + 1}" for role, count in ROLES.items() for number in range(count))
LOCK_S = 10.0
FETCHES = FetchesFrom(0.5, "g1", "m1", ((0, "gateway-1"),))
LOADED = StateLoaded(0.7, 0.69, 0.65, "g1", 0, "leader-1#1", 1, 1, 0, (), "share-coordinator-1#1")
STATE_WRITTEN = StateWritten(0.6, 0.6, "g1", 0, 1, -1, 0, (), 0, "share-coordinator-1#1", 3, 0.6)
FIRST_AT = 1.0
DONE_AT = 200.0
"""When the faults have ended, and when the member leaves."""


def given(offset: int, time: float, *, accepted: bool = True) -> Sequence[Event]:
    run = (offset, offset)
    accept = AcknowledgeSent(time, offset + 1, "g1", "m1", 0, run, AcknowledgeType.ACCEPT)
    return (
        Acquired(time - 0.01, time - 0.1, "g1", "m1", 0, run, 1, "leader-1#1", arrived_at=time - 0.05),
        Delivered(time, time - 0.1, "g1", "m1", "gateway-1:9092", 0, run, 1, ("x",)),
        *([accept] if accepted else []),
    )


def evidence(
    *events: Event,
    impairments: Sequence[Impairment] = (),
    committed: Sequence[str] = (),
    log_start: int = 0,
    limit: int = 5,
    accepted: bool = True,
) -> Evidence:
    """A log of "a", which is delivered and accepted soon, and "b", which is confirmed at the same time."""
    history = History()
    found: list[Event] = [
        *(ProduceConfirmed(0.5, "p", 0, offset, (value,)) for offset, value in enumerate("ab")),
        *given(0, FIRST_AT, accepted=accepted),
        STATE_WRITTEN,
        FaultEvent(DONE_AT, "all faults end", HOSTS, ""),
        FetchesFrom(DONE_AT, "g1", "m1", ()),
        *events,
    ]
    for event in sorted(found, key=lambda event: event.time):
        history.add(event)
    expected = Expectations(
        groups=["g1"],
        logs={0: [ReadRecord(offset, value) for offset, value in enumerate("ab")]},
        delivery_count_limit=limit,
        lock_duration_s=LOCK_S,
        hosts=HOSTS,
        impairments=impairments,
        committed_groups=committed,
        log_starts={0: log_start},
        log_ends={0: 2},
    )
    return Evidence(history, expected)


def is_broken(found: Evidence) -> bool:
    return bool(list(something_is_delivered(found)))


def stalls(seconds: float, *events: Event, loaded: bool = True, impairments: Sequence[Impairment] = ()) -> bool:
    """Whether the rule is broken where "b" is delivered so long after "a"."""
    of_way = [FETCHES, LOADED] if loaded else [FETCHES]
    return is_broken(evidence(*of_way, *given(1, FIRST_AT + seconds), *events, impairments=impairments))


def test_a_stall_without_faults() -> None:
    assert stalls(LIMIT_S + 0.1)
    assert not stalls(LIMIT_S - 0.1)


ALL_OF_IT = 30.0 - FIRST_AT + SETTLING_S
"""From the first delivery to when the way has settled after a fault that lasts until 30 s."""


@pytest.mark.parametrize(
    ("hosts", "name", "stands_s"),
    [
        (("gateway-2",), "crash", 0.0),
        (("share-coordinator-2",), "crash", 0.0),
        (("coordinator-1", "coordinator-2", "coordinator-3"), "crash", 0.0),
        ((), "etcd-pause", 0.0),
        (("m2",), "cut-clients", 0.0),
        (("leader-1",), "clock-drift", 0.0),
        (("leader-1", "gateway-2"), "partition", 0.0),
        (("leader-2",), "crash", CALL_S),
        (("leader-2", "gateway-1"), "partition", CALL_S),
        (("leader-1",), "crash", ALL_OF_IT),
        (("gateway-1",), "crash", ALL_OF_IT),
        (("share-coordinator-1",), "crash", ALL_OF_IT),
        (("broker-1",), "crash", ALL_OF_IT),
        (("m1",), "unread-answers", ALL_OF_IT),
        (("leader-1", "gateway-1"), "partition", ALL_OF_IT),
        (("leader-1", "share-coordinator-1"), "full-link", ALL_OF_IT),
        ((), "drops", ALL_OF_IT),
        (("leader-1",), "half-open", SETTLING_S),
        (("leader-1",), "flipped-bits", DONE_AT),
    ],
)
def test_a_fault_counts_where_it_hits_the_way(hosts: tuple[str, ...], name: str, stands_s: float) -> None:
    fault = Impairment(FIRST_AT, 30.0, hosts, name)
    assert not stalls(stands_s + LIMIT_S - 0.1, impairments=[fault])
    if stands_s < DONE_AT:
        assert stalls(stands_s + LIMIT_S + 0.1, impairments=[fault])


@pytest.mark.parametrize(("strength", "stands_s"), [(0.3, 0.0), (4.0, ALL_OF_IT)])
def test_slow_messages_count_where_they_are_very_slow(strength: float, stands_s: float) -> None:
    fault = Impairment(FIRST_AT, 30.0, (), "slow-network", strength)
    assert not stalls(stands_s + LIMIT_S - 0.1, impairments=[fault])
    assert stalls(stands_s + LIMIT_S + 0.1, impairments=[fault])


@pytest.mark.parametrize(("count", "stands_s"), [(1, TAKEOVER_S + SETTLING_S), (2, ALL_OF_IT), (3, ALL_OF_IT)])
def test_a_leader_needs_coordinators_to_load_a_state(count: int, stands_s: float) -> None:
    fault = Impairment(FIRST_AT, 30.0, tuple(f"coordinator-{number + 1}" for number in range(count)), "crash")
    assert not stalls(stands_s + LIMIT_S - 0.1, loaded=False, impairments=[fault])
    assert stalls(stands_s + LIMIT_S + 0.1, loaded=False, impairments=[fault])
    taken = PartitionTaken(FIRST_AT, "leader-1#1", "g1", 0, "its state changed")
    assert not stalls(stands_s + LIMIT_S - 0.1, taken, impairments=[fault]), "it has to be loaded again"


def test_a_lease_that_has_run_out() -> None:
    lease = [LeaseRenewed(0.5, "leader-1#1", 0.5, 2_000), LeaseRenewed(30.0, "leader-1#1", 29.9, 500_000)]
    assert not stalls(ALL_OF_IT + LIMIT_S - 0.1, *lease)
    assert stalls(ALL_OF_IT + LIMIT_S + 0.1, *lease)


def test_a_way_that_has_delivered_has_settled() -> None:
    fault = Impairment(2.0, 30.0, ("leader-1",), "crash")
    delivered = Delivered(31.0, 30.5, "g1", "m1", "gateway-1:9092", 0, (0, 0), 2, ("a",))
    asked_before = delivered._replace(sent_at=29.5)
    assert not stalls(30.0 + LIMIT_S - 0.1, delivered, impairments=[fault])
    assert stalls(30.0 + LIMIT_S + 0.1, delivered, impairments=[fault])
    assert not stalls(30.0 + LIMIT_S + 0.1, asked_before, impairments=[fault])


@pytest.mark.parametrize(
    "event",
    [
        PartitionTaken(5.0, "", "", 0, "moves: FENCE"),
        LeaderSeen(5.0, 0, "leader-2"),
        StateLoaded(5.0, 4.9, 4.9, "g1", 0, "leader-2#1", 2, 1, 0, (), "share-coordinator-1#1"),
    ],
)
def test_another_leader_or_an_unknown_one(event: Event) -> None:
    assert not stalls(4.0 + LIMIT_S - 0.1, event)
    assert stalls(4.0 + LIMIT_S + 0.1, event)
    fault = Impairment(5.0, 30.0, ("leader-2",), "crash")
    assert not stalls(ALL_OF_IT + LIMIT_S - 0.1, event, impairments=[fault])


@pytest.mark.parametrize(("state_partition", "is_moved"), [(3, True), (4, False)])
def test_a_state_partition_that_moves(state_partition: int, is_moved: bool) -> None:
    epochs = [StateOwnersSeen(time, "share-coordinator-2#1", ((state_partition, int(time)),)) for time in (0.5, 5.0)]
    fault = Impairment(5.0, 30.0, ("share-coordinator-2",), "crash")
    assert stalls(4.0 + LIMIT_S + 0.1, *epochs)
    assert stalls(4.0 + LIMIT_S + 0.1, *epochs, impairments=[fault]) != is_moved


def test_a_gateway_that_was_killed_lets_nobody_in_before_it_has_registered() -> None:
    fault = Impairment(FIRST_AT, 10.0, ("gateway-1",), "crash")
    for_it = FaultEvent(20.0, "registered", ("gateway-1",), "")
    stands_s = 20.0 - FIRST_AT + SETTLING_S
    assert not stalls(stands_s + LIMIT_S - 0.1, for_it, impairments=[fault])
    assert stalls(stands_s + LIMIT_S + 0.1, for_it, impairments=[fault])
    assert stalls(stands_s + LIMIT_S - 0.1, for_it, impairments=[fault._replace(name="pause")])
    assert stalls(stands_s + LIMIT_S - 0.1, for_it._replace(hosts=("gateway-2",)), impairments=[fault])


def test_the_loss_of_a_coordinator_counts_until_another_one_has_taken_over() -> None:
    fault = Impairment(FIRST_AT, 10.0, ("coordinator-1", "coordinator-2"), "coordinator-lost")
    assert not stalls(TAKEOVER_S + SETTLING_S + LIMIT_S - 0.1, loaded=False, impairments=[fault])
    assert stalls(TAKEOVER_S + SETTLING_S + LIMIT_S + 0.1, loaded=False, impairments=[fault])


def test_a_node_that_leaves_or_is_restarted() -> None:
    assert not stalls(100.0, FaultEvent(FIRST_AT, "leave", ("gateway-1",), ""))
    assert not stalls(LIMIT_S + SETTLING_S, FaultEvent(FIRST_AT, "upgrade", ("leader-1",), ""))


def test_a_member_that_does_not_fetch() -> None:
    stopped = FetchesFrom(FIRST_AT + 5.0, "g1", "m1", ())
    assert not stalls(100.0, stopped)
    assert not stalls(5.0 + LIMIT_S, stopped, FETCHES._replace(time=FIRST_AT + 8.0))
    assert stalls(8.0 + LIMIT_S + 0.1, stopped, FETCHES._replace(time=FIRST_AT + 8.0))
    elsewhere = FetchesFrom(FIRST_AT, "g1", "m1", ((0, "gateway-2"),))
    fault = Impairment(FIRST_AT, 30.0, ("gateway-1",), "crash")
    assert stalls(LIMIT_S + 0.1, elsewhere, impairments=[fault]), "its gateway is another one"


def test_records_that_do_not_wait() -> None:
    assert not is_broken(evidence(FETCHES, LOADED, log_start=2)), "they were deleted"
    assert is_broken(evidence(FETCHES, LOADED))
    others = FetchesFrom(0.5, "g2", "m1", ((0, "gateway-1"),))
    assert not is_broken(evidence(others, LOADED)), "no member of the group"


@pytest.mark.parametrize(("accepted", "limit", "is_late"), [(False, 5, True), (True, 5, False), (False, 1, False)])
def test_a_record_whose_lock_has_run_out_waits_again(accepted: bool, limit: int, is_late: bool) -> None:
    def breaks(*later: Event) -> bool:
        second = given(1, 1.1, accepted=accepted)
        return is_broken(evidence(FETCHES, LOADED, *second, *later, accepted=accepted, limit=limit))

    assert breaks() == is_late
    free_at = 1.1 + 2 * LOCK_S
    assert breaks(*given(0, free_at + LIMIT_S + 0.1), *given(1, free_at + LIMIT_S + 0.1)) is False, "both are accepted"
    assert breaks(*(given(0, free_at + LIMIT_S + 0.1, accepted=False))) == is_late
    assert not breaks(*given(0, free_at + LIMIT_S - 0.2), *given(1, free_at + LIMIT_S - 0.2))


def test_a_group_that_reads_committed_records() -> None:
    def is_late(*events: Event, log_start: int = 0) -> bool:
        return is_broken(evidence(FETCHES, LOADED, *events, committed=["g1"], log_start=log_start))

    begun = TransactionBegun(0.3, "t", 1, ("a", "c"))
    assert is_late()
    assert not is_late(begun), "the end of the transaction is not known"
    assert is_late(begun, TransactionEndConfirmed(50.0, "t", 1, True))
    assert not is_late(begun, TransactionEndConfirmed(DONE_AT - LIMIT_S + 0.1, "t", 1, True))
    assert not is_late(log_start=1), "what was deleted may have been of a transaction"
    assert is_late(begun._replace(values=("c",))), "it has no records in this log"


def test_how_often_the_rule_was_put_is_counted() -> None:
    beside = Impairment(FIRST_AT, FIRST_AT + 1.0, ("gateway-2",), "crash")
    late = evidence(FETCHES, LOADED, *given(1, FIRST_AT + 2.5 * LIMIT_S), impairments=[beside])
    assert is_broken(late)
    assert +late.liveness == {DURING_FAULTS: 3, BESIDE_A_FAULT: 1}, "from 0.7 s on, when the state is loaded"
    in_time = evidence(FETCHES, LOADED, *given(1, FIRST_AT + 0.2))
    assert not is_broken(in_time)
    assert +in_time.liveness == {DURING_FAULTS: 1}, "without the delivery the rule would be broken"
    afterwards = evidence(FETCHES, LOADED, FetchesFrom(DONE_AT + 5.0, "g1", "m1", ()))
    assert is_broken(afterwards)
    assert afterwards.liveness[AFTERWARDS] == 0, "the member leaves when the faults end"
    disturbed = Impairment(0.0, DONE_AT, ("leader-1",), "pause")
    never_put = evidence(FETCHES, LOADED, impairments=[disturbed])
    assert not is_broken(never_put)
    assert not +never_put.liveness
