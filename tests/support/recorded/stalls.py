"""Stalls after faults: how long a partition delivered nothing while producers went on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from support.environment.machine_stalls import MachineStalls
from support.simulation.evidence import Violation


class Window(NamedTuple):
    """When a fault was there, and for how many seconds after its end a partition may deliver nothing."""

    name: str
    began: float
    ended: float
    resumes_within_s: float


class Stall(NamedTuple):
    """The longest time after a fault, up to the next one, in which a partition delivered nothing."""

    window: Window
    partition: int
    began: float
    ended: float

    @property
    def length_s(self) -> float:
        return self.ended - self.began

    def __str__(self) -> str:
        return f"{self.window.name} {self.length_s:.1f} s"


def longest_stall(window: Window, until: float, arrivals: Mapping[int, Iterable[float]]) -> Stall:
    """`arrivals`: when deliveries came, by partition; `until`: when the next fault began, or the producers ended."""
    stalls: list[Stall] = []
    for partition, times in arrivals.items():
        within = sorted(time for time in times if window.ended < time < until)
        moments = [window.ended, *within, max(window.ended, until)]
        stalls.extend(Stall(window, partition, began, ended) for began, ended in pairwise(moments))
    return max(stalls, key=lambda stall: stall.length_s)


def stalled(stalls: Iterable[Stall], machine: MachineStalls) -> list[Violation]:
    """The stalls that are too long; what the machine took of each is credited (`machine_stalls`)."""
    found = []
    for stall in stalls:
        limit_s = stall.window.resumes_within_s
        allowed_s = limit_s + machine.credit_s(stall.began, stall.ended, limit_s)
        if stall.length_s > allowed_s:
            text = (
                f"partition {stall.partition} delivered nothing for {stall.length_s:.1f} s, from "
                f"{stall.began - stall.window.ended:.1f} s after {stall.window.name} was over; "
                f"allowed: {allowed_s:.1f} s"
            )
            found.append(Violation("stalled after a fault", text))
    return found
