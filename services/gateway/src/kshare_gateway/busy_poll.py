"""Looks for what is about to come instead of sleeping until it comes, where that pays.

A worker that acknowledges one record after the other waits for each answer, and every hop of the way finds a processor
that has gone to sleep: to wake it takes as long as the work itself, most of all in a virtual machine. So after such a
request the gateway's event loop goes on looking, for its leader's answer and then for the client's next request, for at
most `limit_us` each; between two looks it lets others have the processor.

Looking in vain is a waste, so whatever did not come in time is expected less often: after n failures in a row, the next
2^n occasions are passed over (at most 2^SKIPPED_LIMIT). One that comes in time sets that back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from kshare_wire.api_versions import ApiKey

AWAITED_APIS = frozenset({ApiKey.SHARE_ACKNOWLEDGE, ApiKey.PRODUCE})
"""One small request after the other, each of which somebody waits for."""
SKIPPED_LIMIT = 10


class Expected:
    """A kind of thing that comes soon: how often it did not, and how many occasions were passed over since."""

    __slots__ = ("failures", "skipped")

    def __init__(self) -> None:
        self.failures = 0
        self.skipped = 0

    def is_likely(self) -> bool:
        """Whether to look for it on this occasion."""
        if self.failures and self.skipped < 1 << min(self.failures, SKIPPED_LIMIT):
            self.skipped += 1
            return False
        self.skipped = 0
        return True


class BusyPoll:
    """See the module's text; a `limit_us` of 0 never looks. `now` is a steady clock in seconds.

    `has_leaders_here`: answers are made on this event loop, which has enough to do until they are there.
    """

    def __init__(
        self,
        limit_us: int,
        *,
        has_leaders_here: bool = False,
        now: Callable[[], float] = time.perf_counter,
        let_others: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._limit_s = limit_us / 1_000_000
        self._has_leaders_here = has_leaders_here
        self._now = now
        self._let_others = let_others
        self._answer = Expected()
        self._request = Expected()
        self._awaited: Expected | None = None
        self._until = 0.0
        self._has_just_begun = False
        self.is_looking = False

    def request_came(self) -> None:
        """A request of AWAITED_APIS begins, so its answer will come."""
        self._expect(self._answer)

    def was_answered(self) -> None:
        """It has its answer, so the client's next one may come."""
        self._expect(self._request)

    def _expect(self, awaited: Expected) -> None:
        if not self._limit_s:
            return
        if self._awaited is not None:  # whatever this is, it came in time
            self._awaited.failures = 0
        if (awaited is self._answer and self._has_leaders_here) or not awaited.is_likely():
            self._awaited = None
            return
        self._awaited = awaited
        self._has_just_begun = True
        self._until = self._now() + self._limit_s
        if not self.is_looking:
            self.is_looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Runs once in each turn of the loop, which does not sleep as long as there is something to run."""
        if self._awaited is not None and self._now() >= self._until:
            self._awaited.failures += 1
            self._awaited = None
        if self._awaited is None:
            self.is_looking = False
            return
        if self._has_just_begun:  # what was to come is here, and has its turn now
            self._has_just_begun = False
        else:
            self._let_others()
        asyncio.get_running_loop().call_soon(self._look)
