"""A node that stops releases its lease: it leaves the catalog at once, and its replacement stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kshare_core.errors import ErrorCode
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import ADDRESS, CoordinatorCluster
from support.simulation.loop import VirtualLoop

LEASE_MS = 1_000


def gateway(node_id: int, incarnation: str) -> pb.Node:
    return pb.Node(
        role=pb.ROLE_GATEWAY,
        node_id=node_id,
        incarnation=incarnation,
        advertised_host="localhost",
        advertised_port=9000 + node_id,
    )


def play(what: Callable[[CoordinatorCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = CoordinatorCluster({"kshare.node.lease.ms": str(LEASE_MS)})
        await cluster.start()
        async with asyncio.timeout(20):
            await what(cluster)
        await cluster.node.stop(0)

    loop = VirtualLoop(time_limit=100)
    loop.run(main())
    assert loop.problems == []


async def gateways(cluster: CoordinatorCluster) -> list[int]:
    answer = await cluster.call(methods.DESCRIBE_NODES, pb.DescribeNodesRequest())
    return [described.node.node_id for described in answer.nodes]


async def deregister(cluster: CoordinatorCluster, node_id: int, incarnation: str) -> int:
    request = pb.DeregisterNodeRequest(role=pb.ROLE_GATEWAY, node_id=node_id, incarnation=incarnation)
    return (await cluster.call(methods.DEREGISTER_NODE, request)).error_code


def test_others_see_at_once_that_it_is_gone() -> None:
    async def what(cluster: CoordinatorCluster) -> None:
        first, second = (CatalogFollower(network=cluster.network, coordinator_address=ADDRESS) for _ in range(2))
        await first.start(gateway(1, "one"))
        await second.start(gateway(2, "two"))
        assert [node.node_id for node in second.view.gateways()] == [1, 2]
        version = second.view.version
        await first.deregister()
        assert await second.wait_for_version(version + 1, timeout_ms=LEASE_MS // 4), "long before the lease runs out"
        assert [node.node_id for node in second.view.gateways()] == [2]
        assert not await second.wait_for_version(version + 2, timeout_ms=LEASE_MS // 2), (
            "it does not come back by itself"
        )
        assert await gateways(cluster) == [2]
        await first.stop()
        await second.stop()

    play(what)


def test_the_node_that_replaced_it_keeps_its_lease() -> None:
    async def what(cluster: CoordinatorCluster) -> None:
        for incarnation in ("one", "two"):
            await cluster.call(methods.REGISTER_NODE, pb.RegisterNodeRequest(node=gateway(1, incarnation)))
        assert await deregister(cluster, 1, "one") == ErrorCode.NONE
        assert await deregister(cluster, 7, "one") == ErrorCode.NONE, "nobody knows it"
        assert await gateways(cluster) == [1]
        assert await deregister(cluster, 1, "two") == ErrorCode.NONE
        assert await deregister(cluster, 1, "two") == ErrorCode.NONE, "said again, because the answer was lost"
        assert await gateways(cluster) == []

    play(what)


def test_a_coordinator_that_is_gone_is_not_waited_for() -> None:
    async def what(cluster: CoordinatorCluster) -> None:
        problems: list[str] = []
        follower = CatalogFollower(network=cluster.network, coordinator_address=ADDRESS, on_problem=problems.append)
        await follower.start(gateway(1, "one"))
        await cluster.node.stop(0)
        began = asyncio.get_running_loop().time()
        await follower.deregister()
        assert asyncio.get_running_loop().time() - began < 1.0
        assert "will expire" in problems[-1]
        await follower.stop()
        await cluster.restart()

    play(what)
