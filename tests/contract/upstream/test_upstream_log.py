"""An upstream log as share-partitions read it, over the cluster in memory and over Apache Kafka 3.9.1."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from kshare_core.identifiers import TopicPartition
from kshare_leader.share.log_slices import read_slice
from kshare_leader.upstream.log_fetcher import FetchLimits, LogFetcher
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.upstream_log import UpstreamLog
from kshare_leader.upstream.window import WindowBudget
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.topics import create_topic, durable_configs
from kshare_wire.record_reading import open_records
from kshare_wire.record_writing import BatchWriter
from support.upstream.memory_upstream import MemoryUpstream
from support.upstream.opened import IN_MEMORY, opened, run_with
from support.wire.raw_batches import CODECS, plain_batch, record

WINDOW_BYTES = 20_000
LIMIT_S = 30


class Reading:
    """A log, the fetcher that fills it, and a reader that waits for what is not there yet."""

    def __init__(
        self, upstream: Upstream, at: UpstreamPartitionName, topic_id: bytes, window_limit_bytes: int = WINDOW_BYTES
    ) -> None:
        self.upstream = upstream
        self.partition = PartitionLog(upstream, at, deadline_ms=10_000)
        self.problems: list[str] = []
        self.truncated_at: list[int] = []
        limits = FetchLimits(max_partition_fetch_bytes=5_000)
        self.fetcher = LogFetcher(upstream, limits, Problems(self.problems.append, lambda: 0), self.examine)
        self.log = UpstreamLog(
            TopicPartition(topic_id, at.partition),
            self.partition,
            window_limit_bytes=window_limit_bytes,
            now_ms=lambda: int(time.monotonic() * 1000),
            on_demand=self.fetcher.demand,
            budget=WindowBudget(window_limit_bytes),
        )

    async def examine(self, log: UpstreamLog) -> None:
        offset = await log.find_truncation()
        if offset is not None:
            self.truncated_at.append(offset)
            self.fetcher.remove(log)
        self.fetcher.examination_ended(log)

    async def start(self) -> None:
        await self.log.open()
        self.fetcher.add(self.log)
        self.fetcher.start()

    async def values(self, offset: int, count: int, *, read_committed: bool = False) -> list[bytes]:
        """The values of `count` records from `offset` on."""
        found: list[bytes] = []
        arrived = asyncio.Event()
        remove = self.log.add_listener(arrived.set, read_committed=read_committed)
        try:
            async with asyncio.timeout(LIMIT_S):
                while len(found) < count:
                    arrived.clear()
                    batches = self.log.read(offset, 3_000, read_committed=read_committed)
                    if not batches:
                        await arrived.wait()
                    for batch in batches:
                        if not batch.is_control:
                            records = open_records(batch.data)
                            found += [record.value or b"" for record in records if record.offset >= offset]
                        offset = batch.last_offset + 1
        finally:
            remove()
        return found[:count]  # the last batch may have more

    async def append(self, *values: bytes) -> int:
        writer = BatchWriter(1 << 20)
        for value in values:
            writer.append(0, None, value, ())
        return await self.partition.append(writer.build())


async def id_of(upstream: Upstream, topic: str) -> bytes:
    """The id of a new topic, once the brokers know it."""
    async with asyncio.timeout(LIMIT_S):
        while (found := (await upstream.describe([topic])).topics[topic]).error_code:
            await asyncio.sleep(0.05)
    return found.topic_id


def run(bootstrap: str, body: Callable[[Reading], Awaitable[None]], **settings: int) -> None:
    async def with_log() -> None:
        async with opened(bootstrap) as upstream:
            topic = f"t-{uuid4().hex}"
            assert await create_topic(upstream, topic, partitions=1, replicas=1, configs=durable_configs(1))
            topic_id = await id_of(upstream, topic)
            reading = Reading(upstream, UpstreamPartitionName(topic, 0), topic_id, **settings)
            try:
                await body(reading)
            finally:
                await reading.fetcher.stop()

    run_with(bootstrap, with_log())


def test_what_is_appended_is_read_in_order_and_waiting_readers_are_woken(bootstrap: str) -> None:
    async def body(reading: Reading) -> None:
        await reading.start()
        expected = [str(number).encode() for number in range(60)]

        async def produce() -> None:
            for start in range(0, 60, 3):
                await reading.append(*expected[start : start + 3])

        found, _ = await asyncio.gather(reading.values(0, 60), produce())
        assert found == expected and not reading.problems
        assert reading.log.high_watermark == 60

    run(bootstrap, body)


def test_a_log_larger_than_the_window_is_read_from_its_beginning_and_again(bootstrap: str) -> None:
    """Each read of the beginning fetches what was dropped meanwhile."""

    async def body(reading: Reading) -> None:
        expected = [bytes([number]) * 700 for number in range(100)]
        for value in expected:
            await reading.append(value)
        await reading.start()
        assert reading.log.high_watermark == 100
        assert await reading.values(0, 100) == expected
        assert await reading.values(37, 63) == expected[37:]
        assert await reading.values(0, 10) == expected[:10]

    run(bootstrap, body)


def test_readers_at_two_places_do_not_keep_each_other_from_reading(bootstrap: str) -> None:
    async def body(reading: Reading) -> None:
        expected = [bytes([number]) * 700 for number in range(80)]
        for value in expected:
            await reading.append(value)
        await reading.start()
        first, second = await asyncio.gather(reading.values(0, 80), reading.values(40, 40))
        assert (first, second) == (expected, expected[40:])

    run(bootstrap, body, window_limit_bytes=6_000)


def test_a_beginning_that_was_deleted_is_skipped(bootstrap: str) -> None:
    async def body(reading: Reading) -> None:
        for number in range(10):
            await reading.append(bytes([number]))
        await reading.start()
        await reading.partition.delete_before(6)
        assert await reading.values(2, 4) == [bytes([number]) for number in range(6, 10)]
        assert reading.log.log_start_offset == 6

    run(bootstrap, body)


def test_offsets_by_time_and_leader_epochs(bootstrap: str) -> None:
    async def body(reading: Reading) -> None:
        await reading.append(b"a", b"b")
        await reading.start()
        assert reading.log.leader_epochs == [(0, 0)]
        assert reading.log.encoded_leader_epochs() == bytes(12)
        assert await reading.log.offset_for_timestamp(1 << 50) is None

    run(bootstrap, body)


def test_leader_epochs_are_those_of_the_log() -> None:
    async def body(reading: Reading) -> None:
        assert isinstance(reading.upstream, MemoryUpstream)
        at = reading.partition.at
        await reading.append(b"a", b"b")
        reading.upstream.elect(at, 3)
        await reading.append(b"c")
        reading.upstream.elect(at, 7)
        await reading.start()
        assert reading.log.leader_epochs == [(0, 0), (3, 2), (7, 3)]
        reading.upstream.elect(at, 8)
        await reading.append(b"d")
        assert await reading.values(0, 4) == [b"a", b"b", b"c", b"d"]
        assert reading.log.leader_epochs == [(0, 0), (3, 2), (8, 3)]
        await reading.partition.delete_before(2)
        await reading.log.open()
        assert reading.log.leader_epochs == [(3, 2), (8, 3)]

    run(IN_MEMORY, body)


@pytest.mark.parametrize("ends", [("commit", "abort", "commit", "abort"), ("abort", "abort"), ("commit",)])
def test_aborted_records_are_left_out_for_readers_of_committed_ones(kafka: str, ends: tuple[str, ...]) -> None:
    """On Kafka alone: the cluster in memory has no transactions."""

    async def body(reading: Reading) -> None:
        topic = reading.partition.at.topic
        producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic, "linger.ms": 0})
        await asyncio.to_thread(producer.init_transactions, 30)
        expected, offset = [], 0
        for number, end in enumerate(ends):
            producer.begin_transaction()
            for part in range(3):
                producer.produce(topic, f"{number}-{part}".encode())
                await asyncio.to_thread(producer.flush, 10)
            await asyncio.to_thread(producer.commit_transaction if end == "commit" else producer.abort_transaction, 30)
            expected += [f"{number}-{part}".encode() for part in range(3) if end == "commit"]
        await reading.start()
        arrived, found = asyncio.Event(), []
        reading.log.add_listener(arrived.set, read_committed=True)
        async with asyncio.timeout(LIMIT_S):
            while offset < reading.log.high_watermark:
                arrived.clear()
                piece = read_slice(reading.log, offset, 1 << 20, read_committed=True)
                if piece is None:
                    await arrived.wait()
                    continue
                found += [record.value for batch in piece.batches for record in open_records(batch.data)]
                offset = piece.covered_end
        assert found == expected

    run(kafka, body)


async def reads_good_batches_only(reading: Reading, codec: str, count: int) -> None:
    """Of three batches, the second one has a record whose length is wrong."""
    records = b"".join(record(delta) for delta in range(count - 1))
    good = plain_batch(records + record(count - 1), count=count, codec=codec)
    bad = plain_batch(records + record(count - 1, length_added=1), count=count, codec=codec)
    for batch in (good, bad, good):
        await reading.partition.append(batch)
    await reading.start()
    arrived = asyncio.Event()
    reading.log.add_listener(arrived.set)
    found: list[int] = []
    offset = 0
    async with asyncio.timeout(LIMIT_S):
        while offset < 3 * count:
            arrived.clear()
            part = read_slice(reading.log, offset, 1 << 20, read_committed=False)
            if part is None:
                await arrived.wait()
            else:
                found += [batch.base_offset for batch in part.batches]
                offset = part.covered_end
    assert found == [0, 2 * count]
    (said,) = set(reading.problems)
    assert f"the batch at offset {count} is archived for share groups" in said


@pytest.mark.parametrize("codec", CODECS[1:])
def test_share_groups_do_not_get_compressed_batches_that_no_consumer_can_read(bootstrap: str, codec: str) -> None:
    """A broker stores them, and a consumer that finds one drops what it got with it."""
    run(bootstrap, lambda reading: reads_good_batches_only(reading, codec, 3))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_large_compressed_batches_are_checked_too(codec: str) -> None:
    """On a thread, which the simulated brokers' loop does not have."""
    run(IN_MEMORY, lambda reading: reads_good_batches_only(reading, codec, 60_000), window_limit_bytes=1 << 24)
