"""The limits of a fetch, and which fetch gets records: bytes, max records, fairness, back-pressure, changed configs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kshare_core.errors import ErrorCode
from kshare_leader.share import pending_writes
from kshare_leader.share.limits import WRITE_LAG_LIMIT_MS
from support.leader.share.service import UNAVAILABLE, Leader, entries, fetch_partition, run

ACCEPT, RELEASE = b"\x01", b"\x02"


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


async def loaded(partitions: int = 1, *, configs: dict[str, str] | None = None) -> Leader:
    """A leader whose share-partitions are in memory and start at 0."""
    leader = Leader(partitions=partitions, configs=configs)
    for index in range(partitions):
        leader.channel.initialize(index, 0)
    await leader.fetch("idle", *map(fetch_partition, range(partitions)), max_wait_ms=0)
    await asyncio.sleep(0.5)
    return leader


def configure(leader: Leader, **texts: str) -> None:
    named = {name.replace("_", "."): value for name, value in texts.items()}
    leader.change_view(replace(leader.view, group_configs={"group": named}))


@pytest.mark.parametrize(("min_bytes", "waits"), [(1, False), (100, False), (101, True), (300, True), (1 << 30, True)])
def test_a_fetch_waits_for_min_bytes_and_takes_what_is_there_when_its_time_is_over(min_bytes: int, waits: bool) -> None:
    async def test() -> None:
        leader = await loaded()
        leader.log().append(5, size=100)
        assert await leader.acquire(min_bytes=min_bytes, max_wait_ms=2000) == [(0, 4, 1)]
        assert now_ms() == (2500 if waits else 500)
        await leader.service.stop()

    run(test)


def test_a_waiting_fetch_is_woken_when_min_bytes_are_there_and_not_before() -> None:
    async def test() -> None:
        leader = await loaded(2)
        both = (fetch_partition(0), fetch_partition(1))
        waiting = asyncio.ensure_future(leader.fetch("m1", *both, min_bytes=250, max_wait_ms=9000))
        await asyncio.sleep(1)
        leader.log(0).append(5, size=100)
        leader.log(1).append(5, size=100)
        await asyncio.sleep(1)
        assert not waiting.done()
        leader.log(1).append(5, size=100)
        response, _ = await waiting
        assert [entries(partition) for partition in response.partitions] == [[(0, 4, 1)], [(0, 9, 1)]]
        assert now_ms() == 2500
        await leader.service.stop()

    run(test)


def test_min_bytes_above_max_bytes_are_max_bytes() -> None:
    async def test() -> None:
        leader = await loaded()
        leader.log().append(5, size=100)
        assert await leader.acquire(min_bytes=1000, max_bytes=50, max_wait_ms=9000) == [(0, 4, 1)]
        assert now_ms() == 500
        await leader.service.stop()

    run(test)


def test_bytes_are_divided_between_the_partitions_that_have_something() -> None:
    """As by Kafka's PartitionMaxBytesStrategy; no partition starves the others."""

    async def test() -> None:
        leader = await loaded(4)
        for index in (0, 1, 3):
            for _ in range(20):
                leader.log(index).append(1, size=100)
        response, _ = await leader.fetch("m1", *map(fetch_partition, range(4)), max_bytes=1200)
        sizes = [sum(batch.length for batch in partition.batches) for partition in response.partitions]
        assert sizes == [400, 400, 0, 400]
        await leader.service.stop()

    run(test)


def test_what_one_partition_does_not_use_of_the_bytes_the_others_may() -> None:
    async def test() -> None:
        leader = await loaded(2)
        leader.log(0).append(1, size=100)
        for _ in range(20):
            leader.log(1).append(1, size=100)
        response, _ = await leader.fetch("m1", fetch_partition(0), fetch_partition(1), max_bytes=1000)
        sizes = [sum(batch.length for batch in partition.batches) for partition in response.partitions]
        assert sizes == [100, 900]
        await leader.service.stop()

    run(test)


def test_every_partition_has_its_turn_where_one_batch_is_all_that_fits() -> None:
    async def test() -> None:
        leader = await loaded(3)
        for index in range(3):
            for _ in range(4):
                leader.log(index).append(1, size=1000)
        got = []
        for turn in range(6):
            rotated = [(turn + index) % 3 for index in range(3)]  # as the gateway does
            response, _ = await leader.fetch("m1", *map(fetch_partition, rotated), max_bytes=500)
            got.append([part.partition for part in response.partitions if part.acquired_records])
        assert got == [[0], [1], [2], [0], [1], [2]]
        await leader.service.stop()

    run(test)


def test_a_fetch_that_comes_now_stands_behind_those_that_wait() -> None:
    async def test() -> None:
        leader = await loaded()
        waiting = [asyncio.ensure_future(leader.acquire(f"m{index}", max_wait_ms=9000)) for index in (1, 2)]
        await asyncio.sleep(1)
        leader.log().append(3)
        late = asyncio.ensure_future(leader.acquire("m3", max_wait_ms=0))
        assert await waiting[0] == [(0, 2, 1)], "though the late one's turn of the event loop came first"
        assert await late == []
        leader.log().append(3)
        assert await waiting[1] == [(3, 5, 1)]
        await leader.service.stop()

    run(test)


def test_members_that_ask_again_and_again_take_turns() -> None:
    async def test() -> None:
        leader = await loaded()
        got: dict[str, int] = {"m1": 0, "m2": 0, "m3": 0}

        async def consume(member: str) -> None:
            while now_ms() < 10_500:
                for first, last, _ in await leader.acquire(member, max_wait_ms=500, max_records=1):
                    got[member] += 1
                    assert await leader.acknowledge(member, first, last, ACCEPT) == 0

        consumers = [asyncio.ensure_future(consume(member)) for member in got]
        for _ in range(300):
            leader.log().append(1)
            await asyncio.sleep(0.03)
        await asyncio.gather(*consumers)
        assert sum(got.values()) == 300 and max(got.values()) - min(got.values()) <= 3
        await leader.service.stop()

    run(test)


def test_nothing_is_acquired_while_a_state_write_lags() -> None:
    async def test() -> None:
        leader = await loaded()
        for _ in range(3):
            leader.log().append(1)
        assert await leader.acquire("m1", max_records=1) == [(0, 0, 1)]
        leader.channel.gate = asyncio.Event()
        accepting = asyncio.ensure_future(leader.acknowledge("m1", 0, 0, ACCEPT))
        await asyncio.sleep(0.1)
        assert await leader.acquire("m2", max_records=1, max_wait_ms=0) == [(1, 1, 1)], "not for a short while"
        await asyncio.sleep(WRITE_LAG_LIMIT_MS / 1000)
        waiting = asyncio.ensure_future(leader.acquire("m3", max_wait_ms=9000))
        assert await leader.acquire("m2", max_wait_ms=0) == [], "answered, with nothing"
        assert not accepting.done()
        leader.channel.gate.set()
        assert await accepting == 0 and await waiting == [(2, 2, 1)]
        assert now_ms() < 2500
        await leader.service.stop()

    run(test)


def test_nothing_is_acquired_while_too_many_changes_wait_for_their_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_writes, "PENDING_CHANGES_LIMIT", 3)

    async def test() -> None:
        leader = await loaded()
        leader.log().append(10)
        leader.log().append(10)
        assert await leader.acquire("m1", max_records=10) == [(0, 9, 1)]
        leader.channel.gate = asyncio.Event()
        accepting: list[asyncio.Future[int]] = []
        for offset in range(3):
            accepting.append(asyncio.ensure_future(leader.acknowledge("m1", offset, offset, ACCEPT)))
        await asyncio.sleep(0.1)
        assert await leader.acquire("m2", max_wait_ms=0) == []
        leader.channel.gate.set()
        assert await asyncio.gather(*accepting) == [0, 0, 0]
        assert await leader.acquire("m2", max_wait_ms=0) == [(10, 19, 1)]
        await leader.service.stop()

    run(test)


def test_a_share_coordinator_that_is_away_stops_acquisition_and_then_all_goes_on() -> None:
    async def test() -> None:
        leader = await loaded()
        for _ in range(4):
            leader.log().append(5)
        await leader.acquire("m1", max_records=5)
        leader.channel.write_answers = [UNAVAILABLE] * 1000
        accepting = asyncio.ensure_future(leader.acknowledge("m1", 0, 4, ACCEPT))
        await asyncio.sleep(2)
        assert await leader.acquire("m2", max_wait_ms=0) == []
        assert await accepting == ErrorCode.COORDINATOR_NOT_AVAILABLE
        leader.channel.write_answers = []
        assert await leader.acquire("m2", max_wait_ms=1000) == [(0, 19, 1)]
        await leader.service.stop()

    run(test)


def test_changed_configs_of_a_group_take_effect_while_it_runs() -> None:
    async def test() -> None:
        leader = await loaded()
        leader.log().append(100)
        leader.log().append(100)
        configure(leader, share_partition_max_record_locks="100", share_record_lock_duration_ms="15000")
        assert await leader.acquire("m1", max_records=1000) == [(0, 99, 1)]
        waiting = asyncio.ensure_future(leader.fetch("m2", max_wait_ms=9000))
        await asyncio.sleep(1)
        assert not waiting.done(), "the window is full"
        before = now_ms()
        configure(leader, share_partition_max_record_locks="200", share_record_lock_duration_ms="20000")
        response, _ = await waiting
        assert entries(response.partitions[0]) == [(100, 199, 1)] and now_ms() == before
        assert response.acquisition_lock_timeout_ms == 20_000
        assert await leader.acquire("m3", max_wait_ms=60_000) == [(0, 99, 2)]
        assert 15_000 <= now_ms() - 500 <= 15_100, "the locks of before last as long as they were told"
        await leader.service.stop()

    run(test)


def test_a_lower_delivery_count_limit_counts_from_the_next_release_on() -> None:
    async def test() -> None:
        leader = await loaded()
        leader.log().append(1)
        for delivery_count in (1, 2, 3):
            assert await leader.acquire("m1") == [(0, 0, delivery_count)]
            if delivery_count == 3:
                configure(leader, share_delivery_count_limit="2")
            assert await leader.acknowledge("m1", 0, 0, RELEASE) == 0
        assert await leader.acquire("m1", max_wait_ms=100) == []
        await leader.service.stop()

    run(test)
