"""Faults in the middle of moves: a state partition takes long to go from one share coordinator to another.

On a healthy network a move takes a few milliseconds, in which nobody writes to the state partition that moves.
"""

from __future__ import annotations

from support.simulation.cluster import EMBEDDED
from support.simulation.fault_kinds.drawing import about, one_of
from support.simulation.faults import Fault, FaultInjector, FaultKind

SHARE_COORDINATOR = "share-coordinator"


def _links(injector: FaultInjector, fault: Fault) -> list[tuple[str, str]]:
    """Those from the drained share coordinator to the others: what it sends arrives late."""
    others = [host for host in injector.cluster.hosts if host.startswith(SHARE_COORDINATOR)]
    return [(drained, other) for drained in fault.hosts for other in others if other != drained]


def _slowed(injector: FaultInjector, fault: Fault) -> int:
    """Messages of the move: a drain that moves nothing has no effect."""
    return sum(injector.cluster.fabric.slowed_count[link] for link in _links(injector, fault))


async def _begin(injector: FaultInjector, fault: Fault) -> None:
    links = _links(injector, fault)
    injector.cluster.fabric.conditions.link_latency.update(dict.fromkeys(links, fault.strength))
    await injector.drain(fault)


async def _end(injector: FaultInjector, fault: Fault) -> None:
    for link in _links(injector, fault):
        injector.cluster.fabric.conditions.link_latency.pop(link, None)
    await injector.undo_drain(fault)


MOVE_KINDS: tuple[FaultKind, ...] = (
    FaultKind(
        "slow-drain",
        2,
        one_of(SHARE_COORDINATOR),
        about(1.0, 4.0, 8.0),
        _begin,
        _end,
        _slowed,
        strengths=(0.1, 1.0, 3.0),
        engines=(EMBEDDED,),
        needs={SHARE_COORDINATOR: 2},
    ),
)
"""The kinds of this module."""
