"""A coordinator's metrics, by value after known operations, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import CoordinatorCluster
from support.servicekit.scraped import Scraped, measured, scraped
from support.simulation.loop import VirtualLoop


def play(test: Callable[[CoordinatorCluster], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await test(cluster)
        await cluster.node.stop(0)

    VirtualLoop(time_limit=3_600).run(whole())


async def scrape(cluster: CoordinatorCluster) -> Scraped:
    metrics = measured()
    cluster.node.register_metrics(metrics)
    return await scraped(metrics)


def test_the_catalog_and_the_coordinator_that_serves_it() -> None:
    async def test(cluster: CoordinatorCluster) -> None:
        found = await scrape(cluster)
        version = found.value("coordinator_catalog_version")
        assert found.value("coordinator_active") == 1
        assert found.value("coordinator_group_partitions") == 50
        assert found.value("coordinator_topics") == 0
        assert found.value("coordinator_state_partitions_without_owner") == 50
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        gateway = pb.Node(role=pb.ROLE_GATEWAY, node_id=1, incarnation="one", advertised_host="h", advertised_port=9092)
        await cluster.call(methods.REGISTER_NODE, pb.RegisterNodeRequest(node=gateway))
        await cluster.add_share_coordinator(5)
        await cluster.create_topic("orders", 3)
        await cluster.create_topic("letters", 2)
        found = await scrape(cluster)
        assert found.value("coordinator_catalog_version") > version
        assert (found.value("coordinator_topics"), found.value("coordinator_partitions")) == (2, 5)
        assert found.value("coordinator_partitions_without_leader") == 0
        assert found.value("coordinator_state_partitions") == 50
        assert found.value("coordinator_state_partitions_without_owner") == 0
        for role in ("coordinator", "leader", "share_coordinator", "gateway"):
            assert found.value("coordinator_nodes", role=role) == 1
        assert found.value("coordinator_append_failures_total") == 0
        assert found.value("coordinator_append_duration_seconds_count") > 0
        assert found.value("coordinator_commands_total", command="CreateTopics") == 2

    play(test)


def test_nodes_whose_lease_ran_out_leave_partitions_without_leader_and_owner() -> None:
    async def test(cluster: CoordinatorCluster) -> None:
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        await cluster.add_share_coordinator(5)
        await cluster.create_topic("orders", 3)
        await asyncio.sleep(60)
        found = await scrape(cluster)
        assert found.value("coordinator_expirations_total", what="node") == 2
        assert found.value("coordinator_partitions_without_leader") == 3
        assert found.value("coordinator_state_partitions_without_owner") == 50
        assert found.value("coordinator_nodes", role="leader") == 0

    play(test)


def test_groups_members_rebalances_and_sessions() -> None:
    async def test(cluster: CoordinatorCluster) -> None:
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        await cluster.add_share_coordinator(5)
        await cluster.create_topic("orders", 1)
        for group_id in ("one", "two"):
            await cluster.heartbeat("a", 0, ["orders"], group_id)
        await asyncio.sleep(1)
        before = (await scrape(cluster)).value("coordinator_rebalances_total", type="share")
        answer = await cluster.heartbeat("b", 0, ["orders"], "one")
        assert answer.error_code == 0
        found = await scrape(cluster)
        assert found.value("coordinator_groups", type="share", state="Stable") == 2
        assert found.value("coordinator_group_members", type="share") == 3
        assert found.value("coordinator_heartbeats_total", type="share") == 3
        assert found.value("coordinator_rebalances_total", type="share") == before + 1
        await cluster.heartbeat("b", -1, None, "one")
        await asyncio.sleep(120)
        found = await scrape(cluster)
        assert found.value("coordinator_groups", type="share", state="Empty") == 2
        assert found.value("coordinator_group_members", type="share") == 0
        assert found.value("coordinator_expirations_total", what="member") == 2

    play(test)


def test_committed_offsets_and_simple_groups() -> None:
    async def test(cluster: CoordinatorCluster) -> None:
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        created = await cluster.create_topic("orders", 2)
        request = pb.OffsetCommitRequest(group_id="simple", generation_id_or_member_epoch=-1)
        for partition in (0, 1):
            request.offsets.add(topic_id=created.topic_id, partition=partition, committed_offset=5)
        answer = await cluster.call(methods.OFFSET_COMMIT, request)
        assert answer.error_code == 0 and [entry.error_code for entry in answer.results] == [0, 0]
        found = await scrape(cluster)
        assert found.value("coordinator_committed_offsets_total") == 2
        assert found.value("coordinator_stored_offsets") == 2
        assert found.value("coordinator_groups", type="classic", state="Empty") == 1

    play(test)


def test_a_disk_that_refuses_shows() -> None:
    async def test(cluster: CoordinatorCluster) -> None:
        cluster.disk.fail_next_writes(1)
        await cluster.create_topic("orders", 1)
        found = await scrape(cluster)
        assert found.value("coordinator_append_failures_total") == 1
        assert found.value("node_healthy", role="coordinator", node_id="1") == 0

    play(test)
