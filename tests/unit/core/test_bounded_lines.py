"""Log lines that clients cause: a limit for each kind and for all, and how many were left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from kshare_core.security.bounded_lines import LINES_OF_ALL_KINDS_PER_SECOND, LINES_PER_SECOND, BoundedLog

NAME = "bounded"


class Clock:
    second = 0.0

    def __call__(self) -> float:
        return self.second


def test_one_kind_does_not_hide_another_and_the_next_line_tells_what_was_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, NAME)
    clock = Clock()
    bounded = BoundedLog(logging.getLogger(NAME), clock)
    for number in range(1_000):
        bounded.warning("malformed", "closing %d", number)
    bounded.info("idle", "closing an idle one")
    assert caplog.messages == [f"closing {number}" for number in range(LINES_PER_SECOND)] + ["closing an idle one"]
    clock.second = 1.5
    caplog.clear()
    bounded.warning("malformed", "closing %d", 7)
    bounded.warning("malformed", "closing %d", 8)
    left_out = 1_000 - LINES_PER_SECOND
    assert caplog.messages == [f"closing 7 ({left_out} such lines were left out before)", "closing 8"]


def test_all_kinds_together_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    clock = Clock()
    bounded = BoundedLog(logging.getLogger(NAME), clock)
    for number in range(5_000):
        bounded.info(f"kind {number}", "refused")
    assert len(caplog.messages) == LINES_OF_ALL_KINDS_PER_SECOND
    clock.second = 1.0
    bounded.info("kind 4999", "refused")
    assert "such lines were left out before" in caplog.messages[-1]


def test_the_newest_line_that_was_left_out_follows_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    clock = Clock()
    later: list[Callable[[], None]] = []
    bounded = BoundedLog(logging.getLogger(NAME), clock, lambda delay_s, callback: later.append(callback))
    for number in range(LINES_PER_SECOND + 5):
        bounded.warning("malformed", "closing %d", number)
    for number in range(LINES_OF_ALL_KINDS_PER_SECOND):
        bounded.info(f"kind {number}", "refused")
    assert len(later) == 1
    caplog.clear()
    later.pop()()
    assert caplog.messages == [], "the second is not over"
    clock.second = 1.0
    later.pop()()
    assert caplog.messages[0] == f"closing {LINES_PER_SECOND + 4} (4 such lines were left out before)"
    assert caplog.messages[1:] == ["refused"] * LINES_PER_SECOND
    assert not later, "nothing else is left out"
    caplog.clear()
    bounded.warning("malformed", "closing %d", 99)
    assert caplog.messages == ["closing 99"]
