"""The watch over a process's resident memory: it keeps within the budget, and comes back after load.

- **Above the budget** the caches shrink by the excess, and the heap's free pages go back to the operating system.
- **Quiet.** When the process has used almost no processor time for `quiet_ms`, each cache shrinks to an eighth of its
  limit, garbage is collected, and free pages go back. A store's write buffers are flushed in the background, so the
  pages go back once more at the next check.

What is needed again is read again, so both cost time only, and only then: a busy process within its budget is left
alone. glibc keeps freed memory otherwise, since `kshare_fastpath.memory` allows it 64 MB and fragments more.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kshare_runtime.held_memory import HeldMemory

CHECKS_PER_QUIET_TIME = 6
LONGEST_INTERVAL_MS = 5_000
BUSY_SHARE = 0.05
"""A process that uses more than this share of a processor is not quiet."""
KEPT_SHARE = 1 / 8
"""What a cache keeps of its limit in a quiet process."""
_STATM = Path("/proc/self/statm")
_logger = logging.getLogger(__name__)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


def return_free_pages() -> None:
    """Gives the heap's free pages back to the operating system, where the C library is able to (glibc)."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


class MemoryReturn:
    """The watch of one process; `budget_bytes` is what it keeps to."""

    def __init__(
        self,
        held: HeldMemory,
        budget_bytes: int,
        *,
        quiet_ms: int,
        resident: Callable[[], int] = resident_bytes,
        processor_s: Callable[[], float] = time.process_time,
        give_back: Callable[[], None] = return_free_pages,
    ) -> None:
        self.held = held
        self.budget_bytes = budget_bytes
        self.times_quiet = 0
        """How often the process gave memory back because it was quiet."""
        self.times_over_budget = 0
        """At how many checks the process had more than the budget."""
        self._interval_ms = min(LONGEST_INTERVAL_MS, quiet_ms // CHECKS_PER_QUIET_TIME)
        self._quiet_checks_needed = max(1, quiet_ms // self._interval_ms)
        self._resident = resident
        self._processor_s = processor_s
        self._give_back = give_back
        self._quiet_checks = 0
        self._used_s = processor_s()

    async def run(self) -> None:
        """Checks until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            self.check()

    def check(self) -> None:
        """One look; called at every interval."""
        before, self._used_s = self._used_s, self._processor_s()
        is_quiet = (self._used_s - before) * 1000 <= BUSY_SHARE * self._interval_ms
        self._quiet_checks = self._quiet_checks + 1 if is_quiet else 0
        if self._quiet_checks == self._quiet_checks_needed:
            self.times_quiet += 1
            self._shrink(lambda: self.held.shrink_to_share(KEPT_SHARE))
            gc.collect()
            self._give_back()
            self._used_s = self._processor_s()  # its own work does not end the quiet time
        elif self._quiet_checks == self._quiet_checks_needed + 1:
            self._give_back()
        excess = self._resident() - self.budget_bytes
        if excess > 0:
            self.times_over_budget += 1
            self._shrink(lambda: self.held.shrink_by(excess))
            self._give_back()

    def _shrink(self, shrink: Callable[[], None]) -> None:
        try:
            shrink()
        except Exception:  # the watch must not end, nor end the process
            _logger.exception("a cache could not be shrunk")
