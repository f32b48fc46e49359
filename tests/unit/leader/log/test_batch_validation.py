"""Large batches are validated beside the event loop: others are served meanwhile, each partition keeps its order."""

from __future__ import annotations

import asyncio
import time

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import batch_validation
from kshare_leader.log.producers.transactions import EndTransaction
from kshare_runtime.memory_store import MemoryDisk
from kshare_wire.record_reading import open_records
from support.leader.log.large_batches import LARGE_COUNT, HeldAside, large_batch
from support.leader.log.leader_logs import KEY, TOPIC, open_logs, topic
from support.wire.raw_batches import plain_batch, record, zstd_bomb
from support.wire.record_building import build_batch

OTHER = TopicPartition(TOPIC, 1)
COMPACTED = topic(configs={"cleanup.policy": "compact"})


def test_what_comes_for_the_partition_waits_and_others_do_not() -> None:
    async def test() -> None:
        aside = HeldAside()
        logs = open_logs(MemoryDisk().open_store("leader"), aside=aside)
        large = logs.append(KEY, memoryview(large_batch(producer_id=7, producer_epoch=0, base_sequence=0)))
        following = build_batch([b"next"], producer_id=7, producer_epoch=0, base_sequence=LARGE_COUNT)
        small = logs.append(KEY, memoryview(following))
        bad = logs.append(KEY, memoryview(following[:-1]))
        marker = logs.end_transaction(
            KEY, EndTransaction(7, 0, committed=True, coordinator_epoch=1, transaction_version=1)
        )
        assert (await logs.append(OTHER, memoryview(build_batch()))).base_offset == 0
        assert not (large.done() or small.done() or bad.done() or marker.done())
        aside.begun[0].set()
        assert (await large).base_offset == 0
        assert (await small).base_offset == LARGE_COUNT
        with pytest.raises(KafkaError):
            await bad
        await marker
        assert (await logs.append(KEY, memoryview(build_batch()))).base_offset == LARGE_COUNT + 2
        assert len(aside.begun) == 1

    asyncio.run(test())


def test_partitions_take_turns_at_the_thread() -> None:
    async def test() -> None:
        aside = HeldAside()
        logs = open_logs(MemoryDisk().open_store("leader"), aside=aside)
        batch = memoryview(large_batch())
        first, second = logs.append(KEY, batch), logs.append(KEY, batch)
        other = logs.append(OTHER, batch)
        for expected in (first, other, second):
            while not aside.begun:
                await asyncio.sleep(0)
            aside.begun.pop().set()
            await expected
        assert [first.result().base_offset, second.result().base_offset] == [0, LARGE_COUNT]

    asyncio.run(test())


def test_a_bomb_takes_no_time_of_the_event_loop() -> None:
    """Eleven kilobytes that are 16 million records; measured is the processor time of the loop's own thread."""
    bomb = zstd_bomb(first_timestamp_ms=1_000_000)
    assert len(bomb) < 20_000

    async def test() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), COMPACTED)
        began = time.thread_time()
        refused = logs.append(KEY, memoryview(bomb))
        beside = 0
        while not refused.done():
            batch = build_batch([b"v"], keys=[b"k"], timestamps_ms=[1_000_000])
            await logs.append(OTHER, memoryview(batch))
            beside += 1
            await asyncio.sleep(0.005)
        with pytest.raises(KafkaError):
            await refused
        assert beside >= 2
        assert time.thread_time() - began - beside * 0.002 < 0.25
        logs.close()

    asyncio.run(test())


def test_what_waits_is_bounded_in_bytes() -> None:
    batch = memoryview(large_batch())

    async def test() -> None:
        aside = HeldAside()
        validation = batch_validation.BatchValidation(aside, inline_bytes=100, queued_bytes_limit=2 * len(batch))
        rules = batch_validation.rules_of(open_logs(MemoryDisk().open_store("leader")).lookup(KEY).settings, "t-0", 0)
        outcomes: list[object] = []
        for _ in range(3):
            validation.submit(KEY, batch_validation.ProducedBatch(batch, rules, 1 << 30), outcomes.append)
        assert [getattr(outcome, "code", None) for outcome in outcomes] == [ErrorCode.KAFKA_STORAGE_ERROR]
        validation.close(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "stopping"))
        codes = [getattr(outcome, "code", None) for outcome in outcomes]
        assert codes[1:] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2

    asyncio.run(test())


def test_headers_get_the_newest_time_of_their_records() -> None:
    """As in Kafka, where LogValidator corrects them; look-ups by time rely on it."""

    async def test() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"))
        records = record(0) + record(1, timestamp_delta=5)
        await logs.append(KEY, memoryview(plain_batch(records, count=2, first_timestamp_ms=1_000_000)))
        log = logs.lookup(KEY)
        (batch,) = log.read(0, 1_000)
        assert [one.timestamp_ms for one in open_records(batch.data)] == [1_000_000, 1_000_005]
        assert await log.offset_for_timestamp(1_000_003) == (1_000_005, 1)

    asyncio.run(test())


def test_a_look_up_by_time_in_a_large_batch_lets_others_go_on() -> None:
    async def test() -> None:
        aside = HeldAside()
        logs = open_logs(MemoryDisk().open_store("leader"), aside=aside)
        large = logs.append(KEY, memoryview(large_batch()))
        await asyncio.sleep(0)
        aside.begun.pop().set()
        await large
        looked_up = asyncio.create_task(logs.lookup(KEY).offset_for_timestamp(999_999))
        newest = asyncio.create_task(logs.lookup(KEY).offset_of_max_timestamp())
        assert (await logs.append(OTHER, memoryview(build_batch()))).base_offset == 0
        assert len(aside.begun) == 2 and not looked_up.done() and not newest.done()
        for held in aside.begun:
            held.set()
        assert await looked_up == await newest == (1_000_000, 0)

    asyncio.run(test())
