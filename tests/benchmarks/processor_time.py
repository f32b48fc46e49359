"""Processor time, memory and disk writes of a system's processes, from /proc."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from support.clusters.kshare_cluster import children_of

LIBC = ctypes.CDLL(None)


def processor_ms(pid: int) -> float:
    """User and system time in milliseconds that a process and its living descendants have used until now.

    Read from the processes' CPU clocks: /proc/PID/stat counts in ticks of 10 ms, a tenth of what a short part takes.
    """
    return sum(map(_processor_ms, with_descendants(pid)))


def _processor_ms(pid: int) -> float:
    clock = ctypes.c_int()
    if LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0  # it ended since it was listed
    try:
        return time.clock_gettime(clock.value) * 1000
    except OSError:  # as above
        return 0.0


def resident_mb(pid: int) -> float:
    """Resident memory of a process and its living descendants in MB; pages that they share count once for each."""
    pages = 0
    for process in with_descendants(pid):
        with suppress(FileNotFoundError):
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def written_bytes(pid: int) -> int:
    """Bytes that a process and its living descendants have sent to the disk until now.

    A page of 4 KB counts when it becomes dirty, in the process that wrote to it: also where the kernel stores it later,
    as it does for Kafka. A page that is written to again after a sync counts again, as do the bytes of a compaction.
    """
    found = 0
    for process in with_descendants(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{process}/io").read_text().splitlines():
                if line.startswith("write_bytes:"):
                    found += int(line.partition(":")[2])
    return found


def with_descendants(pid: int) -> Iterator[int]:
    """The process and its living descendants."""
    yield pid
    for child in children_of(pid):
        yield from with_descendants(child)
