"""Kinds of fault of hosts: processes that die, stop or stand still, and share coordinators that shall be empty.

Every crash draws how many of the begun writes its disk keeps (`disks.host_disk`).
"""

from __future__ import annotations

from support.simulation.fault_kinds.acting import each_host, of_hosts
from support.simulation.fault_kinds.drawing import about, between, either, everyone, one, one_of, several
from support.simulation.faults import Fault, FaultInjector, FaultKind

crash = each_host(lambda host, fault: host.crash(silent=fault.name == "silent-crash"))
restart = each_host(lambda host, fault: None if host.running else host.start())
pause = each_host(lambda host, fault: host.pause())
resume = each_host(lambda host, fault: host.resume())
deaths = of_hosts(lambda host: host.death_count)
waits = of_hosts(lambda host: host.deferred_count)
"""Steps that wait until their hosts go on."""

one_or_several = either(0.6, one, several)
A_WHILE = about(0.01, 0.3, 2.0, 12.0)


async def _stop(injector: FaultInjector, fault: Fault) -> None:
    for host in injector.hosts(fault):
        await host.stop()


HOST_KINDS: tuple[FaultKind, ...] = (
    FaultKind("crash", 3, one_or_several, A_WHILE, crash, restart, deaths),
    FaultKind("silent-crash", 3, one_or_several, A_WHILE, crash, restart, deaths),
    FaultKind("power-loss", 3, everyone, about(0.01, 1.0, 5.0), crash, restart, deaths),
    FaultKind("stop", 1, one, between(0.2, 3.2), _stop, restart, deaths),
    FaultKind("pause", 3, one, about(0.2, 3.0, 15.0), pause, resume, waits),
    FaultKind("long-pause", 2, one, between(20.0, 70.0), pause, resume, waits),
    FaultKind(
        "drain",
        3,
        one_of("share-coordinator"),
        about(0.05, 0.5, 5.0),
        FaultInjector.drain,
        FaultInjector.undo_drain,
        lambda injector, fault: sum(injector.drain_counts[name] for name in fault.hosts),
        needs={"share-coordinator": 2},
    ),
)
"""A long pause is longer than locks, sessions and leases last."""
