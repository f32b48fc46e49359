"""DescribeSharePartitions: every run with who holds it and for how long, in portions; it loads and changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.states import RecordState
from kshare_leader.handlers.share.describe_share_partitions import RUNS_LIMIT
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.leader.share.service import LEADER_EPOCH, TOPIC, Leader, run

ACCEPT, RELEASE = b"\x01", b"\x02"
LOCK_MS = 30_000
"""group.share.record.lock.duration.ms"""


def ready(records: int = 10) -> Leader:
    leader = Leader()
    leader.channel.initialize(0, 0)
    leader.log().append(records)
    return leader


async def described(
    leader: Leader, *, first_offset: int = 0, max_runs: int = 0, partition: int = 0
) -> leader_pb2.DescribeSharePartitionsResponse.Result:
    request = leader_pb2.DescribeSharePartitionsRequest(group_id="group", max_runs=max_runs)
    request.partitions.add(topic_id=TOPIC, partition=partition, first_offset=first_offset)
    answer = await leader.service.describe_share_partitions(request, memoryview(b""))
    return answer.results[0]


def test_each_run_has_its_state_its_holder_and_the_time_that_is_left() -> None:
    async def test() -> None:
        leader = ready()
        assert await leader.acquire("m1") == [(0, 9, 1)]
        await asyncio.sleep(10)
        assert await leader.acknowledge("m1", 3, 3, RELEASE) == ErrorCode.NONE
        assert await leader.acknowledge("m1", 5, 6, ACCEPT) == ErrorCode.NONE
        found = await described(leader)
        assert [(each.first_offset, each.last_offset, each.delivery_state, each.member_id) for each in found.runs] == [
            (0, 2, RecordState.ACQUIRED, "m1"),
            (3, 3, RecordState.AVAILABLE, ""),
            (4, 4, RecordState.ACQUIRED, "m1"),
            (5, 6, RecordState.ACKNOWLEDGED, ""),
            (7, 9, RecordState.ACQUIRED, "m1"),
        ]
        (left_ms,) = {each.lock_remaining_ms for each in found.runs if each.member_id}
        assert LOCK_MS - 10_100 < left_ms <= LOCK_MS - 10_000
        assert {each.lock_remaining_ms for each in found.runs if not each.member_id} == {0}
        assert {each.delivery_count for each in found.runs} == {1}
        assert (found.start_offset, found.end_offset, found.readable_end_offset) == (0, 10, 10)
        assert (found.is_loaded, found.leader_epoch, found.next_offset) == (True, LEADER_EPOCH, -1)
        await leader.service.stop()

    run(test)


def test_a_change_whose_write_is_under_way_is_told() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        acknowledging = asyncio.ensure_future(leader.acknowledge("m1", 0, 9, ACCEPT))
        await asyncio.sleep(0)
        found = await described(leader)
        assert [(each.delivery_state, each.next_delivery_state) for each in found.runs] == [
            (RecordState.ACQUIRED, RecordState.ACKNOWLEDGED)
        ]
        assert await acknowledging == ErrorCode.NONE
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("max_runs", [1, 2, 3, 0])
def test_portions_give_every_run_once(max_runs: int) -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        for offset in (1, 3, 5, 7):
            await leader.acknowledge("m1", offset, offset, ACCEPT)
        found: list[tuple[int, int]] = []
        first_offset = 0
        while first_offset >= 0:
            portion = await described(leader, first_offset=first_offset, max_runs=max_runs)
            assert max_runs == 0 or len(portion.runs) <= max_runs
            found += [(each.first_offset, each.last_offset) for each in portion.runs]
            first_offset = portion.next_offset
        assert found == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 9)]
        await leader.service.stop()

    run(test)


def test_one_answer_has_at_most_so_many_runs_whatever_is_asked_for() -> None:
    async def test() -> None:
        runs = RUNS_LIMIT * 3 // 4
        leader = ready(runs)
        assert await leader.acquire("m1", max_records=runs) == [(0, runs - 1, 1)]
        assert await leader.acknowledge("m1", 0, runs - 1, (RELEASE + ACCEPT) * (runs // 2)) == ErrorCode.NONE
        request = leader_pb2.DescribeSharePartitionsRequest(group_id="group", max_runs=RUNS_LIMIT * 9)
        for _ in range(2):
            request.partitions.add(topic_id=TOPIC, partition=0)
        first, second = (await leader.service.describe_share_partitions(request, memoryview(b""))).results
        assert (len(first.runs), first.next_offset) == (runs, -1)
        assert (len(second.runs), second.next_offset) == (RUNS_LIMIT - runs, RUNS_LIMIT - runs)
        await leader.service.stop()

    run(test)


def test_a_share_partition_that_is_not_in_memory_is_not_loaded() -> None:
    async def test() -> None:
        leader = ready()
        found = await described(leader)
        assert (found.is_loaded, found.error_code, list(found.runs)) == (False, ErrorCode.NONE, [])
        await asyncio.sleep(1)
        assert not (await described(leader)).is_loaded
        await leader.service.stop()

    run(test)


def test_a_partition_that_does_not_exist_is_refused() -> None:
    async def test() -> None:
        leader = ready()
        found = await described(leader, partition=99)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "99" in found.error_message
        await leader.service.stop()

    run(test)
