"""Consumer groups in the coordinator's node, on virtual time: sessions, rebalance timeouts, restarts, bad disks."""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import CoordinatorCluster, run_virtually
from support.groups.consumer_groups import Request, assigned, join_request, request_of

SETTINGS = {"group.consumer.assignment.interval.ms": "0"}


async def send(cluster: CoordinatorCluster, request: Request) -> pb.ConsumerGroupHeartbeatResponse:
    return await cluster.call(methods.CONSUMER_GROUP_HEARTBEAT, request)


async def members(cluster: CoordinatorCluster) -> list[str]:
    answer = await cluster.call(methods.CONSUMER_GROUP_DESCRIBE, pb.ConsumerGroupDescribeRequest(group_ids=["group"]))
    return [member.member_id for member in answer.groups[0].members]


def test_a_silent_member_is_taken_out_after_its_session_timeout() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(SETTINGS)
        await cluster.start()
        topic = (await cluster.create_topic("t", 2)).topic_id
        await send(cluster, join_request("a", ["t"]))
        await send(cluster, join_request("b", ["t"]))
        for _ in range(9):
            await asyncio.sleep(4.9)
            assert "a" in await members(cluster)
            answer = await send(cluster, request_of("b", 3))
        assert assigned(answer) is None
        await asyncio.sleep(1.0)
        assert await members(cluster) == ["b"]
        assert assigned(await send(cluster, request_of("b", 3))) == {topic: [0, 1]}
        assert (await send(cluster, request_of("a", 2))).error_code == E.UNKNOWN_MEMBER_ID
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_member_has_its_rebalance_timeout_to_give_back_also_after_a_restart() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(SETTINGS)
        await cluster.start()
        await cluster.create_topic("t", 2)
        await send(cluster, join_request("a", ["t"], rebalance_timeout_ms=10_000))
        await send(cluster, join_request("b", ["t"]))
        await send(cluster, request_of("a", 2))
        for _ in range(2):
            await asyncio.sleep(4.9)
            await send(cluster, request_of("a", 2))
        await cluster.restart()
        for _ in range(2):
            await asyncio.sleep(4.9)
            assert (await send(cluster, request_of("a", 2))).error_code == E.NONE
        await asyncio.sleep(0.3)
        assert await members(cluster) == ["b"]
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_member_that_gave_back_in_time_stays() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(SETTINGS)
        await cluster.start()
        topic = (await cluster.create_topic("t", 2)).topic_id
        await send(cluster, join_request("a", ["t"], rebalance_timeout_ms=10_000))
        await send(cluster, join_request("b", ["t"]))
        await send(cluster, request_of("a", 2))
        await asyncio.sleep(9)
        await send(cluster, request_of("a", 2, owned={topic: [0]}))
        await asyncio.sleep(20)
        assert await members(cluster) == ["a", "b"]
        await cluster.node.stop(0)

    run_virtually(main)


def test_members_carry_on_after_a_restart_with_full_sessions_and_without_a_rebalance() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(SETTINGS)
        await cluster.start()
        topic = (await cluster.create_topic("t", 2)).topic_id
        await send(cluster, join_request("a", ["t"]))
        await asyncio.sleep(44)
        await cluster.restart()
        await asyncio.sleep(44)
        answer = await send(cluster, request_of("a", 2))
        assert (answer.error_code, answer.member_epoch, assigned(answer)) == (E.NONE, 2, None)
        answer = await send(cluster, request_of("a", 2, names=["t"], owned={topic: [0, 1]}, rebalance_timeout_ms=1))
        assert assigned(answer) == {topic: [0, 1]}
        await asyncio.sleep(46)
        assert await members(cluster) == []
        await cluster.node.stop(0)

    run_virtually(main)


def test_what_cannot_be_written_is_not_answered_as_done() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(SETTINGS)
        await cluster.start()
        await cluster.create_topic("t", 2)
        cluster.disk.fail_next_writes(1)
        answer = await send(cluster, join_request("a", ["t"]))
        assert (answer.error_code, answer.has_assignment) == (E.COORDINATOR_NOT_AVAILABLE, False)
        assert await members(cluster) == []
        answer = await send(cluster, join_request("", ["t"], api_version=0))
        assert answer.error_code == E.NONE and len(answer.member_id) == 22
        assert await members(cluster) == [answer.member_id]
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_topic_that_is_found_while_the_disk_is_full_is_assigned_when_the_store_is_mended() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(SETTINGS)
        cluster.disk.needs_mending = True
        await cluster.start()
        first = (await cluster.create_topic("t1", 1)).topic_id
        answer = await send(cluster, join_request("a", regex="t.*"))
        assert assigned(answer) == {first: [0]}
        second = (await cluster.create_topic("t2", 1)).topic_id
        cluster.disk.is_full = True
        for _ in range(2):  # the first write that fails has the machine loaded again, the second is not tried
            refused = await send(cluster, request_of("a", answer.member_epoch))
            assert refused.error_code == E.COORDINATOR_NOT_AVAILABLE
        cluster.disk.is_full = False
        await asyncio.sleep(1.5)
        assert not cluster.node.problems()
        answer = await send(cluster, request_of("a", answer.member_epoch))
        assert assigned(answer) == {first: [0], second: [0]}
        await cluster.node.stop(0)

    run_virtually(main)
