"""Producer ids that the coordinator has in memory, when a leader registers whose logs know them."""

from __future__ import annotations

from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import CoordinatorCluster, run_virtually


async def register(cluster: CoordinatorCluster, node_id: int, end: int) -> None:
    node = pb.Node(role=pb.ROLE_LEADER, node_id=node_id, incarnation="one", rpc_address=f"leader:{node_id}")
    answer = await cluster.call(methods.REGISTER_NODE, pb.RegisterNodeRequest(node=node, producer_id_end=end))
    assert answer.error_code == 0


async def new_id(cluster: CoordinatorCluster) -> int:
    return (await cluster.call(methods.INIT_PRODUCER_ID, pb.InitProducerIdRequest())).producer_id


def test_the_rest_of_a_block_is_not_given_out_after_a_leader_reported_its_ids() -> None:
    """After a restore of an older copy; the leaders start one after the other, and a producer between them."""

    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await register(cluster, 1, 2_000)
        assert await new_id(cluster) == 2_000
        await register(cluster, 2, 5_000)
        assert await new_id(cluster) == 5_000
        assert await new_id(cluster) == 5_001
        await register(cluster, 3, 6_000)  # the counter is there already, and ids of the block were seen
        assert await new_id(cluster) == 6_000
        await register(cluster, 4, 1_000)
        assert await new_id(cluster) == 6_001
        await cluster.node.stop(0)

    run_virtually(main)
