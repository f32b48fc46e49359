"""How long the machine itself stood still, for tests of how long somebody waits.

A thread does again and again the least that any service has to do: it sleeps for a moment, writes some bytes, and
waits until they are on the disk. What that takes beyond the usual is time that the machine, or its disk, gave to nobody
or to others.

with MachineStalls() as stalls:
    began = time.monotonic()
    ...
    stalls.lost_s(began, time.monotonic())
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import pairwise

from support.several_coordinator_load import Load

INTERVAL_S = 0.05
USUAL_S = 0.2
"""A step that takes no longer lost nothing, a busy machine included."""


class MachineStalls(Load):
    """A context manager; notes when each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "stalls"
        self._moments: list[float] = []

    def work(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._moments.append(time.monotonic())
            while not self._stop_asked.wait(INTERVAL_S):
                os.pwrite(file.fileno(), b"still here", 0)
                os.fsync(file.fileno())
                self._moments.append(time.monotonic())

    def lost_s(self, began: float, ended: float) -> float:
        """All that the steps between these two moments took beyond USUAL_S each."""
        return lost_s(self._moments, began, ended)


def lost_s(moments: list[float], began: float, ended: float) -> float:
    """The same of given moments, sorted; of a step that is only partly in between, all counts."""
    steps = pairwise(moments)
    return sum(max(0.0, after - before - USUAL_S) for before, after in steps if before < ended and after > began)
