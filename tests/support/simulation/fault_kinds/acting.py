"""What kinds of fault do to each host that they hit, and how it is counted that they acted."""

from __future__ import annotations

from collections.abc import Callable

from support.simulation.disks.host_disk import HostDisk
from support.simulation.faults import Action, Effects, Fault, FaultInjector
from support.simulation.hosts import SimulatedHost
from support.simulation.network import Conditions, SimulatedFabric


def each_host(act: Callable[[SimulatedHost, Fault], object]) -> Action:
    """Does it to every host of the fault that is still part of the cluster."""

    async def action(injector: FaultInjector, fault: Fault) -> None:
        for host in injector.hosts(fault):
            act(host, fault)

    return action


def each_disk(act: Callable[[HostDisk, Fault], object]) -> Action:
    """Does it to the disk of every such host."""
    return each_host(lambda host, fault: act(host.disk_conditions, fault))


def on_network(act: Callable[[Conditions, Fault], object]) -> Action:
    """Changes how the network is."""

    async def action(injector: FaultInjector, fault: Fault) -> None:
        act(injector.cluster.fabric.conditions, fault)

    return action


def of_hosts(count: Callable[[SimulatedHost], int]) -> Effects:
    return lambda injector, fault: sum(map(count, injector.hosts(fault)))


def of_disks(count: Callable[[HostDisk], int]) -> Effects:
    return of_hosts(lambda host: count(host.disk_conditions))


def of_network(count: Callable[[SimulatedFabric], int]) -> Effects:
    return lambda injector, fault: count(injector.cluster.fabric)


def delayed(injector: FaultInjector, fault: Fault) -> int:
    """Messages, by faults of this kind."""
    return injector.cluster.fabric.delayed_count[fault.name]


def hit_connections(injector: FaultInjector, fault: Fault) -> int:
    """Connections of clients, by faults of this kind."""
    return injector.cluster.listeners.effects[fault.name]
