"""The kinds of fault of etcd, and of the ways from coordinators to it, in clusters with several coordinators.

`strength` is how long a fault lasts in seconds, or how many transactions of a coordinator it hits. Each ends by itself
or when it is called off. It has acted when it hit a call, a watch or a transaction: a coordinator that has not opened
its metadata, or that writes nothing, is hit by none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from support.metadata.faulty_etcd import Effects as EtcdEffects
from support.metadata.faulty_etcd import FaultyEtcd
from support.simulation.cluster import EMBEDDED, Cluster
from support.simulation.fault_kinds.drawing import at_once, no_host, one_of
from support.simulation.faults import Effects, Fault, FaultInjector, FaultKind

LATE_MS = 400
LENGTHS_S = (0.2, 1.5, 6.0)
"""Shorter and longer than a coordinator's lease, of 2 or 5 s."""
COUNTS = (1, 3)
"""Of transactions."""
POLL_S = 0.1


def _cluster(injector: FaultInjector) -> Cluster:
    assert isinstance(injector.cluster, Cluster), "only a whole cluster has an etcd"
    return injector.cluster


def _ways(injector: FaultInjector, fault: Fault) -> list[FaultyEtcd]:
    """Of lives that have opened the metadata."""
    ways = _cluster(injector).ways_to_etcd
    return [ways[name] for name in fault.hosts if name in ways]


def _of_ways(count: Callable[[EtcdEffects], int]) -> Effects:
    """Of all lives of the coordinators that the fault hits."""

    def effects(injector: FaultInjector, fault: Fault) -> int:
        of_coordinators = _cluster(injector).etcd_effects
        return sum(count(of_coordinators[name]) for name in fault.hosts if name in of_coordinators)

    return effects


refused = _of_ways(lambda effects: effects.refused)
held = _of_ways(lambda effects: effects.held)
lost_answers = _of_ways(lambda effects: effects.lost_answers)
lost_requests = _of_ways(lambda effects: effects.lost_requests)
late = _of_ways(lambda effects: effects.late)


def held_by_server(injector: FaultInjector, fault: Fault) -> int:
    return _cluster(injector).etcd.held_count


def lost_by_restarts(injector: FaultInjector, fault: Fault) -> int:
    return _cluster(injector).etcd.lost_count


async def _pause(injector: FaultInjector, fault: Fault) -> None:
    etcd = _cluster(injector).etcd
    etcd.pause()
    try:
        await asyncio.sleep(fault.strength)
    finally:
        etcd.resume()


async def _restart(injector: FaultInjector, fault: Fault) -> None:
    _cluster(injector).etcd.restart()


async def _cut(injector: FaultInjector, fault: Fault) -> None:
    ways = _ways(injector, fault)
    for way in ways:
        way.unavailable = True
    try:
        await asyncio.sleep(fault.strength)
    finally:
        for way in ways:
            way.unavailable = False


async def _fill(injector: FaultInjector, fault: Fault) -> None:
    """As with `full-link`: what is asked meanwhile arrives late, also after the coordinator's lease."""
    ways = _ways(injector, fault)
    for way in ways:
        way.full = True
    try:
        await asyncio.sleep(fault.strength)
    finally:
        for way in ways:
            way.full = False


async def _until_it_acts(injector: FaultInjector, fault: Fault, effects: Effects) -> None:
    """Returns when a transaction came that the fault hits; where none comes, the end of all faults calls it off."""
    before = effects(injector, fault)
    while effects(injector, fault) == before:
        await asyncio.sleep(POLL_S)


async def _lose_answers(injector: FaultInjector, fault: Fault) -> None:
    for way in _ways(injector, fault):
        way.lose_answers(int(fault.strength))
    await _until_it_acts(injector, fault, lost_answers)


async def _lose_requests(injector: FaultInjector, fault: Fault) -> None:
    for way in _ways(injector, fault):
        way.lose_requests(int(fault.strength))
    await _until_it_acts(injector, fault, lost_requests)


async def _apply_late(injector: FaultInjector, fault: Fault) -> None:
    for way in _ways(injector, fault):
        way.apply_late(int(fault.strength), LATE_MS)
    await _until_it_acts(injector, fault, late)


SEVERAL_COORDINATORS = {"coordinator": 2}
"""With the embedded engine they have an etcd."""

ETCD_KINDS: tuple[FaultKind, ...] = tuple(
    FaultKind(name, 3, hits, at_once, begin, None, effects, strengths, (EMBEDDED,), SEVERAL_COORDINATORS)
    for name, hits, begin, effects, strengths in (
        ("etcd-pause", no_host, _pause, held_by_server, LENGTHS_S),
        ("etcd-restart", no_host, _restart, lost_by_restarts, (0.0,)),
        ("etcd-cut", one_of("coordinator"), _cut, refused, LENGTHS_S),
        ("etcd-full-link", one_of("coordinator"), _fill, held, LENGTHS_S),
        ("etcd-lost-answers", one_of("coordinator"), _lose_answers, lost_answers, COUNTS),
        ("etcd-lost-requests", one_of("coordinator"), _lose_requests, lost_requests, COUNTS),
        ("etcd-late-writes", one_of("coordinator"), _apply_late, late, COUNTS),
    )
)
"""Every kind of this module. Few clusters have them, so each is drawn often."""
