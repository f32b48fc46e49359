"""What the servers of a system use, and what that comes to for each record that a scenario moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.processor_time import processor_ms, written_bytes


class Usage(NamedTuple):
    """Processor time and disk writes of all server processes since they started."""

    processor_ms: float
    written_bytes: int


Meter = Callable[[], Usage]
"""Reads the usage of the system that a scenario runs on."""

CPU, DISK_WRITES = "servers' CPU, s per million records", "disk writes, bytes per record"


def usage_of(pids: Sequence[int]) -> Usage:
    """Of these processes and their living descendants together."""
    return Usage(sum(map(processor_ms, pids)), sum(map(written_bytes, pids)))


def costs(name: str, before: Usage, after: Usage, records: int) -> dict[str, float]:
    """The figures `{name} servers' CPU, ...` and `{name} disk writes, ...` of what was used between two readings."""
    return {
        f"{name} {CPU}": (after.processor_ms - before.processor_ms) * 1000 / records,
        f"{name} {DISK_WRITES}": (after.written_bytes - before.written_bytes) / records,
    }
