"""The checker on small histories: each rule finds its breach, and nothing in a history that keeps the rules."""

from __future__ import annotations

import pytest

from support.simulation.checker import Checker, Expectations
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeArrived,
    AcknowledgeEnded,
    AcknowledgeSent,
    Acquired,
    DeletionAsked,
    Delivered,
    Event,
    FaultEvent,
    History,
    ProduceConfirmed,
    ProduceSent,
    StateWritten,
)
from support.simulation.kafka_clients.protocol import ReadRecord

ACCEPT, RELEASE, REJECT = 1, 2, 3
INVALID_RECORD_STATE = 121
NOT_LEADER_OR_FOLLOWER = 6


def produced(*, base_offset: int = 0) -> list[Event]:
    return [
        ProduceSent(0.0, "p1", 0, ("a", "b")),
        ProduceConfirmed(0.1, "p1", 0, base_offset, ("a", "b")),
    ]


def delivered(
    sent_at: float, time: float, member: str = "m1", *, count: int = 1, run: tuple[int, int] = (0, 1)
) -> list[Event]:
    values = tuple("ab"[offset] for offset in range(run[0], run[1] + 1))
    return [
        Acquired(time - 0.001, sent_at, "g1", member, 0, run, count),
        Delivered(time, sent_at, "g1", member, "gateway-1", 0, run, count, values),
    ]


def acknowledged(
    number: int, time: float, member: str = "m1", *, kind: int = ACCEPT, code: int = 0, run: tuple[int, int] = (0, 1)
) -> list[Event]:
    return [
        AcknowledgeArrived(time + 0.04, number, "", "g1", member, "", 0, (run,), (kind,), 0),
        AcknowledgeEnded(time + 0.06, number, "", "g1", 0, code),
        AcknowledgeSent(time, number, "g1", member, 0, run, kind),
        AcknowledgeAnswered(time + 0.1, number, code),
    ]


def rules_broken(
    *parts: list[Event],
    log: tuple[str, ...] = ("a", "b"),
    limit: int = 3,
    calm: bool = False,
    orderly: bool = False,
    log_start: int = 0,
) -> set[str]:
    history = History()
    for event in sorted((event for part in parts for event in part), key=lambda event: event.time):
        history.add(event)
    logs = {0: [ReadRecord(offset, value) for offset, value in enumerate(log)]}
    expected = Expectations(
        groups=["g1"],
        logs=logs,
        delivery_count_limit=limit,
        lock_duration_s=10.0,
        calm=calm,
        orderly=orderly,
        log_starts={0: log_start},
    )
    return {violation.rule for violation in Checker(history, expected).check()}


BY_THE_LEADERS_KNOWLEDGE = {"two holders", "acquired after its confirmed end"}


def test_a_good_history_breaks_nothing() -> None:
    releases_first = acknowledged(1, 2.0, kind=RELEASE)
    again = delivered(2.5, 3.0, "m2", count=2)
    assert not rules_broken(
        produced(), delivered(1.0, 1.5), releases_first, again, acknowledged(2, 4.0, "m2"), calm=True
    )


def test_delivery_after_a_confirmed_accept() -> None:
    late = delivered(2.2, 2.5, "m2", count=2)
    assert rules_broken(produced(), delivered(1.0, 1.5), acknowledged(1, 2.0), late) == {
        "delivered after its confirmation",
        *BY_THE_LEADERS_KNOWLEDGE,
    }


def test_a_delivery_that_clients_may_take_for_an_earlier_one_is_judged_by_the_leaders_knowledge() -> None:
    """As of a fetch that waits at the leader when the acknowledgement arrives."""
    overlapping = delivered(2.03, 2.5, "m2", count=2)
    found = rules_broken(produced(), delivered(1.0, 1.5), acknowledged(1, 2.0), overlapping)
    assert found == BY_THE_LEADERS_KNOWLEDGE


def test_breaches_of_one_rule_do_not_hide_another_one() -> None:
    """More than three records with two holders come before the answer that confirms their end."""
    second, third = delivered(2.03, 2.05, "m2", count=2), delivered(2.03, 2.055, "m3", count=3)
    found = rules_broken(produced(), delivered(1.0, 1.5), acknowledged(1, 2.0), second, third)
    assert found == BY_THE_LEADERS_KNOWLEDGE


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (("a", "b", "a"), "twice in the log"),
        (("a", "b", "x"), "in the log, but never produced"),
        (("b", "a"), "out of order in the log"),
        (("a",), "produced and confirmed, but lost"),
        (("b", "b", "a"), "not where the answer said"),
    ],
)
def test_logs_that_are_wrong(log: tuple[str, ...], rule: str) -> None:
    assert rule in rules_broken(produced(), delivered(1.0, 1.5), acknowledged(1, 2.0), log=log)


def test_delivered_is_what_the_log_has() -> None:
    broken = rules_broken(produced(base_offset=-1), delivered(1.0, 1.5), acknowledged(1, 2.0), log=("b", "a"))
    assert "delivered what is not in the log" in broken


@pytest.mark.parametrize(
    ("parts", "skipped"),
    [
        ([], True),
        ([delivered(1.0, 1.5)], True),
        ([delivered(1.0, 1.5), acknowledged(1, 2.0, kind=RELEASE)], True),
        ([delivered(1.0, 1.5), acknowledged(1, 2.0, code=INVALID_RECORD_STATE)], True),
        ([delivered(1.0, 1.5), acknowledged(1, 2.0, run=(0, 0))], True),
        ([delivered(1.0, 1.5), acknowledged(1, 2.0)[2:3]], False),
        ([delivered(1.0, 1.5, count=3)], False),
    ],
)
def test_nothing_is_skipped(parts: list[list[Event]], skipped: bool) -> None:
    assert ("skipped" in rules_broken(produced(), *parts)) == skipped


@pytest.mark.parametrize(("count", "rule"), [(4, "outside 1 to the limit"), (0, "outside 1 to the limit")])
def test_delivery_counts_are_within_the_limit(count: int, rule: str) -> None:
    found = rules_broken(produced(), delivered(1.0, 1.5, count=count), acknowledged(1, 2.0))
    assert any(rule in broken for broken in found)


def test_a_confirmed_release_is_remembered_whatever_dies() -> None:
    crash: list[Event] = [FaultEvent(2.3, "crash", ("leader-1",), "")]
    first, again = delivered(1.0, 1.5), delivered(2.5, 3.0, "m2", count=1)
    released = acknowledged(1, 2.0, kind=RELEASE)
    assert "delivery count forgotten" in rules_broken(
        produced(), first, released, crash, again, acknowledged(2, 4.0, "m2")
    )


@pytest.mark.parametrize(
    ("first", "second", "broken"),
    [
        (ACCEPT, ACCEPT, True),
        (ACCEPT, REJECT, True),
        (REJECT, ACCEPT, True),
        (REJECT, REJECT, True),
        (RELEASE, ACCEPT, False),
        (RELEASE, REJECT, False),
    ],
)
def test_no_record_ends_twice(first: int, second: int, broken: bool) -> None:
    twice = [*acknowledged(1, 2.0, kind=first), *acknowledged(2, 2.05, "m2", kind=second)]
    found = rules_broken(produced(), delivered(1.0, 1.5), delivered(1.5, 1.8, "m2", count=2), twice)
    assert ("ended twice" in found) == broken
    assert "ended twice" not in rules_broken(produced(), delivered(1.0, 1.5), acknowledged(1, 2.0))


@pytest.mark.parametrize(
    ("batches_behind", "answered_at", "may_be_deleted"), [(10, 9.0, True), (10, 2.2, False), (5, 9.0, False)]
)
def test_retention_excuses_two_ends_only_once_enough_was_produced_behind_the_record(
    batches_behind: int, answered_at: float, may_be_deleted: bool
) -> None:
    """Ten records of 100 bytes are about 1,150 bytes; the topic keeps 8,000."""
    made = [[f"v{number}-{index}-".ljust(100, "x") for index in range(10)] for number in range(batches_behind + 1)]
    history = History()
    events: list[Event] = []
    for number, values in enumerate(made):
        sent_at = 0.0 if number == 0 else 3.0
        events.append(ProduceSent(sent_at, "p1", 0, tuple(values)))
        events.append(ProduceConfirmed(sent_at + 0.1, "p1", 0, 10 * number, tuple(values)))
    for member, ended_at in (("m1", 2.0), ("m2", answered_at)):
        acknowledge_id = int(ended_at * 10)
        events.append(Delivered(1.5, 1.0, "g1", member, "gateway-1", 0, (0, 0), 1, tuple(made[0][:1])))
        events.append(AcknowledgeSent(1.9, acknowledge_id, "g1", member, 0, (0, 0), ACCEPT))
        events.append(AcknowledgeAnswered(ended_at, acknowledge_id, 0))
    for event in sorted(events, key=lambda event: event.time):
        history.add(event)
    end = 10 * len(made)
    kept = [ReadRecord(end - 10 + index, value) for index, value in enumerate(made[-1])]
    expected = Expectations(
        groups=[],
        logs={0: kept},
        delivery_count_limit=3,
        lock_duration_s=10.0,
        log_starts={0: end - 10},
        log_ends={0: end},
        retention_bytes=8_000,
        is_tapped=False,
    )
    found = {violation.rule for violation in Checker(history, expected).check()}
    assert found == (set() if may_be_deleted else {"ended twice"})


def test_an_accept_of_a_record_that_was_deleted_before_its_answer_does_nothing() -> None:
    given = [*produced(), *delivered(1.0, 1.5), *delivered(1.5, 1.8, "m2", count=2), *acknowledged(2, 2.05, "m2")]
    waited_long: list[Event] = [AcknowledgeSent(2.0, 1, "g1", "m1", 0, (0, 1), ACCEPT), AcknowledgeAnswered(4.0, 1, 0)]
    deletion = DeletionAsked(3.0, 0, 2)
    assert "ended twice" not in rules_broken(given, waited_long, [deletion], log_start=2)
    after_its_answer = deletion._replace(sent_at=5.0)
    assert "ended twice" in rules_broken(given, waited_long, [after_its_answer], log_start=2)
    assert "ended twice" in rules_broken(given, waited_long, log_start=2)


def test_what_is_delivered_was_acquired_by_this_member() -> None:
    acquired, stolen = delivered(1.0, 1.5)[:1], delivered(1.0, 1.5, "m2")[1:]
    found = rules_broken(produced(), acquired, stolen, acknowledged(1, 2.0, "m2"))
    assert "delivered without being acquired" in found


def test_what_was_sent_before_the_newer_write_may_be_confirmed_late() -> None:
    new = StateWritten(1.0, 0.9, "g1", 0, 2, 5, 10, (), 2, "share-coordinator-2#1")
    late = StateWritten(1.5, 0.5, "g1", 0, 2, 5, 7, (), 1, "share-coordinator-1#1")
    same_owner = "share-coordinator-2#1"
    rest = [produced(), delivered(1.0, 1.5), acknowledged(1, 2.0)]
    assert rules_broken(*rest, [new, late]) == set()
    assert rules_broken(*rest, [new, late._replace(share_coordinator=same_owner)]) == set()
    assert rules_broken(*rest, [new, late._replace(sent_at=0.95)]) == set(), "another owner may have stored it before"
    others: list[list[Event]] = [
        [new, late._replace(sent_at=1.2)],
        [new, late._replace(sent_at=0.95, share_coordinator=same_owner)],
        [new, late, late._replace(time=3.0, sent_at=2.9)],
    ]
    for other in others:
        assert rules_broken(*rest, other) == {"state went back"}


@pytest.mark.parametrize(
    ("second", "broken"),
    [
        ({"leader_epoch": 4}, True),
        ({"state_epoch": 1}, True),
        ({"start_offset": 9}, True),
        ({"start_offset": -1}, False),
        ({"start_offset": 11}, False),
    ],
)
def test_state_moves_forwards(second: dict[str, int], broken: bool) -> None:
    first = StateWritten(1.0, 0.9, "g1", 0, 2, 5, 10, ())
    after = first._replace(time=2.0, **second)  # type: ignore[arg-type]
    rest = [produced(), delivered(1.0, 1.5), acknowledged(1, 2.0)]
    assert ("state went back" in rules_broken(*rest, [first, after])) == broken


def test_a_start_offset_that_is_not_named_does_not_hide_one_that_goes_back() -> None:
    first = StateWritten(1.0, 0.9, "g1", 0, 2, 5, 10, ())
    states: list[Event] = [first, first._replace(time=2.0, start_offset=-1), first._replace(time=3.0, start_offset=9)]
    assert rules_broken(produced(), delivered(1.0, 1.5), acknowledged(1, 2.0), states) == {"state went back"}


@pytest.mark.parametrize("calm", [False, True])
def test_without_faults_no_acknowledgement_fails(calm: bool) -> None:
    failed = acknowledged(1, 2.0, code=NOT_LEADER_OR_FOLLOWER)
    rest = [delivered(13.0, 13.5, "m2", count=3), acknowledged(2, 14.0, "m2")]
    found = rules_broken(produced(), delivered(1.0, 1.5), failed, *rest, calm=calm)
    assert ("acknowledgement failed without a fault" in found) == calm


def test_a_violation_shows_what_happened_to_the_record() -> None:
    history = History()
    for event in [*produced(), *delivered(1.0, 1.5), *acknowledged(7, 2.0), *delivered(2.2, 2.5, "m2", count=2)]:
        history.add(event)
    logs = {0: [ReadRecord(0, "a"), ReadRecord(1, "b")]}
    expected = Expectations(groups=["g1"], logs=logs, delivery_count_limit=3, lock_duration_s=10.0)
    text = str(Checker(history, expected).check()[0])
    assert "g1/0@0" in text and "acknowledge_id=7" in text and text.count("Delivered(") >= 2


NOT_LEADER = 6


def test_an_error_that_stands_for_an_effect() -> None:
    """Nothing else ended the records, so the acknowledgement did."""
    refused = acknowledged(1, 2.0, code=NOT_LEADER)
    rule = "answered with an error, and took effect"
    assert rules_broken(produced(), delivered(1.0, 1.5), refused, orderly=True) == {rule}
    assert not rules_broken(produced(), delivered(1.0, 1.5), refused), "after a crash it may stand for anything"


def test_an_error_without_an_effect() -> None:
    refused = acknowledged(1, 2.0, code=NOT_LEADER)
    again = [*delivered(11.5, 12.0, "m2", count=2), *acknowledged(2, 13.0, "m2")]
    assert not rules_broken(produced(), delivered(1.0, 1.5), refused, again, orderly=True)
    to_the_limit = delivered(11.5, 12.0, "m2", count=2)
    assert not rules_broken(produced(), delivered(1.0, 1.5), refused, to_the_limit, limit=2, orderly=True)
