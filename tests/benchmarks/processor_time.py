"""Processor time and memory of a system's processes, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from support.clusters.kshare_cluster import children_of


def processor_ms(pid: int) -> float:
    """User and system time in milliseconds that a process and its living descendants have used until now."""
    ticks = 0
    for process in _with_descendants(pid):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:  # it ended since it was listed
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory of a process and its living descendants in MB; pages that they share count once for each."""
    pages = 0
    for process in _with_descendants(pid):
        with suppress(FileNotFoundError):
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The share (0..1) of all processor time that the host gave to other machines between two `machine_ticks`."""
    passed = after[1] - before[1]
    return (after[0] - before[0]) / passed if passed else 0.0


def machine_ticks() -> tuple[int, int]:
    """(stolen, all) ticks of all processors since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[7], sum(fields)


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in children_of(pid):
        yield from _with_descendants(child)
