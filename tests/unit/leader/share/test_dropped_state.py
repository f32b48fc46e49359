"""DropSharePartitions: state that was replaced or deleted is read again, even while the former state is in use."""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.leader.share.service import TOPIC, Leader, run

ACCEPT = b"\x01"


def ready() -> Leader:
    """Ten records in partition 0, whose share-partition starts at 0."""
    leader = Leader()
    for partition in (0, 1):
        leader.channel.initialize(partition, 0)
    leader.log().append(10)
    return leader


async def drop(leader: Leader, *partitions: int, group: str = "group") -> None:
    request = leader_pb2.DropSharePartitionsRequest(group_id=group)
    for partition in partitions:
        request.partitions.add(topic_id=TOPIC, partition=partition)
    answer = await leader.service.drop_share_partitions(request, memoryview(b""))
    assert answer == leader_pb2.DropSharePartitionsResponse()


def test_the_next_fetch_reads_the_new_state() -> None:
    async def test() -> None:
        leader = ready()
        assert await leader.acquire(max_records=3) == [(0, 9, 1)]
        leader.channel.initialize(0, 10)
        await drop(leader, 0)
        assert await leader.acquire("m2", max_wait_ms=0) == [], "it starts at 10 now"
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        assert leader.channel.writes == []
        await leader.service.stop()

    run(test)


def test_a_waiting_fetch_ends_and_other_groups_go_on() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        waiting = asyncio.ensure_future(leader.fetch("m2", max_wait_ms=60_000))
        await asyncio.sleep(1)
        await drop(leader, 0, group="another")
        await asyncio.sleep(1)
        assert not waiting.done()
        await drop(leader, 0, 1)
        response, _ = await asyncio.wait_for(waiting, 1)
        assert response.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await leader.service.stop()

    run(test)


def test_nothing_is_served_that_is_just_being_read() -> None:
    """The state was read before it was replaced, and its answer comes after."""

    async def test() -> None:
        leader = ready()
        reading = asyncio.ensure_future(leader.fetch("m1", max_wait_ms=500))
        await asyncio.sleep(0)
        await drop(leader, 0)
        leader.channel.initialize(0, 10)
        response, _ = await reading
        assert [list(partition.acquired_records) for partition in response.partitions] == [[]]
        assert await leader.acquire("m2", max_wait_ms=0) == []
        await leader.service.stop()

    run(test)
