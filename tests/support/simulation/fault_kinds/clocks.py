"""Kinds of fault of clocks: dates that jump, and monotonic clocks, with their dates, that are too fast or too slow."""

from __future__ import annotations

from support.simulation.fault_kinds.acting import each_host, of_hosts
from support.simulation.fault_kinds.drawing import at_once, between, either, one, several
from support.simulation.faults import Fault, FaultKind
from support.simulation.hosts import SimulatedHost

LARGEST_DRIFT = 0.05
"""No monotonic clock is faster or slower than true time by more than this share.

With it two hosts differ by nearly as much as docs/operations.md allows (`kshare_core.leases`).
"""
DRIFTS = (-LARGEST_DRIFT, -0.01, -0.0005, 0.0005, 0.01, LARGEST_DRIFT)
JUMPS_S = (-3600.0, -20.0, -1.0, 1.0, 20.0, 3600.0)


@each_host
def _jump(host: SimulatedHost, fault: Fault) -> None:
    host.clock.jump(int(fault.strength * 1000))


drift = each_host(lambda host, fault: host.clock.set_rate(1.0 + fault.strength))
keep_time = each_host(lambda host, fault: host.clock.set_rate(1.0))
"""The clock runs at the true rate again, and stays wrong by what it drifted."""

changes = of_hosts(lambda host: host.clock.change_count)

CLOCK_KINDS: tuple[FaultKind, ...] = (
    FaultKind("clock-jump", 1, one, at_once, _jump, None, changes, JUMPS_S),
    FaultKind("clock-drift", 3, either(0.5, one, several), between(5.0, 45.0), drift, keep_time, changes, DRIFTS),
)
