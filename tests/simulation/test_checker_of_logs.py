"""The checker's rules of transactions, deleted records and dead letters: each finds its breach, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from support.simulation.checker import Checker, Expectations, RecordKey
from support.simulation.evidence import DeadLetter, Evidence
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeArrived,
    AcknowledgeSent,
    Acquired,
    DeletionAsked,
    Delivered,
    EndArrived,
    Event,
    History,
    ProduceConfirmed,
    ProduceSent,
    RecordsDeleted,
    TransactionBegun,
    TransactionEndConfirmed,
    TransactionEndSent,
)
from support.simulation.kafka_clients.protocol import ReadRecord
from support.simulation.rules.logs import logs_are_dense, logs_do_not_change

ACCEPT, RELEASE, REJECT = 1, 2, 3
LIMIT = 3


def produced(values: str = "ab", *, base_offset: int = 0, confirmed: bool = True) -> list[Event]:
    events: list[Event] = [ProduceSent(0.0, "p1", 0, tuple(values))]
    return [*events, *([ProduceConfirmed(0.1, "p1", 0, base_offset, tuple(values))] if confirmed else [])]


def transaction(values: str = "ab", *, end: bool | None = True, confirmed: bool = True) -> list[Event]:
    events: list[Event] = [TransactionBegun(0.0, "p1", 0, tuple(values))]
    if end is not None:
        events.append(TransactionEndSent(0.5, "p1", 0, end))
        if confirmed:
            events.append(TransactionEndConfirmed(0.6, "p1", 0, end))
    return events


def delivered(
    offset: int, value: str, *, sent_at: float = 1.0, time: float = 1.5, count: int = 1, kind: int = ACCEPT
) -> list[Event]:
    """Delivered, acknowledged, and the answer."""
    number = int(time * 1000) * 100 + offset
    run = (offset, offset)
    return [
        Acquired(time - 0.001, sent_at, "g1", "m1", 0, run, count),
        Delivered(time, sent_at, "g1", "m1", "gateway-1", 0, run, count, (value,)),
        AcknowledgeArrived(time + 0.15, number, "", "g1", "m1", "", 0, (run,), (kind,), 0),
        AcknowledgeSent(time + 0.1, number, "g1", "m1", 0, run, kind),
        AcknowledgeAnswered(time + 0.2, number, 0),
    ]


def rules_broken(
    *parts: Sequence[Event],
    log: Sequence[ReadRecord],
    start: int = 0,
    committed_only: bool = False,
    letters: Sequence[DeadLetter] | None = None,
) -> set[str]:
    history = History()
    for event in sorted((event for part in parts for event in part), key=lambda event: event.time):
        history.add(event)
    expected = Expectations(
        groups=["g1"],
        logs={0: log},
        delivery_count_limit=LIMIT,
        lock_duration_s=10.0,
        log_starts={0: start},
        committed_groups=["g1"] if committed_only else [],
        dead_letters={} if letters is None else {"g1": letters},
    )
    return {violation.rule for violation in Checker(history, expected).check()}


A, B = ReadRecord(0, "a"), ReadRecord(1, "b")
ABORTED_A, ABORTED_B = A._replace(committed=False), B._replace(committed=False)
BOTH = [*delivered(0, "a"), *delivered(1, "b")]


@pytest.mark.parametrize(
    ("caller", "ends", "is_broken"),
    [
        ("gateway-1#1", ["gateway-2#1"], False),
        ("gateway-1#1", ["gateway-1#2"], False),
        ("gateway-1#1", ["gateway-1#1"], True),
        ("gateway-2#1", ["gateway-1#1", "gateway-2#1"], True),
        ("gateway-1#1", [], True),
    ],
)
def test_the_end_of_an_earlier_transaction_that_was_repeated_at_another_gateway_is_no_fault_of_this_one(
    caller: str, ends: Sequence[str], is_broken: bool
) -> None:
    events: list[Event] = [TransactionBegun(0.0, "p1", 0, ()), TransactionEndSent(0.1, "p1", 0, True)]
    events += [EndArrived(0.2, 0.15, each, "p1", True) for each in ends]
    events += [TransactionEndConfirmed(0.3, "p1", 0, True), TransactionBegun(0.4, "p1", 1, ("a", "b"))]
    events += [EndArrived(0.5, 0.12, caller, "p1", True)]
    broken = rules_broken(produced(), events, BOTH, log=[A, B], committed_only=True)
    assert broken == ({"committed without being asked to", "delivered before it was committed"} if is_broken else set())


@pytest.mark.parametrize(
    ("ending", "log", "rule"),
    [
        ({"end": True}, [A, B], None),
        ({"end": True}, [ABORTED_A, ABORTED_B], "committed, and yet aborted"),
        ({"end": True}, [A, ABORTED_B], "committed, and yet aborted"),
        ({"end": False}, [ABORTED_A, ABORTED_B], None),
        ({"end": False}, [A, ABORTED_B], "committed without being asked to"),
        ({"end": None}, [ABORTED_A, ABORTED_B], None),
        ({"end": None}, [A, B], "committed without being asked to"),
        ({"end": True, "confirmed": False}, [A, B], None),
        ({"end": True, "confirmed": False}, [ABORTED_A, ABORTED_B], None),
        ({"end": True, "confirmed": False}, [A, ABORTED_B], "half of a transaction"),
    ],
)
def test_transactions_end_as_they_were_asked_to(
    ending: dict[str, Any], log: list[ReadRecord], rule: str | None
) -> None:
    assert rules_broken(produced(), transaction(**ending), BOTH, log=log) == ({rule} if rule else set())


def test_a_transaction_whose_start_was_deleted_is_not_half() -> None:
    end = transaction(end=True, confirmed=False)
    assert not rules_broken(produced(), end, delivered(1, "b"), log=[B], start=1)


def test_a_fenced_producers_records_are_in_no_log() -> None:
    late: list[Event] = [ProduceSent(0.9, "p1", 0, ("late",))]
    log = [A, B, ReadRecord(2, "late", committed=False)]
    found = rules_broken(produced(), transaction(), late, BOTH, delivered(2, "late"), log=log)
    assert found == {"a fenced producer was not refused"}


@pytest.mark.parametrize(
    ("committed_only", "deliveries", "broken"),
    [
        (True, [], set()),
        (True, BOTH, {"an aborted record was delivered", "delivered before it was committed"}),
        (False, [], {"skipped"}),
        (False, BOTH, set()),
    ],
)
def test_aborted_records_are_for_read_uncommitted_groups(
    committed_only: bool, deliveries: list[Event], broken: set[str]
) -> None:
    log = [ABORTED_A, ABORTED_B]
    assert (
        rules_broken(produced(), transaction(end=False), deliveries, log=log, committed_only=committed_only) == broken
    )


@pytest.mark.parametrize(("time", "broken"), [(0.4, True), (1.5, False)])
def test_a_committed_record_is_delivered_after_its_commit(time: float, broken: bool) -> None:
    found = rules_broken(
        produced("a"),
        transaction("a"),
        delivered(0, "a", sent_at=time - 0.2, time=time),
        log=[A],
        committed_only=True,
    )
    assert ("delivered before it was committed" in found) == broken


def test_committed_records_are_not_skipped() -> None:
    assert rules_broken(produced(), transaction(), delivered(0, "a"), log=[A, B], committed_only=True) == {"skipped"}


@pytest.mark.parametrize(
    ("start", "rules"),
    [(1, set()), (0, {"produced and confirmed, but lost"})],
)
def test_what_was_deleted_is_neither_lost_nor_skipped(start: int, rules: set[str]) -> None:
    assert rules_broken(produced(), delivered(1, "b"), log=[B], start=start) == rules


def test_a_deleted_record_was_delivered_as_it_was_produced() -> None:
    assert rules_broken(produced(), delivered(0, "x"), delivered(1, "b"), log=[B], start=1) == {
        "delivered what is not in the log"
    }


@pytest.mark.parametrize(
    ("sent_at", "start", "rules"),
    [
        (1.0, 1, set()),
        (3.0, 1, {"deleted, and delivered afterwards"}),
        (1.0, 0, {"the log start went back"}),
    ],
)
def test_deleted_records_stay_deleted(sent_at: float, start: int, rules: set[str]) -> None:
    deleted: list[Event] = [RecordsDeleted(2.0, 0, 1)]
    log = [B] if start else [A, B]
    first = delivered(0, "a", sent_at=sent_at, time=3.5)
    assert rules_broken(produced(), deleted, first, delivered(1, "b"), log=log, start=start) == rules


KEY = RecordKey("g1", 0, 0)
LETTER = DeadLetter(KEY, 1, "a")
REJECTED = delivered(0, "a", kind=REJECT)
ACCEPTED = delivered(0, "a")
EXHAUSTED = [
    event
    for count in range(1, LIMIT + 1)
    for event in delivered(0, "a", sent_at=count, time=count + 0.5, count=count, kind=RELEASE)
]


@pytest.mark.parametrize(
    ("deliveries", "letters", "rule"),
    [
        (REJECTED, [LETTER], None),
        (EXHAUSTED, [LETTER], None),
        (ACCEPTED, [], None),
        (REJECTED[:-1], [], "given up without a dead letter"),
        (REJECTED[:-1], [LETTER], None),
        (ACCEPTED[:-1], [], None),
        (REJECTED, [], "given up without a dead letter"),
        (EXHAUSTED, [], "given up without a dead letter"),
        (ACCEPTED, [LETTER], "a dead letter of a record that was not given up"),
        (REJECTED, [LETTER, LETTER], "two dead letters of one record"),
        (REJECTED, [LETTER._replace(value="x")], "a dead letter with another record's value"),
        (
            REJECTED,
            [LETTER, DeadLetter(RecordKey("g2", 0, 0), 1, "a")],
            "a dead letter of a record that was not given up",
        ),
    ],
)
def test_dead_letters_are_what_was_given_up(
    deliveries: list[Event], letters: list[DeadLetter], rule: str | None
) -> None:
    found = rules_broken(produced("a"), deliveries, log=[A], letters=letters)
    assert found == ({rule} if rule else set())


def test_a_late_acceptance_of_a_deleted_record_says_nothing() -> None:
    late = [*EXHAUSTED[:-2], AcknowledgeSent(9.0, 1, "g1", "m1", 0, (0, 0), ACCEPT), AcknowledgeAnswered(9.1, 1, 0)]
    deletion = DeletionAsked(8.0, 0, 1)
    assert not rules_broken(produced("a"), late, [deletion], log=[], start=1, letters=[LETTER])
    rule = "a dead letter of a record that was not given up"
    assert rules_broken(produced("a"), late, log=[A], letters=[LETTER]) == {rule}
    after_it = deletion._replace(sent_at=9.2)
    assert rules_broken(produced("a"), late, [after_it], log=[], start=1, letters=[LETTER]) == {rule}


def test_a_deleted_record_may_have_a_dead_letter_or_none() -> None:
    for letters in ([], [LETTER]):
        assert not rules_broken(produced("a"), REJECTED, log=[], start=1, letters=letters)


RECORDS = [ReadRecord(0, "a", True, ()), ReadRecord(1, "b", True, ()), ReadRecord(3, "c", False, ())]


@pytest.mark.parametrize(
    ("start", "end", "markers", "rule"),
    [
        (0, 4, [2], None),
        (0, 5, [2, 4], None),
        (1, 4, [2], "two records at one offset"),
        (0, 4, [], "a gap in the log"),
        (0, 5, [2], "a gap in the log"),
        (0, 4, [2, 3], "two records at one offset"),
    ],
)
def test_the_offsets_of_a_log_are_dense(start: int, end: int, markers: list[int], rule: str | None) -> None:
    expected = Expectations(
        groups=[],
        logs={0: RECORDS},
        delivery_count_limit=LIMIT,
        lock_duration_s=10.0,
        log_starts={0: start},
        log_ends={0: end},
        log_markers={0: markers},
    )
    assert {found.rule for found in logs_are_dense(Evidence(History(), expected))} == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("start", "earlier", "changed"),
    [
        (0, RECORDS, False),
        (0, RECORDS[:1], False),
        (0, [ReadRecord(1, "x", True, ())], True),
        (0, [ReadRecord(3, "c", True, ())], True),
        (0, [ReadRecord(2, "gone", True, ())], True),
        (3, [ReadRecord(2, "deleted", True, ())], False),
    ],
)
def test_the_records_of_a_log_do_not_change(start: int, earlier: list[ReadRecord], changed: bool) -> None:
    expected = Expectations(
        groups=[],
        logs={0: RECORDS},
        delivery_count_limit=LIMIT,
        lock_duration_s=10.0,
        log_starts={0: start},
        earlier_logs={0: earlier},
    )
    assert bool(list(logs_do_not_change(Evidence(History(), expected)))) == changed
