"""The checker's rules where only clients' events are known (`support.recorded`), on histories that break them."""

from __future__ import annotations

import pytest

from kshare_core.states import AcknowledgeType
from support.recorded.run import fetched_in_time
from support.simulation.checker import Checker, Expectations
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeSent,
    Delivered,
    Event,
    History,
    ProduceConfirmed,
    ProduceSent,
)
from support.simulation.kafka_clients.protocol import ReadRecord

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
PRODUCED: list[Event] = [ProduceSent(0.0, "p", 0, ("a",)), ProduceConfirmed(0.1, "p", 0, 0, ("a",))]


def delivered(time: float, count: int, member: str = "m") -> Delivered:
    return Delivered(time, time - 0.1, "g", member, "", 0, (0, 0), count, ("a",))


def acknowledged(time: float, number: int, kind: AcknowledgeType, *, code: int | None = 0) -> list[Event]:
    """Sent, and answered a little later; code None: never."""
    sent = AcknowledgeSent(time, number, "g", "m", 0, (0, 0), int(kind))
    return [sent] if code is None else [sent, AcknowledgeAnswered(time + 0.1, number, code)]


def broken(*events: Event, log: tuple[str, ...] = ("a",)) -> list[str]:
    history = History()
    for event in sorted(fetched_in_time([*PRODUCED, *events]), key=lambda event: event.time):
        history.add(event)
    records = [ReadRecord(offset, value) for offset, value in enumerate(log)]
    expectations = Expectations(["g"], {0: records}, delivery_count_limit=10, lock_duration_s=15, is_tapped=False)
    return [violation.rule for violation in Checker(history, expectations).check()]


def test_a_record_that_is_released_and_accepted_breaks_no_rule() -> None:
    first = [delivered(1.0, 1), *acknowledged(1.1, 1, RELEASE)]
    assert broken(*first, delivered(2.0, 2), *acknowledged(2.1, 2, ACCEPT)) == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_delivery_after_a_confirmed_accept_is_found(count: int) -> None:
    again = delivered(5.0, count, "other")
    assert "delivered after its confirmation" in broken(delivered(1.0, 1), *acknowledged(1.1, 1, ACCEPT), again)


def test_a_delivery_that_a_client_shows_late_is_none_after_the_confirmation() -> None:
    late = delivered(5.0, 1, "other")
    assert broken(delivered(1.0, 2), *acknowledged(1.1, 1, ACCEPT), late) == []


def test_two_confirmed_accepts_are_found_however_late_the_first_delivery_was_shown() -> None:
    late = [delivered(5.0, 1), *acknowledged(5.1, 2, ACCEPT)]
    assert "ended twice" in broken(delivered(1.0, 2), *acknowledged(1.1, 1, ACCEPT), *late)


def test_a_record_that_nobody_accepted_is_skipped() -> None:
    assert broken(delivered(1.0, 1), *acknowledged(1.1, 1, RELEASE)) == ["skipped"]
    assert broken() == ["skipped"]


def test_an_accept_without_an_answer_may_have_taken_effect() -> None:
    assert broken(delivered(1.0, 1), *acknowledged(1.1, 1, ACCEPT, code=None)) == []


def test_a_release_that_was_forgotten_is_found() -> None:
    again = [delivered(2.0, 1, "other"), delivered(3.0, 2), *acknowledged(3.1, 2, ACCEPT)]
    assert "delivery count forgotten" in broken(delivered(1.0, 1), *acknowledged(1.1, 1, RELEASE), *again)


def test_a_confirmed_record_that_the_log_lost_is_found() -> None:
    assert "produced and confirmed, but lost" in broken(log=())
