"""The kinds of fault of etcd, and of the ways from coordinators to it, in clusters with several coordinators.

`strength` is how long a fault lasts in seconds, or how many transactions of a coordinator it hits. Each ends by itself
or when it is called off.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from support.metadata.faulty_etcd import FaultyEtcd
from support.simulation.cluster import EMBEDDED, Cluster
from support.simulation.faults import Draw, Fault, FaultInjector, FaultKind

LATE_MS = 400
LENGTHS_S = (0.2, 1.5, 6.0)
"""Shorter and longer than a coordinator's lease, of 2 or 5 s."""


def _draw(name: str, strengths: Sequence[float], *, of_coordinator: bool = True) -> Draw:
    def draw_fault(draw: random.Random, hosts: Sequence[str], at: float) -> Fault:
        coordinators = [host for host in hosts if host.startswith("coordinator-")]
        hit = (draw.choice(coordinators),) if of_coordinator else ()
        return Fault(at, name, hit, strength=draw.choice(strengths))

    return draw_fault


def _cluster(injector: FaultInjector) -> Cluster:
    assert isinstance(injector.cluster, Cluster), "only a whole cluster has an etcd"
    return injector.cluster


def _ways(injector: FaultInjector, fault: Fault) -> list[FaultyEtcd]:
    """Of lives that have opened the metadata."""
    ways = _cluster(injector).ways_to_etcd
    return [ways[name] for name in fault.hosts if name in ways]


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


async def _lose_answers(injector: FaultInjector, fault: Fault) -> None:
    for way in _ways(injector, fault):
        way.lose_answers(int(fault.strength))


async def _lose_requests(injector: FaultInjector, fault: Fault) -> None:
    for way in _ways(injector, fault):
        way.lose_requests(int(fault.strength))


async def _apply_late(injector: FaultInjector, fault: Fault) -> None:
    for way in _ways(injector, fault):
        way.apply_late(int(fault.strength), LATE_MS)


SEVERAL_COORDINATORS = {"coordinator": 2}
"""With the embedded engine they have an etcd."""

ETCD_KINDS: tuple[FaultKind, ...] = tuple(
    FaultKind(name=name, weight=1, draw=draw, begin=begin, engines=(EMBEDDED,), needs=SEVERAL_COORDINATORS)
    for name, draw, begin in (
        ("etcd-pause", _draw("etcd-pause", LENGTHS_S, of_coordinator=False), _pause),
        ("etcd-restart", _draw("etcd-restart", (0.0,), of_coordinator=False), _restart),
        ("etcd-cut", _draw("etcd-cut", LENGTHS_S), _cut),
        ("etcd-lost-answers", _draw("etcd-lost-answers", (1, 3)), _lose_answers),
        ("etcd-lost-requests", _draw("etcd-lost-requests", (1, 3)), _lose_requests),
        ("etcd-late-writes", _draw("etcd-late-writes", (1, 3)), _apply_late),
    )
)
"""Every kind of this module."""
