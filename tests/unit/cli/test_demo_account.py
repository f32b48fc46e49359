"""The demo's account is right only when every order was settled exactly once, and the demonstration took place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kshare.demo.account import ACCEPT, REJECT, RELEASE, Account
from kshare.demo.worker import BEHAVIOURS, CRASHING, REJECTING, RELEASING, STEADY, answer_to


def right_account() -> Account:
    """Five orders: 0 is released first, 1 rejected, 2 and 3 were held at the crash."""
    account = Account(expected=5)
    account.add_produced(range(5))
    account.add_confirmed("ann", 0, RELEASE, 1)
    account.add_confirmed("bob", 0, ACCEPT, 2)
    account.add_confirmed("bob", 1, REJECT, 1)
    account.add_crash("cat", [2, 3])
    account.add_confirmed("ann", 2, ACCEPT, 2)
    account.add_confirmed("ann", 3, ACCEPT, 2)
    account.add_confirmed("ann", 4, ACCEPT, 1)
    return account


def test_a_right_account() -> None:
    account = right_account()
    assert account.problems() == [] and account.is_complete
    assert dict(account.rows()) == {
        "produced": 5,
        "accepted": 4,
        "rejected": 1,
        "redelivered": 3,
        "  of these released by a worker": 1,
        "  of these held by the worker that crashed": 2,
        "lost": 0,
        "accepted twice": 0,
    }


WRONG: dict[str, tuple[Callable[[Account], None], str]] = {
    "accepted by two": (lambda account: account.add_confirmed("bob", 4, ACCEPT, 2), "accepted twice: 1 (4)"),
    "accepted after its rejection": (
        lambda account: account.add_confirmed("bob", 1, ACCEPT, 2),
        "rejected and accepted: 1 (1)",
    ),
    "rejected by two": (lambda account: account.add_confirmed("bob", 1, REJECT, 2), "rejected twice"),
    "settled and never stored": (
        lambda account: account.add_confirmed("bob", 9, ACCEPT, 1),
        "settled but not produced: 1 (9)",
    ),
    "lost": (lambda account: account.accepted.__delitem__(4), "lost: 1 (4)"),
    "not stored": (lambda account: account.produced.discard(4), "1 orders could not be produced"),
    "not redelivered": (lambda account: account.add_crash("cat", [4]), "not redelivered after the crash: 1 (4)"),
    "no crash": (lambda account: account.held_at_crash.clear(), "no worker crashed"),
    "no release": (lambda account: account.released.clear(), "no order was released"),
    "no rejection": (lambda account: account.rejected.clear(), "no order was rejected"),
}


@pytest.mark.parametrize(("change", "problem"), WRONG.values(), ids=WRONG)
def test_a_wrong_account_says_what_is_wrong(change: Callable[[Account], None], problem: str) -> None:
    account = right_account()
    change(account)
    assert any(problem in found for found in account.problems()), account.problems()


def test_orders_in_hand_at_the_crash_are_lost_until_another_settles_them() -> None:
    account = Account(expected=1)
    account.add_produced([0])
    account.add_crash("cat", [0])
    assert account.lost == {0} and not account.is_complete
    account.add_confirmed("ann", 0, ACCEPT, 2)
    assert account.lost == set() and account.is_complete


def test_a_released_order_is_released_once_only() -> None:
    """Else an order could reach the delivery limit and be archived, unaccounted for."""
    for behaviour in BEHAVIOURS:
        for order in range(100):
            assert answer_to(behaviour, order, 2) != RELEASE


@pytest.mark.parametrize(
    ("behaviour", "answers"),
    [(STEADY, {ACCEPT}), (CRASHING, {ACCEPT}), (RELEASING, {ACCEPT, RELEASE}), (REJECTING, {ACCEPT, REJECT})],
)
def test_what_each_behaviour_answers(behaviour: str, answers: set[str]) -> None:
    assert {answer_to(behaviour, order, 1) for order in range(100)} == answers
