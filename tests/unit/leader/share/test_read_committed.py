"""Groups with share.isolation.level = read_committed, at a ShareService: open, committed and aborted transactions."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from kshare_leader.ports import AbortedTransaction, TimestampOffset
from kshare_leader.share.limits import READ_CHUNK_BYTES
from kshare_leader.share.log_slices import read_slice
from support.leader.share.service import TOPIC, Leader, MemoryTopicLog, entries, fetch_partition, run

ACCEPT = b"\x01"
COMMITTED = {"share.isolation.level": "read_committed"}


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def ready(start: int = 0, configs: dict[str, str] | None = None) -> Leader:
    """A leader whose share-partition 0 starts at `start`, for a read_committed group."""
    leader = Leader()
    leader.channel.initialize(0, start)
    configure(leader, {**COMMITTED, **(configs or {})})
    return leader


def configure(leader: Leader, texts: dict[str, str]) -> None:
    leader.change_view(replace(leader.view, group_configs={"group": texts}))


def test_an_open_transaction_holds_the_end_until_it_is_committed() -> None:
    async def test() -> None:
        leader = ready()
        log = leader.log()
        log.append(5)
        log.append(3, producer_id=1)
        log.append(2)
        response, payload = await leader.fetch("m1")
        assert entries(response.partitions[0]) == [(0, 4, 1)]
        assert payload.startswith(b"0-4;") and len(payload) == 100
        waiting = asyncio.ensure_future(leader.acquire("m2", max_wait_ms=5000))
        await asyncio.sleep(1)
        log.append(4)
        await asyncio.sleep(1)
        assert not waiting.done(), "all of it lies behind the open transaction"
        log.end_transaction(1, committed=True)
        assert await waiting == [(5, 13, 1)]
        assert now_ms() <= 2001, "the moved last stable offset woke the fetch"
        await leader.service.stop()

    run(test)


def test_an_aborted_transaction_is_not_there_and_does_not_stall_the_start_offset() -> None:
    async def test() -> None:
        leader = ready()
        log = leader.log()
        log.append(2)  # 0-1
        log.append(3, producer_id=1)  # 2-4
        log.append(4, producer_id=2)  # 5-8
        log.append(1)  # 9
        log.end_transaction(1, committed=False)  # 10
        log.end_transaction(2, committed=True)  # 11
        log.append(2, producer_id=1)  # 12-13
        log.end_transaction(1, committed=True)  # 14
        response, payload = await leader.fetch("m1")
        acquired = entries(response.partitions[0])
        assert [(first, last) for first, last, _ in acquired] == [(0, 1), (5, 9), (12, 13)]
        assert [batch.base_offset for batch in response.partitions[0].batches] == [0, 5, 9, 12]
        assert len(payload) == 400, "only batches with acquired records are in the answer"
        for first, last, _ in acquired:
            assert await leader.acknowledge("m1", first, last, ACCEPT) == 0
        await asyncio.sleep(0.1)
        assert leader.channel.states[TOPIC, 0].start_offset in (14, 15)
        await leader.service.stop()

    run(test)


def test_aborted_batches_of_a_recovered_window_are_archived() -> None:
    async def test() -> None:
        leader = ready()
        log = leader.log()
        log.append(3, producer_id=1)
        log.append(3)
        log.end_transaction(1, committed=False)
        leader.channel.initialize(0, 0, (0, 5, 0, 1))
        assert await leader.acquire("m1") == [(3, 5, 2)]
        await leader.service.stop()

    run(test)


def test_read_uncommitted_gets_what_read_committed_does_not_and_the_config_acts_at_once() -> None:
    async def test() -> None:
        leader = ready()
        leader.log().append(5, producer_id=1)
        waiting = asyncio.ensure_future(leader.acquire("m1", max_wait_ms=5000))
        await asyncio.sleep(1)
        assert not waiting.done()
        configure(leader, {"share.isolation.level": "read_uncommitted"})
        assert await waiting == [(0, 4, 1)] and now_ms() == 1000
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize(("reset", "start"), [("latest", 8), ("earliest", 2), ("by_duration:PT1M", 5)])
def test_where_a_read_committed_group_starts(reset: str, start: int) -> None:
    """As in Kafka, `latest` is the high watermark and not the last stable offset (ShareFetchUtils)."""

    async def test() -> None:
        leader = ready(-1, {"share.auto.offset.reset": reset})
        log = leader.log()
        log.append(5)
        log.append(3, producer_id=1)
        log.log_start_offset = 2
        log.timestamps = [TimestampOffset(950_000, 5)]
        await leader.fetch(max_wait_ms=100)
        assert leader.channel.writes[0].partitions[0].start_offset == start
        await leader.service.stop()

    run(test)


def test_kafka_17351_a_long_stretch_without_records_is_crossed_in_slices() -> None:
    async def test() -> None:
        leader = ready()
        log = leader.log()
        size = READ_CHUNK_BYTES // 2
        for _ in range(100):
            log.append(50, producer_id=1, size=size)
        log.append(3, producer_id=2, size=100)
        assert await leader.acquire("m1", max_wait_ms=100) == []
        log.reads = 0
        waiting = asyncio.ensure_future(leader.acquire("m1", max_wait_ms=5000))
        await asyncio.sleep(0)
        log.end_transaction(1, committed=False)
        log.end_transaction(2, committed=True)
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        assert await waiting == [(5000, 5002, 1)] and now_ms() == 100
        assert log.reads <= 60
        assert turns >= 40, "other work had its turn between the slices"
        await asyncio.sleep(0.1)
        assert leader.channel.states[TOPIC, 0].start_offset == 5000
        await leader.service.stop()

    run(test)


def test_kafka_17351_a_fetch_that_may_not_wait_starts_the_scan_and_finds_its_end_later() -> None:
    async def test() -> None:
        leader = ready()
        log = leader.log()
        for _ in range(50):
            log.append(10, producer_id=1, size=READ_CHUNK_BYTES)
        log.end_transaction(1, committed=False)
        log.append(2)
        assert await leader.acquire("m1", max_wait_ms=0) == []
        await asyncio.sleep(1)
        assert await leader.acquire("m1", max_wait_ms=0) == [], "it begins the scan"
        await asyncio.sleep(1)
        assert await leader.acquire("m1", max_wait_ms=0) == [(501, 502, 1)]
        await leader.service.stop()

    run(test)


def test_a_record_that_is_released_during_the_scan_is_not_kept_waiting() -> None:
    async def test() -> None:
        leader = ready(configs={"share.partition.max.record.locks": "4000"})
        log = leader.log()
        log.append(2)
        assert await leader.acquire("m1") == [(0, 1, 1)]
        for _ in range(60):
            log.append(10, producer_id=1, size=READ_CHUNK_BYTES)
        log.end_transaction(1, committed=False)
        waiting = asyncio.ensure_future(leader.acquire("m2", max_wait_ms=60_000))
        await asyncio.sleep(0)
        assert await leader.release("m1") == 0
        assert await waiting == [(0, 1, 2)]
        assert now_ms() < 100
        await leader.service.stop()

    run(test)


def test_a_disk_that_fails_during_the_scan_is_told_to_the_fetch() -> None:
    async def test() -> None:
        leader = ready()
        log = leader.log()
        log.append(1)
        assert await leader.acquire("m0") == [(0, 0, 1)]
        for _ in range(60):
            log.append(10, producer_id=1, size=READ_CHUNK_BYTES)
        log.end_transaction(1, committed=False)
        waiting = asyncio.ensure_future(leader.fetch("m1", max_wait_ms=60_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.fails = True
        response, _ = await waiting
        assert response.partitions[0].error_code == 56 and now_ms() < 100
        log.fails = False
        log.append(2)
        assert await leader.acquire("m1", fetch_number=1) == [(602, 603, 1)]
        await leader.service.stop()

    run(test)


def test_kafka_17210_an_empty_partition_does_not_wedge_the_next_one() -> None:
    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, 0)
        leader.channel.initialize(1, 0, (0, 99, 2, 1))
        configure(leader, {**COMMITTED, "share.partition.max.record.locks": "100"})
        leader.log(1).append(100)
        leader.log(1).append(5)
        response, _ = await leader.fetch("m1", fetch_partition(0), fetch_partition(1), max_wait_ms=5000)
        assert [entries(partition) for partition in response.partitions] == [[], [(100, 104, 1)]]
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("seed", range(200))
def test_a_slice_against_offset_by_offset(seed: int) -> None:
    """A naive look at each offset: is it below the end, in a data batch, and not of an aborted transaction."""
    rng = random.Random(seed)
    log = MemoryTopicLog(0)
    writer_of: dict[int, int] = {}
    since: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for _ in range(rng.randrange(1, 40)):
        producer_id = rng.choice([-1, 1, 2, 3])
        if producer_id in since and rng.random() < 0.4:
            committed = rng.random() < 0.5
            log.end_transaction(producer_id, committed=committed)
            offsets = since.pop(producer_id)
            if not committed:
                aborted.update(offsets)
            continue
        base = log.high_watermark
        log.append(rng.randrange(1, 5), producer_id=producer_id, size=rng.randrange(10, 200))
        for offset in range(base, log.high_watermark):
            writer_of[offset] = producer_id
            if producer_id >= 0:
                since.setdefault(producer_id, []).append(offset)
    open_offsets = [offset for offsets in since.values() for offset in offsets]
    end = min(open_offsets, default=log.high_watermark)
    assert log.last_stable_offset == end
    seen: list[int] = []
    offset = 0
    while (part := read_slice(log, offset, rng.randrange(1, 500), read_committed=True)) is not None:
        assert part.covered_end > offset
        seen += [each for batch in part.batches for each in range(batch.base_offset, batch.last_offset + 1)]
        offset = part.covered_end
    assert offset == end
    assert seen == [offset for offset in sorted(writer_of) if offset < end and offset not in aborted]


def test_a_producer_that_aborts_again_and_again() -> None:
    log = MemoryTopicLog(0)
    for index in range(100):
        log.append(1, producer_id=1)
        log.end_transaction(1, committed=index % 3 == 0)
    part = read_slice(log, 0, 1 << 20, read_committed=True)
    assert part is not None
    assert [batch.base_offset for batch in part.batches] == [2 * index for index in range(0, 100, 3)]
    assert log.aborted[0] == AbortedTransaction(1, 2, 3)
