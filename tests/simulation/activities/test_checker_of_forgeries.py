"""The rule of forged acknowledgements on histories of a few events."""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from support.simulation.evidence import Evidence, Expectations
from support.simulation.history import Event, ForgeryAnswered, History, StateWritten
from support.simulation.rules.acknowledgements import forgeries_are_refused


def forged(time: float, first: int, last: int, code: int) -> ForgeryAnswered:
    return ForgeryAnswered(time, time - 0.1, "g", "forger", 0, (first, last), code)


def starts_at(time: float, offset: int) -> StateWritten:
    return StateWritten(time, time, "g", 0, 1, 1, offset, ())


def broken(*events: Event) -> list[str]:
    history = History()
    for event in events:
        history.add(event)
    expectations = Expectations(groups=("g",), logs={}, delivery_count_limit=5, lock_duration_s=1.0)
    return [violation.rule for violation in forgeries_are_refused(Evidence(history, expectations))]


def test_a_forged_acknowledgement_may_be_refused() -> None:
    assert broken(forged(1, 0, 5, ErrorCode.INVALID_RECORD_STATE), forged(2, 0, 5, ErrorCode.INVALID_REQUEST)) == []


def test_success_is_only_allowed_below_the_start_offset() -> None:
    assert broken(starts_at(1, 6), forged(2, 0, 5, 0)) == []
    assert broken(starts_at(1, 5), forged(2, 0, 5, 0)) == ["a forged acknowledgement was taken"]
    assert broken(forged(2, 0, 5, 0), starts_at(3, 6)) == ["a forged acknowledgement was taken"]
