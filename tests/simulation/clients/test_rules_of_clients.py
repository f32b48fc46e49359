"""The rules that clients' events alone can prove broken, on histories that break them and on those that may not."""

from __future__ import annotations

import pytest

from kshare_core.states import AcknowledgeType
from support.recorded.client_rules import ClientKnowledge, broken_client_rules
from support.recorded.members import MemberEvent
from support.recorded.stalls import Window
from support.simulation.history import AcknowledgeAnswered, AcknowledgeSent, Delivered

STARTED_AT = {"a": 0.0, "b": 0.0, "late": 5.0}
GIVEN_TWICE = "one delivery given twice"
WENT_BACK = "delivery count went back"
NO_HOLDER = "confirmed to another than the holder"


def delivered(time: float, count: int, member: str = "a", offset: int = 0) -> Delivered:
    return Delivered(time, time - 0.1, "g", member, "", 0, (offset, offset), count, ("value",))


def accepted(time: float, member: str = "a", *, code: int | None = 0) -> list[MemberEvent]:
    """Sent, and answered a little later; code None: never."""
    number = round(time * 10)
    sent = AcknowledgeSent(time, number, "g", member, 0, (0, 0), int(AcknowledgeType.ACCEPT))
    return [sent] if code is None else [sent, AcknowledgeAnswered(time + 0.1, number, code)]


def broken(*events: MemberEvent, windows: tuple[Window, ...] = ()) -> list[str]:
    known = ClientKnowledge({"value": 1.0}, STARTED_AT, windows)
    return [violation.rule for violation in broken_client_rules(events, known)]


FAULT = Window("killed", 3.0, 4.0, 10.0)
OLD_FAULT = Window("killed", -20.0, -15.0, 10.0)


@pytest.mark.parametrize("again", [delivered(6.0, 1, "b"), delivered(6.0, 1)])
def test_a_delivery_that_two_members_get_or_one_gets_twice(again: Delivered) -> None:
    assert broken(delivered(2.0, 1), again) == [GIVEN_TWICE]
    assert broken(again, delivered(2.0, 1), windows=(OLD_FAULT,)) == [GIVEN_TWICE]


def test_a_leader_may_have_forgotten_a_delivery_in_a_fault_or_in_the_recovery_from_it() -> None:
    assert broken(delivered(2.0, 1), delivered(6.0, 1, "b"), windows=(FAULT,)) == []
    assert broken(delivered(6.0, 1), delivered(7.0, 1, "b"), windows=(FAULT,)) == []
    # "late" began after it: what it got was acquired after the recovery.
    assert broken(delivered(6.0, 1, "late"), delivered(7.0, 1, "b"), windows=(OLD_FAULT,)) == [GIVEN_TWICE]


def test_a_lower_count_that_was_certainly_acquired_later() -> None:
    assert broken(delivered(2.0, 2), delivered(6.0, 1, "late")) == [WENT_BACK]
    assert broken(delivered(2.0, 2), delivered(6.0, 1, "late"), windows=(FAULT,)) == []


def test_a_lower_count_that_its_client_shows_late_is_none() -> None:
    assert broken(delivered(2.0, 2), delivered(6.0, 1, "b")) == []
    assert broken(delivered(5.5, 2), delivered(6.0, 1, "late")) == []


def test_other_records_are_others() -> None:
    assert broken(delivered(2.0, 1), delivered(2.1, 1, "b", offset=1)) == []


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        ([delivered(4.0, 2, "b"), *accepted(6.0)], [NO_HOLDER]),
        ([delivered(4.0, 2, "b"), *accepted(6.0, code=None)], []),
        ([delivered(4.0, 2, "b"), *accepted(6.0, code=121)], []),
        ([*accepted(3.0), delivered(4.0, 2, "b")], []),
        ([delivered(4.0, 2, "b"), *accepted(6.0, "b")], []),
        # It may have been given the record again before it sent the acknowledgement.
        ([delivered(4.0, 2, "b"), delivered(7.0, 3), *accepted(6.0)], []),
    ],
)
def test_a_confirmation_to_another_than_the_holder(events: list[MemberEvent], rules: list[str]) -> None:
    assert broken(delivered(2.0, 1), *events) == rules


def test_a_fault_hides_the_holder_only_where_the_order_of_acquisitions_is_unknown() -> None:
    first = delivered(2.0, 1)
    assert broken(first, delivered(4.0, 2, "b"), *accepted(6.0), windows=(FAULT,)) == []
    assert broken(first, delivered(5.5, 2, "late"), *accepted(6.0), windows=(FAULT,)) == [NO_HOLDER]
