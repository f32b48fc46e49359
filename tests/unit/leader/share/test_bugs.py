"""Bugs of other share-group implementations (reference/bugs-to-beat.md), each shown not to be in the leader's shell.

KAFKA-17351, 17210 (read_committed) and 19227 are in the other files of the share service; those of one share-partition
without a shell are in `tests/unit/leader/machine/test_bugs.py`, those of sessions and connections with the
gateway's tests.
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from kshare_core.errors import ErrorCode
from kshare_leader.handlers.share.share_fetch import ShareFetchCall
from kshare_leader.share.served_partition import ServedPartition
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.leader.share.service import TOPIC, UNAVAILABLE, Leader, entries, fetch_partition, owner, run

ACCEPT, RELEASE, REJECT = b"\x01", b"\x02", b"\x03"


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def ready(*, records: int = 10, partitions: int = 2, configs: dict[str, str] | None = None) -> Leader:
    leader = Leader(partitions=partitions, configs=configs)
    for index in range(partitions):
        leader.channel.initialize(index, 0)
    if records:
        leader.log().append(records)
    return leader


def live(kind: type) -> int:
    gc.collect()
    return sum(1 for each in gc.get_objects() if isinstance(each, kind))


def test_kafka_20505_18129_consumers_that_wait_on_each_others_records_do_not_deadlock() -> None:
    """Two members release to each other, each by a fetch that itself waits; each answer completes the other's wait."""

    async def test() -> None:
        leader = ready(records=0)
        for index in (0, 1):
            leader.log(index).append(1)
        both = (fetch_partition(0), fetch_partition(1))
        await leader.fetch("loads", *both, max_wait_ms=0)
        await asyncio.sleep(0.1)
        assert await leader.acquire("m1") == [(0, 0, 1)]
        response, _ = await leader.fetch("m2", fetch_partition(1))
        assert entries(response.partitions[0]) == [(0, 0, 1)]
        for _ in range(3):
            gives = fetch_partition(0, (0, 0, RELEASE)), fetch_partition(1)
            takes = fetch_partition(0), fetch_partition(1, (0, 0, RELEASE))
            first = asyncio.ensure_future(leader.fetch("m1", *gives, max_wait_ms=1000, max_records=1))
            second = asyncio.ensure_future(leader.fetch("m2", *takes, max_wait_ms=1000, max_records=1))
            answers = await asyncio.gather(first, second)
            held = [[entries(partition) != [] for partition in answer.partitions] for answer, _ in answers]
            assert sorted(map(sum, held)) == [1, 1], "one record for each of them"
            for (answer, _), member in zip(answers, ("m1", "m2"), strict=True):
                for partition in answer.partitions:
                    if partition.acquired_records:
                        code = await leader.acknowledge(member, 0, 0, RELEASE, partition=partition.partition)
                        assert code == 0
            assert await leader.acquire("m1", max_wait_ms=0) != []
            response, _ = await leader.fetch("m2", fetch_partition(1), max_wait_ms=0)
            assert entries(response.partitions[0]) != []
            leader.change_view(replace(leader.view, group_configs={"group": {"share.delivery.count.limit": "10"}}))
        assert now_ms() < 1000
        await leader.service.stop()

    run(test)


def test_kafka_20505_many_members_wait_at_one_partition() -> None:
    async def test() -> None:
        leader = ready(records=0)
        waiting = []
        for index in range(200):
            fetch = leader.acquire(f"m{index}", max_wait_ms=60_000, max_records=1)
            waiting.append(asyncio.ensure_future(fetch))
        await asyncio.sleep(0.1)
        for _ in range(200):
            leader.log().append(1)
        got = await asyncio.gather(*waiting)
        assert got == [[(offset, offset, 1)] for offset in range(200)], "the longest waiting first"
        assert now_ms() < 1000
        await leader.service.stop()

    run(test)


def test_kafka_19227_a_start_offset_that_moves_over_records_gone_from_the_log_wakes_the_waiting() -> None:
    async def test() -> None:
        leader = ready(records=0, configs={"group.share.partition.max.record.locks": "100"})
        leader.log().append(100)
        leader.log().append(10)
        assert await leader.acquire() == [(0, 99, 1)]
        waiting = asyncio.ensure_future(leader.acquire("m2", max_wait_ms=60_000))
        await asyncio.sleep(1)
        assert await leader.acknowledge("m1", 0, 98, ACCEPT) == 0
        assert await waiting == [(100, 109, 1)]
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, 14, 15])
@pytest.mark.parametrize("operation", ["read", "write"])
def test_kafka_17463_transient_errors_of_the_share_coordinator_are_retried(code: int, operation: str) -> None:
    async def test() -> None:
        leader = ready()
        if operation == "read":
            leader.channel.read_answers = [int(code)] * 3
        assert await leader.acquire(max_wait_ms=5000) == [(0, 9, 1)]
        if operation == "write":
            leader.channel.write_answers = [int(code)] * 3
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
        assert leader.channel.states[TOPIC, 0].start_offset == 10
        await leader.service.stop()

    run(test)


def test_kafka_17463_a_write_goes_where_the_newest_catalog_says() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [int(ErrorCode.NOT_COORDINATOR)] * 2
        answer = asyncio.ensure_future(leader.acknowledge("m1", 0, 9, ACCEPT))
        await asyncio.sleep(0.01)
        moved = leader.view.nodes[0].__class__.FromString(leader.view.nodes[0].SerializeToString())
        moved.rpc_address = "share-coordinator:2"
        leader.change_view(replace(leader.view, nodes=(moved, *leader.view.nodes[1:])))
        assert await answer == 0
        assert leader.addresses[-1] == "share-coordinator:2"
        await leader.service.stop()

    run(test)


def test_kafka_19389_a_fetch_that_ended_is_not_kept() -> None:
    async def test() -> None:
        leader = ready(records=0)
        await leader.acquire(max_wait_ms=10)
        await leader.acquire(max_wait_ms=0)
        before = live(ShareFetchCall)
        for _ in range(50):
            await leader.acquire(max_wait_ms=10)
        waiting = asyncio.ensure_future(leader.acquire(max_wait_ms=60_000))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        del waiting
        await asyncio.sleep(0.1)
        assert live(ShareFetchCall) <= before
        await leader.service.stop()

    run(test)


def test_kafka_21096_21106_nothing_is_kept_of_groups_that_went_away() -> None:
    async def test() -> None:
        leader = ready(records=0)
        before = live(ServedPartition)
        for index in range(20):
            group = f"group-{index}"
            leader.change_view(replace(leader.view, group_configs={group: {"share.record.lock.duration.ms": "20000"}}))
            who = leader_pb2.ShareSessionOwner(group_id=group, member_id="m", gateway_id=1, gateway_incarnation="g1")
            fetch = leader_pb2.ShareFetchRequest(
                owner=who,
                max_wait_ms=10,
                min_bytes=1,
                max_bytes=1000,
                max_records=10,
                batch_size=10,
                partitions=[fetch_partition(0)],
            )
            await leader.service.share_fetch(fetch, memoryview(b""))
            await leader.service.release_share_session(
                leader_pb2.ReleaseShareSessionRequest(owner=who), memoryview(b"")
            )
        await asyncio.sleep(0.1)
        leader.change_view(replace(leader.view, group_configs={}))
        assert live(ServedPartition) <= before, "the last session's end took each of them out of memory"
        assert not leader.log()._listeners
        assert not leader.service._directory._settings._known
        await leader.service.stop()

    run(test)


def test_kafka_20783_a_fetch_that_fails_leaves_nothing_locked() -> None:
    """However a fetch ends, the next one gets all its records, and nothing is given back twice."""

    async def test() -> None:
        leader = ready()
        leader.log(1).append(5)
        both = (fetch_partition(0), fetch_partition(1))
        await leader.fetch("loads", *both, max_wait_ms=0)
        await asyncio.sleep(0.1)
        leader.log(1).fails = True
        response, _ = await leader.fetch("m1", *both)
        assert entries(response.partitions[0]) == [(0, 9, 1)]
        assert response.partitions[1].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        leader.log(1).fails = False
        response, _ = await leader.fetch("m2", fetch_partition(1))
        assert entries(response.partitions[0]) == [(0, 4, 1)]
        leader.channel.gate = asyncio.Event()
        leader.log().append(1)
        fetching = asyncio.ensure_future(leader.fetch("m1", fetch_partition(0, (0, 9, ACCEPT))))
        await asyncio.sleep(0.1)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        leader.channel.gate.set()
        assert await leader.acquire("m2") == [(10, 10, 1)]
        assert await leader.acquire("m3", max_wait_ms=100) == []
        await leader.service.stop()

    run(test)


def test_kafka_19972_a_consumer_that_crashes_on_a_record_gets_it_a_limited_number_of_times() -> None:
    async def test() -> None:
        leader = ready(records=1)
        counts = []
        for _ in range(10):
            for _, _, delivery_count in await leader.acquire(max_wait_ms=50):
                counts.append(delivery_count)
            await leader.release("m1")
        assert counts == [1, 2, 3, 4, 5]
        assert leader.channel.states[TOPIC, 0].start_offset == 1
        await leader.service.stop()

    run(test)


def test_kafka_17396_acknowledgements_count_before_the_session_ends() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        leader.channel.gate = asyncio.Event()
        accepting = asyncio.ensure_future(leader.acknowledge("m1", 0, 4, ACCEPT))
        await asyncio.sleep(0.1)
        releasing = asyncio.ensure_future(leader.release("m1"))
        await asyncio.sleep(0.1)
        leader.channel.gate.set()
        assert await accepting == 0 and await releasing == 0
        assert await leader.acquire("m2") == [(5, 9, 2)]
        await leader.service.stop()

    run(test)


def test_a_share_partition_can_be_collected_once_it_was_dropped() -> None:
    """Timers, tasks, listeners and waiters hold on to nothing (KAFKA-19389)."""

    async def test() -> None:
        leader = ready()
        before = live(ServedPartition)
        await leader.acquire()
        await leader.acknowledge("m1", 0, 4, ACCEPT)
        assert live(ServedPartition) == before + 1
        leader.channel.write_answers = [int(ErrorCode.FENCED_STATE_EPOCH)]
        assert await leader.acknowledge("m1", 5, 9, ACCEPT) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(61)
        assert live(ServedPartition) == before
        await leader.service.stop()

    run(test)


def test_a_leader_that_cannot_reach_the_share_coordinator_does_not_guess() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [UNAVAILABLE] * 1000
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        request = leader_pb2.ReleaseShareSessionRequest(owner=owner("m1"))
        await leader.service.release_share_session(request, memoryview(b""))
        assert leader.channel.states[TOPIC, 0].start_offset == 0
        await leader.service.stop()

    run(test)
