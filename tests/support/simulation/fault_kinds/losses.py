"""The permanent loss of a node: its machine is gone in the middle of its work, undrained, and never comes back.

Only nodes whose data is elsewhere are lost like that: gateways, coordinators of several, and on the kafka engine nodes
of any role (the loss of a disk with data is `disk-lost`). The product asks for nothing after it (docs/operations.md,
"Lost nodes"): other nodes take over. When the fault ends, the operator gives the node up. Its address is no longer
given to clients, and where it was the only one of its role, a node with another id takes its place.

A seed has at most one loss of each role, from a random stream of its own (`seeds.script.draw_single_faults`).
"""

from __future__ import annotations

from functools import partial

from support.simulation.cluster import ENGINES, KAFKA, Cluster
from support.simulation.fault_kinds.drawing import between, one_of
from support.simulation.faults import Fault, FaultInjector, FaultKind

LOSSES_SHARE = 0.2
"""How many of the seeds that can lose a node of a role do so."""
REPLACED = ("share-coordinator", "leader")
"""Roles of which a new node joins when the only one was lost."""
SILENTLY, BY_THE_KERNEL = 1.0, 0.0
"""Whether the others notice the loss only by their timeouts, or the machine's kernel still closes its connections."""


def _cluster(injector: FaultInjector) -> Cluster:
    assert isinstance(injector.cluster, Cluster), "nodes leave a whole cluster only"
    return injector.cluster


def _role(name: str) -> str:
    return name.rpartition("-")[0]


def _of_role(cluster: Cluster, role: str) -> list[str]:
    return [name for name in cluster.hosts if _role(name) == role]


async def _vanish(injector: FaultInjector, fault: Fault) -> None:
    """The last gateway or coordinator stays: none could take its place at once, under an address that clients know."""
    cluster = _cluster(injector)
    for name in [name for name in fault.hosts if name in cluster.hosts]:
        others = [host for host in _of_role(cluster, _role(name)) if host != name and host not in cluster.leaving]
        if _role(name) == "gateway":
            others = [host for host in others if cluster.is_known_to_clients(host)]
        if others or _role(name) in REPLACED:
            cluster.lose_host(name, silent=fault.strength == SILENTLY)
            injector.unfinished[name] = partial(_replace, cluster, name)


async def _give_up(injector: FaultInjector, fault: Fault) -> None:
    for name in [name for name in fault.hosts if name in injector.unfinished]:
        await injector.unfinished.pop(name)()


async def _replace(cluster: Cluster, name: str) -> None:
    cluster.forget_address(name)
    if all(host in cluster.leaving for host in _of_role(cluster, _role(name))):
        await cluster.add_host(_role(name))


def lost(injector: FaultInjector, fault: Fault) -> int:
    return sum(name in _cluster(injector).lost for name in fault.hosts)


LOSS_KINDS: tuple[FaultKind, ...] = tuple(
    FaultKind(
        f"{role}-lost",
        0,
        one_of(role),
        between(1.0, 20.0),
        _vanish,
        _give_up,
        lost,
        (SILENTLY, BY_THE_KERNEL),
        engines,
        {role: needed},
        LOSSES_SHARE,
    )
    for role, needed, engines in (
        ("gateway", 2, ENGINES),
        ("coordinator", 2, ENGINES),
        ("share-coordinator", 1, (KAFKA,)),
        ("leader", 1, (KAFKA,)),
    )
)
"""Every kind of this module. With the embedded engine several coordinators have an etcd."""
