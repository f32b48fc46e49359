"""The loop of a reassignment's receiver: runs the steps of a copy, and retries a failed step with a back-off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import StorageFailure
from kshare_rpc.network import CallFailed

COPY_BYTES_PER_SECOND = 64 * 1024 * 1024
"""The rate limit of all copies of a node together, to leave time for clients."""
CALL_TIMEOUT_MS = 3_000
RETRY_MAX_MS = 500
FAILURES_BEFORE_PROBLEM = 10
"""Failed steps in a row, some seconds, before the health check shows why a reassignment is stalled."""

log = logging.getLogger(__name__)


class MoveProblem(Exception):
    """A step of a reassignment failed; it is retried."""


StepFailure = MoveProblem | CallFailed | StorageFailure


class CopyLoop:
    """The retries of one reassignment's steps, and the newest failure.

    `what` begins each log line: "partition orders-3 cannot be copied from leader 2". `copies` returns the number of
    copies that share this node's rate limit.
    """

    def __init__(self, what: str, *, first_retry_ms: int, copies: Callable[[], int]) -> None:
        self._what = what
        self._first_retry_ms = first_retry_ms
        self._copies = copies
        self._failures = 0
        self.newest_failure = ""

    @property
    def problem(self) -> str | None:
        """The newest failure of a reassignment that is stalled for some seconds; None otherwise."""
        return self.newest_failure if self._failures >= FAILURES_BEFORE_PROBLEM else None

    async def run(
        self, step: Callable[[], Awaitable[bool]], before_retry: Callable[[StepFailure | None], Awaitable[None]]
    ) -> None:
        """Ends only by cancellation.

        `step` returns True where the next may follow at once, and False to be called again after a pause. It raises
        MoveProblem, CallFailed or StorageFailure; any other exception is reported as a bug, and the step fails with a
        MoveProblem. `before_retry` gets the failure, None after False.
        """
        pause_ms = self._first_retry_ms
        while True:
            failure: StepFailure | None = None
            try:
                if await step():
                    self._failures = 0
                    pause_ms = self._first_retry_ms
                    continue
            except (MoveProblem, CallFailed, StorageFailure) as problem:
                failure = problem
            except Exception as bug:
                report_contained_bug(f"{self._what}: a step failed unexpectedly", bug)
                failure = MoveProblem(f"an unexpected error: {bug!r}")
            await before_retry(failure)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MAX_MS)

    def note(self, problem: str) -> None:
        """Counts a failure; logs it where it is another than the last one."""
        text = f"{self._what}: {problem}"
        if text != self.newest_failure:
            log.info("%s", text)
        self.newest_failure = text
        self._failures += 1

    async def pace(self, size_bytes: int) -> None:
        """Waits as long as the rate limit wants after so many copied bytes."""
        await asyncio.sleep(size_bytes * self._copies() / COPY_BYTES_PER_SECOND)
