"""The processor time that the host of this virtual machine gave to other machines."""

from __future__ import annotations

from pathlib import Path


def stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The share (0..1) of all processor time that the host gave to other machines between two `machine_ticks`."""
    passed = after[1] - before[1]
    return (after[0] - before[0]) / passed if passed else 0.0


def machine_ticks() -> tuple[int, int]:
    """(stolen, all) ticks of all processors since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[7], sum(fields)
