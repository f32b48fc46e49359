"""Stalls of the machine during a test that measures seconds: CPU stolen by the hypervisor, and pauses.

Bounds of the product stay strict. A test may add `credit_s` to one: the part of the measured time in which the machine
gave nobody a processor, and never more than a fifth of the bound. What the product costs is not credited, however much:
the probe touches no disk but memory, and neither waiting for a processor that the product itself keeps busy nor a slow
disk counts as stolen.

with MachineStalls() as stalls:
    began = time.monotonic()
    ...
    ended = time.monotonic()
    assert ended - began < BOUND_S + stalls.credit_s(began, ended, BOUND_S)
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from support.clients.several_coordinator_load import Load

INTERVAL_S = 0.05
USUAL_S = 0.2
"""A step that takes no longer lost nothing, a busy machine included."""
CREDIT_SHARE = 0.2
"""Of a bound: the most that is ever credited."""
MEMORY = Path("/dev/shm")
STEAL_FIELD = 8
"""Of the first line of /proc/stat, after its name at 0: clock ticks in which the hypervisor ran others."""


class Moment(NamedTuple):
    """The end of one step of the probe."""

    time: float
    stolen_s: float
    """Per processor, since the machine started."""


class MachineStalls(Load):
    """A context manager; see the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "stalls"
        self._moments: list[Moment] = []

    def work(self) -> None:
        with tempfile.TemporaryFile(dir=MEMORY if MEMORY.is_dir() else None) as file:
            self._moments.append(Moment(time.monotonic(), stolen_since_start_s()))
            while not self._stop_asked.wait(INTERVAL_S):
                os.pwrite(file.fileno(), b"still here", 0)
                self._moments.append(Moment(time.monotonic(), stolen_since_start_s()))

    def credit_s(self, began: float, ended: float, bound_s: float) -> float:
        """What may be added to a bound for something that took from `began` to `ended` (monotonic seconds)."""
        return credit_s(list(self._moments), began, ended, bound_s)


def credit_s(moments: Sequence[Moment], began: float, ended: float, bound_s: float) -> float:
    """The same of given moments, in order: the larger of what was stolen and what the probe stood still, with a cap."""
    stolen = stood_still = 0.0
    for before, after in pairwise(moments):
        length, overlap = after.time - before.time, min(after.time, ended) - max(before.time, began)
        if overlap > 0:
            stolen += (after.stolen_s - before.stolen_s) * overlap / length
            stood_still += max(0.0, overlap - USUAL_S)
    return min(CREDIT_SHARE * bound_s, max(stolen, stood_still))


def stolen_since_start_s() -> float:
    """Seconds per processor; 0 where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return int(fields[STEAL_FIELD]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
