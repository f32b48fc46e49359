"""The rules of acquisition and of stored state on small histories: each cause counts exactly where a leader knew it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.simulation.evidence import Evidence, Expectations
from support.simulation.history import (
    AcknowledgeArrived,
    AcknowledgeEnded,
    Acquired,
    DeletionAsked,
    Event,
    FaultEvent,
    GatewaysSeen,
    History,
    PartitionTaken,
    SessionReleased,
    StateLoaded,
    StateWriteArrived,
    StateWriteUnconfirmed,
    StateWritten,
)
from support.simulation.rules.holders import HolderRules
from support.simulation.rules.stored_states import StoredStateRules

LOCK_S = 10.0
LEADER = "leader-1#1"
GATEWAY = "1 a"
AVAILABLE, ACKNOWLEDGED = 0, 2
ACCEPT, RELEASE, REJECT = 1, 2, 3
INVALID_RECORD_STATE, NOT_LEADER, STORAGE_ERROR, COORDINATOR_NOT_AVAILABLE = 121, 6, 56, 15


def loaded(
    time: float,
    *batches: tuple[int, int, int, int],
    leader: str = LEADER,
    epoch: int = 1,
    start: int = 0,
    arrived_at: float | None = None,
) -> StateLoaded:
    arrived = time - 0.01 if arrived_at is None else arrived_at
    return StateLoaded(time, arrived, arrived - 0.01, "g1", 0, leader, epoch, 1, start, batches)


def acquired(
    arrived_at: float,
    time: float,
    member: str = "m1",
    *,
    count: int = 1,
    fetch: int = 1,
    leader: str = LEADER,
    gateway: str = GATEWAY,
) -> Acquired:
    return Acquired(time, arrived_at - 0.01, "g1", member, 0, (5, 5), count, leader, gateway, fetch, arrived_at)


def acknowledged(
    time: float,
    member: str = "m1",
    *,
    kind: int = RELEASE,
    code: int = 0,
    fetch: int = 1,
    offset: int = 5,
    leader: str = LEADER,
) -> list[Event]:
    call = int(time * 1000)
    return [
        AcknowledgeArrived(time, call, leader, "g1", member, GATEWAY, 0, ((offset, offset),), (kind,), fetch),
        AcknowledgeEnded(time + 0.01, call, leader, "g1", 0, code),
    ]


def released(time: float, member: str = "m1", *, last: int = 0, lost: Sequence[int] = ()) -> SessionReleased:
    return SessionReleased(time, LEADER, "g1", member, GATEWAY, (), last, tuple(lost))


def evidence_of(events: Sequence[Event], log_start: int = 0) -> Evidence:
    history = History()
    for event in sorted(events, key=lambda event: event.time):
        history.add(event)
    expected = Expectations(
        groups=["g1"],
        logs={0: []},
        delivery_count_limit=5,
        lock_duration_s=LOCK_S,
        log_starts={0: log_start},
    )
    return Evidence(history, expected)


def rules_broken(*events: Event, log_start: int = 0) -> set[str]:
    return {violation.rule for violation in HolderRules(evidence_of(events, log_start)).violations()}


FIRST = acquired(1.0, 1.1)
SECOND = acquired(2.0, 2.1, "m2", count=2, fetch=2)


@pytest.mark.parametrize(
    ("between", "allowed"),
    [
        ([], False),
        ([FaultEvent(1.5, "crash", ("gateway-1",), ""), FaultEvent(1.5, "cut", ("leader-1", "gateway-1"), "")], False),
        (acknowledged(1.5), True),
        # An end is no cause to give a record to someone else, whether it took effect or not.
        (acknowledged(1.5, kind=ACCEPT), False),
        (acknowledged(1.5, kind=REJECT), False),
        (acknowledged(1.5, kind=ACCEPT)[:1], False),
        (acknowledged(1.5, code=INVALID_RECORD_STATE), False),
        (acknowledged(1.5, code=STORAGE_ERROR), False),
        (acknowledged(1.5, fetch=0), False),
        (acknowledged(1.5, offset=6), False),
        (acknowledged(1.5, leader="leader-2#1"), False),
        (acknowledged(1.5, "m2"), False),
        ([released(1.5)], True),
        ([released(1.5, last=1)], True),
        ([released(1.5, last=0, lost=[1])], True),
        ([released(1.5, last=0, lost=[3])], False),
        ([released(0.5)], False),
        ([released(2.5)], False),
        ([released(1.5, "m2")], False),
        ([GatewaysSeen(1.5, LEADER, ())], True),
        ([GatewaysSeen(1.5, LEADER, (GATEWAY, "2 b"))], False),
        ([GatewaysSeen(1.5, "leader-2#1", ())], False),
    ],
)
def test_one_holder_until_the_leader_has_a_cause(between: list[Event], allowed: bool) -> None:
    found = rules_broken(loaded(0.5), FIRST, *between, SECOND)
    assert ("two holders" not in found) == allowed


@pytest.mark.parametrize(("time", "allowed"), [(10.9, False), (11.1, True)])
def test_a_lock_lasts_from_its_fetch_on(time: float, allowed: bool) -> None:
    found = rules_broken(loaded(0.5), FIRST, acquired(time - 0.1, time, "m2", count=2, fetch=2))
    assert ("two holders" not in found) == allowed


def test_the_same_member_does_not_get_a_record_twice_either() -> None:
    assert "two holders" in rules_broken(loaded(0.5), FIRST, acquired(2.0, 2.1, count=2, fetch=2))


def test_answers_in_another_order_than_the_acquisitions() -> None:
    late = acquired(1.0, 3.0)
    assert not rules_broken(loaded(0.5), released(1.5), SECOND, late)
    assert rules_broken(loaded(0.5), SECOND, late) == {"two holders"}


@pytest.mark.parametrize(
    ("cause", "allowed"),
    [
        ([], False),
        ([FaultEvent(1.5, "slow-network", ("network",), "")], False),
        (acknowledged(1.5), True),
        ([StateWriteUnconfirmed(1.5, LEADER, "g1", 0, "no answer")], True),
        ([StateWriteUnconfirmed(1.5, LEADER, "g1", 1, "no answer")], False),
        ([StateWriteUnconfirmed(1.5, "leader-2#1", "g1", 0, "no answer")], False),
        ([PartitionTaken(1.5, "", "", 0, "moves: FENCE")], True),
        ([PartitionTaken(1.5, LEADER, "g2", 0, "its state changed")], False),
        ([FaultEvent(1.5, "registered", ("leader-1",), "")], True),
        ([FaultEvent(1.5, "registered", ("leader-2",), "")], False),
    ],
)
def test_locks_are_forgotten_only_for_a_reason(cause: list[Event], allowed: bool) -> None:
    found = rules_broken(loaded(0.5), FIRST, *cause, loaded(1.9), acquired(2.0, 2.1, "m2", fetch=2))
    assert ("a lock was forgotten" not in found) == allowed


@pytest.mark.parametrize(("sent_at", "is_forgotten"), [(0.4, False), (1.85, True)])
def test_a_read_that_arrives_late_changes_nothing(sent_at: float, is_forgotten: bool) -> None:
    """Its stream was cut before the leader sent the read by which it knows the state."""
    read = StateLoaded(1.9, 1.89, sent_at, "g1", 0, LEADER, 1, 1, 0, ())
    found = rules_broken(loaded(0.5), FIRST, read, acquired(2.0, 2.1, "m2", fetch=2))
    assert ("a lock was forgotten" in found) == is_forgotten
    assert found, "the second acquisition breaks a rule either way"


def test_another_life_needs_a_higher_leader_epoch_and_the_former_one_is_over() -> None:
    other = "leader-1#2"
    assert not rules_broken(loaded(0.5), FIRST, loaded(1.9, leader=other, epoch=2))
    assert rules_broken(loaded(0.5), FIRST, loaded(1.9, leader=other)) == {"two leaders"}
    late = acquired(2.0, 2.1, "m2", count=2, fetch=2)
    assert "acquired by a former leader" in rules_broken(loaded(0.5), loaded(1.9, leader=other, epoch=2), late)
    assert rules_broken(FIRST) == {"acquired before its state was loaded"}


@pytest.mark.parametrize(
    ("stored", "count", "rule"),
    [
        ((), 1, None),
        (((5, 5, AVAILABLE, 2),), 3, None),
        (((5, 5, AVAILABLE, 2),), 2, "delivery count does not grow"),
        ((), 2, "a delivery was counted twice"),
        (((0, 5, ACKNOWLEDGED, 1),), 2, "delivered after its end was stored"),
    ],
)
def test_counts_go_on_from_what_is_stored(
    stored: tuple[tuple[int, int, int, int], ...], count: int, rule: str | None
) -> None:
    found = rules_broken(loaded(0.5, *stored), acquired(1.0, 1.1, count=count))
    assert found == ({rule} if rule else set())


def test_a_start_offset_that_is_stored_ends_what_is_below() -> None:
    assert rules_broken(loaded(0.5, start=6), FIRST) == {"delivered after its end was stored"}


@pytest.mark.parametrize(("lost", "allowed"), [([1], True), ([2], False)])
def test_a_count_comes_again_only_where_its_answer_was_lost(lost: list[int], allowed: bool) -> None:
    again = acquired(2.0, 2.1, "m2", fetch=5)
    found = rules_broken(loaded(0.5), FIRST, released(1.5, lost=lost), again)
    assert ("delivery count does not grow" not in found) == allowed


@pytest.mark.parametrize(
    ("before", "broken"),
    [
        ([], True),
        ([released(1.5)], False),
        ([FaultEvent(1.5, "cut", ("leader-1", "gateway-1"), "")], True),
        ([StateWriteUnconfirmed(1.5, LEADER, "g1", 0, "no answer")], False),
        (acknowledged(1.5, offset=4, code=COORDINATOR_NOT_AVAILABLE), False),
        (acknowledged(1.5, offset=4, code=STORAGE_ERROR), True),
        (acknowledged(1.5, offset=4, code=COORDINATOR_NOT_AVAILABLE, leader="leader-2#1"), True),
        (acknowledged(1.5), False),
    ],
)
def test_what_is_held_can_be_acknowledged(before: list[Event], broken: bool) -> None:
    refused = acknowledged(3.0, code=INVALID_RECORD_STATE)
    found = rules_broken(loaded(0.5), FIRST, *before, *refused)
    assert ("acknowledgement refused without a reason" in found) == broken


def test_what_is_not_held_may_be_refused() -> None:
    for refused in (
        acknowledged(3.0, "m2", code=INVALID_RECORD_STATE),
        acknowledged(3.0, fetch=0, code=INVALID_RECORD_STATE),
        acknowledged(11.2, code=INVALID_RECORD_STATE),
        acknowledged(3.0, code=NOT_LEADER),
    ):
        assert not rules_broken(loaded(0.5), FIRST, *refused)


@pytest.mark.parametrize(("ended_at", "broken"), [(11.0004, False), (10.9996, True)])
def test_a_lock_ends_on_the_leaders_clock_of_whole_milliseconds(ended_at: float, broken: bool) -> None:
    """Acquired at 1.0008 s, which is 1,000 ms on that clock, a lock of 10 s is over when it shows 11,000 ms."""
    first = acquired(1.0008, 1.1)
    arrived, ended = acknowledged(5.0, code=INVALID_RECORD_STATE)
    assert isinstance(ended, AcknowledgeEnded)
    found = rules_broken(loaded(0.5), first, arrived, ended._replace(time=ended_at))
    assert ("acknowledgement refused without a reason" in found) == broken


# What was confirmed as ended


def ended(arrived_at: float, confirmed_at: float, *, kind: int = ACCEPT, code: int = 0, fetch: int = 1) -> list[Event]:
    arrived, answer = acknowledged(arrived_at, kind=kind, code=code, fetch=fetch)
    assert isinstance(answer, AcknowledgeEnded)
    return [arrived, answer._replace(time=confirmed_at)]


WAITED = acquired(1.2, 5.1, "m2", count=2, fetch=2)
"""By a fetch that waited at the leader since before the acknowledgement arrived."""


@pytest.mark.parametrize(
    ("end", "again", "allowed"),
    [
        (ended(5.0, 5.05), WAITED, False),
        (ended(5.0, 5.05, kind=REJECT), WAITED, False),
        (ended(5.0, 5.2), WAITED, False),  # acquired and answered before the end was confirmed
        (ended(5.0, 5.05, kind=RELEASE), WAITED, True),
        (ended(5.0, 5.05, code=INVALID_RECORD_STATE), WAITED, True),
        (ended(5.0, 5.05, code=COORDINATOR_NOT_AVAILABLE), WAITED, True),
        (ended(5.0, 5.05), acquired(20.0, 20.1, "m2", count=2, fetch=2), False),  # also when its lock has run out
        (ended(5.0, 5.05), acquired(0.8, 5.1, "m0", count=1, fetch=0), True),  # the answer of an earlier delivery
    ],
)
def test_no_acquisition_follows_a_confirmed_end(end: list[Event], again: Event, allowed: bool) -> None:
    found = rules_broken(loaded(0.5), FIRST, *end, again)
    assert ("acquired after its confirmed end" not in found) == allowed


@pytest.mark.parametrize(
    ("read", "count", "allowed"),
    [
        (loaded(6.1, leader="leader-2#1", epoch=2, arrived_at=6.0), 2, False),
        (loaded(6.1, arrived_at=6.0), 2, False),
        (loaded(6.1, leader="leader-2#1", epoch=2, arrived_at=4.0), 2, True),  # read before it was stored
        (loaded(6.1, leader="leader-2#1", epoch=2, arrived_at=6.0), 1, True),  # another rule's: the count is lost
        (loaded(6.1, leader="leader-2#1", epoch=2, arrived_at=6.0)._replace(state_epoch=2), 2, True),
    ],
)
def test_no_acquisition_follows_a_confirmed_end_in_a_later_tenure(read: StateLoaded, count: int, allowed: bool) -> None:
    again = acquired(6.5, 6.6, "m2", count=count, fetch=2, leader=read.leader)
    found = rules_broken(loaded(0.5), FIRST, *ended(5.0, 5.05), read, again)
    assert ("acquired after its confirmed end" not in found) == allowed


def test_an_acknowledgement_of_a_deleted_record_ends_nothing() -> None:
    """It arrives when another member has the record and it is deleted: it is confirmed, whatever it says."""
    again = acquired(11.2, 11.3, "m2", count=2, fetch=2)
    events = [loaded(0.5), FIRST, again, DeletionAsked(11.4, 0, 6), *ended(10.9, 11.5)]
    assert not rules_broken(*events, log_start=6)
    assert "acquired after its confirmed end" in rules_broken(*events)
    fetched_later = acquired(12.0, 12.1, "m3", count=3, fetch=3)
    assert "acquired after its confirmed end" in rules_broken(*events, fetched_later, log_start=6)


# What was confirmed is stored


def wrote(time: float, *batches: tuple[int, int, int, int], start: int = -1, confirmed: bool = True) -> list[Event]:
    call = int(time * 1000)
    events: list[Event] = [StateWriteArrived(time, call, LEADER, "g1", 0, 1, start, batches)]
    if confirmed:
        events.append(StateWritten(time + 0.1, time - 0.01, "g1", 0, 1, 1, start, batches, call))
    return events


RELEASED_TWICE = (5, 5, AVAILABLE, 2)
ACCEPTED = (5, 5, ACKNOWLEDGED, 2)


@pytest.mark.parametrize(
    ("events", "read", "broken"),
    [
        ([], (), False),
        (wrote(1.0, RELEASED_TWICE), (RELEASED_TWICE,), False),
        (wrote(1.0, RELEASED_TWICE), (), True),
        (wrote(1.0, RELEASED_TWICE), ((5, 5, AVAILABLE, 1),), True),
        (wrote(1.0, RELEASED_TWICE, confirmed=False), (), False),
        ([*wrote(1.0, RELEASED_TWICE), *wrote(2.0, ACCEPTED)], (RELEASED_TWICE,), True),
        ([*wrote(1.0, RELEASED_TWICE), *wrote(2.0, ACCEPTED)], (ACCEPTED,), False),
        ([*wrote(1.0, RELEASED_TWICE), *wrote(2.0, ACCEPTED, confirmed=False)], (RELEASED_TWICE,), False),
        ([*wrote(1.0, RELEASED_TWICE), *wrote(2.0, ACCEPTED, confirmed=False)], (ACCEPTED,), False),
        ([*wrote(1.0, ACCEPTED), *wrote(2.95, RELEASED_TWICE)], (ACCEPTED,), False),
        (wrote(1.0, start=1), (), True),
        (wrote(1.0, start=1, confirmed=False), (), False),
    ],
)
def test_what_was_confirmed_is_read(
    events: list[Event], read: tuple[tuple[int, int, int, int], ...], broken: bool
) -> None:
    begun = StateWritten(0.5, 0.4, "g1", 0, 1, -1, 0, ())
    evidence = evidence_of([begun, *events, loaded(3.1, *read, arrived_at=3.0)])
    found = {violation.rule for violation in StoredStateRules(evidence).violations()}
    assert found == ({"a confirmed state was not stored"} if broken else set())


def test_what_lies_below_the_stored_start_offset_needs_no_state() -> None:
    events = [StateWritten(0.5, 0.4, "g1", 0, 1, -1, 0, ()), *wrote(1.0, RELEASED_TWICE), *wrote(2.0, start=9)]
    evidence = evidence_of([*events, loaded(3.1, start=9, arrived_at=3.0)])
    assert not list(StoredStateRules(evidence).violations())


def test_a_new_state_epoch_begins_with_nothing() -> None:
    events = [
        StateWritten(0.5, 0.4, "g1", 0, 1, -1, 0, ()),
        *wrote(1.0, RELEASED_TWICE, start=4),
        StateWritten(2.0, 1.9, "g1", 0, 2, -1, 0, ()),
        loaded(3.1, arrived_at=3.0)._replace(state_epoch=2),
    ]
    assert not list(StoredStateRules(evidence_of(events)).violations())


@pytest.mark.parametrize(
    ("answered_at", "answered_epoch", "arrived_at", "write_epoch", "broken"),
    [
        (2.0, 3, 2.5, 2, True),
        (2.0, 3, 2.5, 3, False),
        (2.0, 3, 2.5, 4, False),
        (2.0, 3, 1.9, 2, False),  # side by side: the write may have taken effect first
        (2.0, -1, 2.5, 2, False),  # a read without a leader epoch fences nobody
        (2.0, 3, 2.5, -1, False),  # an initialization
    ],
)
@pytest.mark.parametrize("by", ["read", "write"])
def test_a_write_of_an_older_leader_epoch_is_refused_once_a_newer_one_was_answered(
    by: str, answered_at: float, answered_epoch: int, arrived_at: float, write_epoch: int, broken: bool
) -> None:
    answered: Event = loaded(answered_at, epoch=answered_epoch, arrived_at=1.0)
    if by == "write":
        answered = StateWritten(answered_at, 0.9, "g1", 0, 1, answered_epoch, 0, ())
    events: list[Event] = [
        StateWritten(0.5, 0.4, "g1", 0, 1, -1, 0, ()),
        answered,
        StateWriteArrived(arrived_at, 7, LEADER, "g1", 0, 1, 0, ()),
        StateWritten(3.0, 0.8, "g1", 0, 1, write_epoch, 0, (), 7),
    ]
    events.sort(key=lambda event: event.time)
    found = [violation.rule for violation in StoredStateRules(evidence_of(events)).violations()]
    assert found == (["a write of an older leader epoch was stored"] if broken else [])


def renewed(time: float, member: str = "m1", *, code: int = 0, fetch: int = 1) -> list[Event]:
    call = int(time * 1000)
    return [
        AcknowledgeArrived(time, call, LEADER, "g1", member, GATEWAY, 0, (), (), fetch, ((5, 5),)),
        AcknowledgeEnded(time + 0.01, call, LEADER, "g1", 0, code),
    ]


@pytest.mark.parametrize(
    ("between", "allowed"),
    [
        ([], True),
        (renewed(8.0), False),
        (renewed(8.0, code=INVALID_RECORD_STATE), True),
        (renewed(8.0, "m2"), True),
        ([*renewed(8.0), *acknowledged(9.0)], True),
    ],
)
def test_a_confirmed_renewal_prolongs_the_lock(between: list[Event], allowed: bool) -> None:
    found = rules_broken(loaded(0.5), FIRST, *between, acquired(11.4, 11.5, "m2", count=2, fetch=2))
    assert ("two holders" not in found) == allowed


def test_a_renewal_of_a_later_acquisition_does_not_revive_the_first() -> None:
    """It got the record again after its lock had run out, in an answer that was lost; then an old renewal arrived."""
    again, lost, next_one = acquired(11.2, 11.3, count=2, fetch=2), released(11.6, lost=[2]), acquired(11.7, 11.8, "m2")
    taken = next_one._replace(delivery_count=2, fetch_number=3)
    assert not rules_broken(loaded(0.5), FIRST, again, *renewed(11.5, fetch=2), lost, taken)
    assert "two holders" in rules_broken(loaded(0.5), FIRST, *renewed(9.0), taken)


def test_an_acknowledgement_within_a_renewed_lock_is_not_refused() -> None:
    refused = acknowledged(12.0, code=INVALID_RECORD_STATE)
    assert "acknowledgement refused without a reason" in rules_broken(loaded(0.5), FIRST, *renewed(8.0), *refused)
    assert not rules_broken(loaded(0.5), FIRST, *refused)


@pytest.mark.parametrize(
    ("acknowledgement", "allowed"),
    [
        (acknowledged(1.5), True),
        (acknowledged(1.5, "m2"), False),
        (acknowledged(1.5, "m2", code=INVALID_RECORD_STATE), True),
        (acknowledged(1.5, fetch=0), False),
        (acknowledged(1.5, offset=6), False),
        (acknowledged(11.1), True),
        (acknowledged(11.2), False),
        (acknowledged(11.2, code=INVALID_RECORD_STATE), True),
        ([*renewed(8.0), *acknowledged(17.9)], True),
        ([*renewed(8.0), *acknowledged(18.1)], False),
        (renewed(1.5, "m2"), False),
    ],
)
def test_only_the_holder_is_confirmed(acknowledgement: list[Event], allowed: bool) -> None:
    assert ("acknowledged without holding it" not in rules_broken(loaded(0.5), FIRST, *acknowledgement)) == allowed


@pytest.mark.parametrize(("member", "fetch", "allowed"), [("m1", 1, False), ("m2", 2, True), ("m2", 1, False)])
def test_whoever_got_the_record_last_is_its_holder(member: str, fetch: int, allowed: bool) -> None:
    events = (loaded(0.5), FIRST, released(1.5), SECOND, *acknowledged(3.0, member, fetch=fetch))
    assert ("acknowledged without holding it" not in rules_broken(*events)) == allowed
