"""Kinds of fault of the links between hosts: `network` says which of them gRPC over TCP allows.

A full link (a receiver that does not read, a cut shorter than TCP's patience) lets nothing through for a while; then
all of it arrives, late and in order. A stream that is reset loses requests, delays them, or has them executed
unanswered. `stale-owner` replaces an owner of logs in the existing cluster while its requests to brokers are under way.
"""

from __future__ import annotations

from support.simulation.cluster import KAFKA
from support.simulation.fault_kinds.acting import delayed, of_network, on_network
from support.simulation.fault_kinds.drawing import about, at_once, between, no_host, one, one_of, pair
from support.simulation.faults import Fault, FaultInjector, FaultKind
from support.simulation.network import Conditions

Links = list[tuple[str, str]]

SLOW_SHARE = 0.2
"""Of all messages, in a slow network."""


def _links(injector: FaultInjector, fault: Fault) -> Links:
    """Those that the fault blocks, each in one direction."""
    if fault.name == "isolate":
        (lonely,) = fault.hosts
        others = [name for name in injector.cluster.all_host_names() if name != lonely]
        return [link for other in others for link in ((lonely, other), (other, lonely))]
    first, second = fault.hosts
    return [(first, second)] if fault.name == "one-way" else [(first, second), (second, first)]


async def _block(injector: FaultInjector, fault: Fault) -> None:
    links = injector.blocked_links[fault] = _links(injector, fault)
    for source, target in links:
        injector.cluster.fabric.block(source, target)


async def _unblock(injector: FaultInjector, fault: Fault) -> None:
    for source, target in injector.blocked_links.pop(fault):
        injector.cluster.fabric.unblock(source, target)


def _blocked(injector: FaultInjector, fault: Fault) -> int:
    return sum(injector.cluster.fabric.blocked_count[link] for link in _links(injector, fault))


async def _cut(injector: FaultInjector, fault: Fault) -> None:
    first, second = fault.hosts
    injector.cluster.fabric.cut(first, second)
    injector.cluster.listeners.cut(first, second)


@on_network
def _slow_network(conditions: Conditions, fault: Fault) -> None:
    conditions.slow_probability, conditions.slow_latency = SLOW_SHARE, fault.strength


@on_network
def _fast_network(conditions: Conditions, fault: Fault) -> None:
    conditions.slow_probability = 0.0


@on_network
def _slow_host(conditions: Conditions, fault: Fault) -> None:
    conditions.host_latency.update(dict.fromkeys(fault.hosts, fault.strength))


@on_network
def _fast_host(conditions: Conditions, fault: Fault) -> None:
    for name in fault.hosts:
        conditions.host_latency.pop(name, None)


def _link(fault: Fault) -> tuple[str, str]:
    first, second = fault.hosts
    return first, second


def _slowed(injector: FaultInjector, fault: Fault) -> int:
    return injector.cluster.fabric.slowed_count[_link(fault)]


@on_network
def _slow_link(conditions: Conditions, fault: Fault) -> None:
    conditions.link_latency[_link(fault)] = fault.strength


@on_network
def _fast_link(conditions: Conditions, fault: Fault) -> None:
    conditions.link_latency.pop(_link(fault), None)


async def _fill_link(injector: FaultInjector, fault: Fault) -> None:
    """It ends by itself, unless another fault has filled the link again meanwhile."""
    fabric = injector.cluster.fabric
    fabric.conditions.full_until[_link(fault)] = fabric.loop.now_s + fault.duration


@on_network
def _drop(conditions: Conditions, fault: Fault) -> None:
    conditions.drop_probability = fault.strength


@on_network
def _keep(conditions: Conditions, fault: Fault) -> None:
    conditions.drop_probability = 0.0


@on_network
def _reset_streams(conditions: Conditions, fault: Fault) -> None:
    conditions.reset_probability = fault.strength


@on_network
def _keep_streams(conditions: Conditions, fault: Fault) -> None:
    conditions.reset_probability = 0.0


def _ways_of_stale_owners(injector: FaultInjector, fault: Fault) -> tuple[Links, Links]:
    """From each owner to the brokers, and between it and the other coordinators in both directions."""
    to_brokers: Links = []
    to_coordinators: Links = []
    for owner in fault.hosts:
        for host in injector.cluster.hosts:
            if host.startswith("broker"):
                to_brokers.append((owner, host))
            elif host.startswith("coordinator") and host != owner:
                to_coordinators += [(owner, host), (host, owner)]
    return to_brokers, to_coordinators


async def _make_stale(injector: FaultInjector, fault: Fault) -> None:
    fabric = injector.cluster.fabric
    to_brokers, to_coordinators = _ways_of_stale_owners(injector, fault)
    fabric.conditions.link_latency.update(dict.fromkeys(to_brokers, fault.strength))
    for way in to_coordinators:
        fabric.block(*way)


async def _make_fresh(injector: FaultInjector, fault: Fault) -> None:
    fabric = injector.cluster.fabric
    to_brokers, to_coordinators = _ways_of_stale_owners(injector, fault)
    for way in to_brokers:
        fabric.conditions.link_latency.pop(way, None)
    for way in to_coordinators:
        fabric.unblock(*way)


def _made_stale(injector: FaultInjector, fault: Fault) -> int:
    """Messages to brokers that came late, and messages between coordinators that did not come."""
    fabric = injector.cluster.fabric
    to_brokers, to_coordinators = _ways_of_stale_owners(injector, fault)
    return sum(fabric.slowed_count[way] for way in to_brokers) + sum(
        fabric.blocked_count[way] for way in to_coordinators
    )


A_WHILE = about(0.5, 4.0, 15.0)
SLOW_S, FAR_S = (0.02, 0.3, 4.0), (0.05, 0.5, 5.0)
dropped = of_network(lambda fabric: fabric.dropped_count)
resets = of_network(lambda fabric: fabric.reset_count)
cuts = of_network(lambda fabric: fabric.cut_count)

LINK_KINDS: tuple[FaultKind, ...] = (
    FaultKind("partition", 2, pair, A_WHILE, _block, _unblock, _blocked),
    FaultKind("one-way", 2, pair, A_WHILE, _block, _unblock, _blocked),
    FaultKind("isolate", 2, one, about(1.0, 6.0, 15.0), _block, _unblock, _blocked),
    FaultKind("cut", 2, pair, at_once, _cut, None, cuts),
    FaultKind("slow-network", 2, no_host, between(1.0, 7.0), _slow_network, _fast_network, delayed, SLOW_S),
    FaultKind("slow-host", 2, one, between(1.0, 9.0), _slow_host, _fast_host, delayed, FAR_S),
    FaultKind("slow-link", 3, pair, between(1.0, 13.0), _slow_link, _fast_link, _slowed, FAR_S),
    FaultKind("full-link", 3, pair, A_WHILE, _fill_link, None, delayed),
    FaultKind("drops", 2, no_host, between(1.0, 6.0), _drop, _keep, dropped, (0.01, 0.05, 0.2)),
    FaultKind("stream-resets", 2, no_host, between(1.6, 8.0), _reset_streams, _keep_streams, resets, (0.01, 0.05, 0.2)),
    FaultKind(
        "stale-owner",
        5,
        one_of("coordinator", "share-coordinator"),
        between(6.0, 20.0),
        _make_stale,
        _make_fresh,
        _made_stale,
        strengths=(1.0, 4.0, 9.0),
        engines=(KAFKA,),
    ),
)
