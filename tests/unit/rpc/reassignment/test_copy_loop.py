"""The loop of a reassignment's receiver: which steps are repeated, and when a problem is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from kshare_core.errors import StorageFailure
from kshare_rpc.network import CallNotStarted
from kshare_rpc.reassignment.copy_loop import FAILURES_BEFORE_PROBLEM, CopyLoop, MoveProblem, StepFailure


class Ended(BaseException):
    """The outcomes of a test are used up."""


def played(outcomes: Iterator[bool | Exception], loop: CopyLoop) -> list[StepFailure | None]:
    """Runs steps with these outcomes; returns what `before_retry` got."""
    found: list[StepFailure | None] = []

    async def step() -> bool:
        outcome = next(outcomes, None)
        if outcome is None:
            raise Ended
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def before_retry(failure: StepFailure | None) -> None:
        found.append(failure)
        if failure is not None:
            loop.note(str(failure))

    with pytest.raises(Ended):
        asyncio.run(loop.run(step, before_retry))
    return found


def copy_loop(copies: Callable[[], int] = lambda: 1) -> CopyLoop:
    return CopyLoop("partition a-0 cannot be copied", first_retry_ms=0, copies=copies)


def test_every_failure_is_retried_and_a_step_that_has_to_wait_is_no_failure() -> None:
    failures: list[StepFailure] = [MoveProblem("not live"), CallNotStarted("refused"), StorageFailure("disk full")]
    loop = copy_loop()
    assert played(iter([True, *failures, False, True]), loop) == [*failures, None]
    assert loop.newest_failure == "partition a-0 cannot be copied: disk full"
    assert loop.problem is None


def test_a_copy_that_fails_for_long_has_a_problem_until_a_step_succeeds() -> None:
    loop = copy_loop()
    failure = MoveProblem("not live")
    played(iter([failure] * (FAILURES_BEFORE_PROBLEM - 1)), loop)
    assert loop.problem is None
    played(iter([failure]), loop)
    assert loop.problem == "partition a-0 cannot be copied: not live"
    played(iter([True]), loop)
    assert loop.problem is None


def test_a_step_that_fails_unexpectedly_is_reported_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    loop = copy_loop()
    (failure,) = played(iter([KeyError("planted"), True]), loop)
    assert isinstance(failure, MoveProblem) and "KeyError('planted')" in str(failure)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("partition a-0 cannot be copied: a step failed unexpectedly")


def test_a_repeated_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    loop = copy_loop()
    played(iter([MoveProblem("not live"), MoveProblem("not live"), MoveProblem("fenced")]), loop)
    assert [record.getMessage() for record in caplog.records] == [
        "partition a-0 cannot be copied: not live",
        "partition a-0 cannot be copied: fenced",
    ]
