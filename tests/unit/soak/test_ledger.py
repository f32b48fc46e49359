"""The ledger of a soak counts exactly what is wrong."""

from __future__ import annotations

import pytest

from soak.ledger import Decision, Ledger, Report, Sent

LIMIT = 5


def ledger_with(sent: list[Sent]) -> Ledger:
    ledger = Ledger("group")
    for known in sent:
        ledger.sent(ledger.next_number(), known)
    return ledger


def report(
    number: int,
    decision: Decision,
    *,
    count: int = 1,
    polled_at: float = 1.0,
    confirmed: bool = True,
    refused: bool = False,
) -> Report:
    """`refused`: the answer says that the decision had no effect."""
    return Report(
        polled_at=polled_at,
        came_at=polled_at + 0.1,
        confirmed_at=polled_at + 0.2,
        numbers=[number],
        partitions=[0],
        delivery_counts=[count],
        decisions=[decision],
        waited_s=[0.1],
        confirmed_partitions=frozenset([0] if confirmed and not refused else []),
        refused_partitions=frozenset([0] if refused else []),
    )


def test_a_record_that_is_released_and_then_accepted_is_settled_once() -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.RELEASE))
    ledger.add(report(0, Decision.ACCEPT, count=2, polled_at=2.0))
    assert (ledger.deliveries, ledger.redeliveries, ledger.settled) == (2, 1, 1)
    assert ledger.lost(LIMIT, {}) == []
    assert ledger.violations == []


def test_a_record_that_never_came_is_lost_unless_its_producer_had_no_answer_or_aborted() -> None:
    ledger = ledger_with([Sent.CONFIRMED, Sent.UNKNOWN, Sent.ABORTED, Sent.CONFIRMED])
    ledger.add(report(3, Decision.ACCEPT))
    assert ledger.lost(LIMIT, {}) == [0]


def test_an_acceptance_without_an_answer_is_counted_and_no_loss() -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.ACCEPT, confirmed=False))
    assert (ledger.unconfirmed_accepts, ledger.settled) == (1, 0)
    assert ledger.lost(LIMIT, {}) == []


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_record_that_was_only_released_is_lost(confirmed: bool) -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.RELEASE, confirmed=confirmed))
    assert ledger.lost(LIMIT, {}) == [0]
    assert ledger.describe(0) == "record 0 is lost; it was delivered with count 1"


def test_a_record_whose_lock_ran_out_before_its_acceptance_is_lost() -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.ACCEPT, refused=True))
    assert (ledger.unconfirmed_accepts, ledger.lost(LIMIT, {})) == (1, [0])


def test_an_acceptance_without_an_answer_counts_whatever_became_of_other_deliveries() -> None:
    ledger = ledger_with([Sent.CONFIRMED] * 2)
    for number, first in enumerate([True, False]):
        ledger.add(report(number, Decision.ACCEPT, confirmed=False, refused=first))
        ledger.add(report(number, Decision.ACCEPT, count=2, polled_at=2.0, confirmed=False, refused=not first))
    assert ledger.lost(LIMIT, {}) == []


def test_a_rejection_without_an_answer_is_no_loss_only_where_there_is_a_dead_letter() -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.REJECT, confirmed=False))
    assert ledger.lost(LIMIT, {}) == [0]
    assert ledger.lost(LIMIT, {0: 1}) == []


def test_a_record_that_was_delivered_up_to_the_limit_is_lost_unless_it_is_a_dead_letter() -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.ACCEPT, count=LIMIT, confirmed=False))
    assert ledger.lost(LIMIT, {}) == [0]
    assert ledger.lost(LIMIT, {0: 1}) == []


def test_a_delivery_after_the_confirmation_is_a_violation_but_an_earlier_one_shown_late_is_not() -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.ACCEPT, count=2))
    ledger.add(report(0, Decision.RELEASE, count=1, polled_at=9.0))
    assert ledger.redelivered_after_confirmation == 0
    ledger.add(report(0, Decision.RELEASE, count=3, polled_at=9.0))
    assert ledger.redelivered_after_confirmation == 1
    assert "record 0 came as delivery 3" in ledger.violations[0]


def test_two_confirmed_decisions_are_a_violation() -> None:
    ledger = ledger_with([Sent.CONFIRMED])
    ledger.add(report(0, Decision.ACCEPT))
    ledger.add(report(0, Decision.ACCEPT, polled_at=1.1))
    assert ledger.settled_twice == 1


def test_a_record_of_an_aborted_transaction_that_is_delivered_is_found_also_before_the_abort_is_known() -> None:
    ledger = ledger_with([Sent.ABORTED, Sent.UNKNOWN, Sent.ABORTED])
    ledger.add(report(0, Decision.ACCEPT))
    ledger.add(report(1, Decision.ACCEPT))
    assert ledger.aborted_delivered() == [0]
    ledger.sent(1, Sent.ABORTED)
    assert ledger.aborted_delivered() == [0, 1]
    assert ledger.lost(LIMIT, {}) == []


def test_dead_letters_are_the_rejected_records_each_once() -> None:
    ledger = ledger_with([Sent.CONFIRMED] * 4)
    ledger.add(report(0, Decision.REJECT))
    ledger.add(report(1, Decision.ACCEPT))
    ledger.add(report(2, Decision.REJECT, confirmed=False))
    assert ledger.dead_letter_problems({0: 1}) == []
    assert ledger.dead_letter_problems({0: 1, 2: 1}) == []
    assert len(ledger.dead_letter_problems({})) == 1
    assert len(ledger.dead_letter_problems({0: 2})) == 1
    assert len(ledger.dead_letter_problems({0: 1, 1: 1})) == 1
    assert len(ledger.dead_letter_problems({0: 1, 3: 1})) == 1
