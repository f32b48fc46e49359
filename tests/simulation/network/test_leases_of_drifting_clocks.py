"""A holder stops before its lease ends for its granter, with clocks as different as docs/operations.md allows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from kshare_coordinator.metadata.port import CATALOG
from kshare_coordinator.node import CoordinatorNode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.several_coordinators import SeveralCoordinators
from support.simulation.cluster import COORDINATOR, KAFKA, Cluster, shape_of
from support.simulation.fault_kinds.clocks import LARGEST_DRIFT
from support.simulation.loop import VirtualLoop

SLOW, FAST = 1 - LARGEST_DRIFT, 1 + LARGEST_DRIFT
DRIFTS_FOR_S = 2.0
LOOK_S = 0.005


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("store", ["etcd", "kafka"])
def test_a_coordinator_with_a_slow_clock_stops_before_another_owns_its_metadata(store: str) -> None:
    several = SeveralCoordinators("drift", count=2, store=store)

    async def main() -> None:
        await several.start()
        holder = several.active()
        for host in several.hosts:
            host.clock.set_rate(SLOW if host is holder else FAST)
        await asyncio.sleep(DRIFTS_FOR_S)
        assert several.owners(CATALOG) == [holder.name]
        several.ways[holder.name].unavailable = True
        while several.owners(CATALOG) in ([], [holder.name]):
            await asyncio.sleep(LOOK_S)
        assert holder.name not in several.owners(CATALOG)

    several.run(main)


@pytest.mark.parametrize(
    ("name", "role"), [("leader-1", pb.ROLE_LEADER), ("share-coordinator-1", pb.ROLE_SHARE_COORDINATOR)]
)
def test_a_node_with_a_slow_clock_stops_before_others_get_what_it_served(name: str, role: pb.Role.ValueType) -> None:
    shape = shape_of(KAFKA, leaders=2, share_coordinators=2, configs={"kshare.node.lease.ms": "2000"})
    cluster = Cluster(VirtualLoop(time_limit=60.0), "drift", shape)
    host, coordinator = cluster.hosts[name], cluster.hosts[COORDINATOR]

    def problems() -> list[str]:
        assert host.node is not None
        return host.by_its_clock(host.node.problems)

    def is_registered() -> bool:
        node = coordinator.node
        assert isinstance(node, CoordinatorNode) and node.core is not None
        return (role, 1) in node.core.state.nodes

    async def main() -> None:
        await cluster.start()
        host.clock.set_rate(SLOW)
        coordinator.clock.set_rate(FAST)
        await asyncio.sleep(DRIFTS_FOR_S)
        assert problems() == [] and is_registered()
        cluster.fabric.block(name, COORDINATOR)  # the newest request that arrived is answered, and is the last one
        while is_registered():
            await asyncio.sleep(LOOK_S)
        assert problems() != [], "it still believes in its lease"

    cluster.loop.run(main())
    assert cluster.problems() == []
