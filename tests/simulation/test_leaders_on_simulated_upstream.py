"""A leader's logs of a simulated cluster of three brokers: what is read is what the cluster has, whoever leads it.

A reader reads on all the time, at the end and at random places, while records are appended and leaders change. Clean
elections never make a log be replaced, however far the high watermark lags. After unclean ones, no log object has the
records of two logs, and none keeps an end whose records are lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from kshare_core.identifiers import TopicPartition
from kshare_leader.ports import StoredBatch
from kshare_leader.upstream.log_fetcher import FetchLimits
from kshare_leader.upstream.upstream_log import UpstreamLog
from kshare_leader.upstream.upstream_logs import ENDS_INTERVAL_S, UpstreamLogs
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_upstream.partition_log import OutcomeUnknown, PartitionLog
from kshare_upstream.port import Upstream
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_upstream.topics import create_topic
from kshare_wire.record_writing import BatchWriter
from support.simulation.loop import VirtualLoop
from support.simulation.upstream.brokers import BrokerCluster, simulated_cluster

AT = Name("orders", 0)
NODE_ID = 7
SECONDS = 40.0
CALM_S = 20.0


class Reader:
    """Reads one partition through `UpstreamLogs`, and keeps what each log object showed."""

    def __init__(self, upstream: Upstream, topic_id: bytes, draw: random.Random) -> None:
        self.replaced = 0
        self.seen: dict[UpstreamLog, dict[int, bytes]] = {}
        """The batches that each log object showed, by base offset."""
        self._key = TopicPartition(topic_id, 0)
        self._draw = draw
        self.logs = UpstreamLogs(
            upstream=upstream,
            node_id=NODE_ID,
            limits=FetchLimits(max_partition_fetch_bytes=600),
            window_limit_bytes=1 << 20,
            partition_window_limit_bytes=2_000,
            has_lease=lambda: True,
            report=lambda text: None,
        )
        self.logs.on_replaced(self._note_replaced)
        topic = coordinator_pb2.Topic(topic_id=topic_id, name=AT.topic)
        topic.partitions.add(partition=0, leader_node_id=NODE_ID, leader_epoch=1)
        self.logs.start()
        self.logs.on_view(CatalogView(), CatalogView(version=1, topics_by_id={topic_id: topic}))

    def _note_replaced(self, key: TopicPartition) -> None:
        assert key == self._key
        self.replaced += 1

    @property
    def log(self) -> UpstreamLog | None:
        return self.logs.find(self._key)

    async def read_for(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end, position = loop.time() + seconds, 0
        while loop.time() < end:
            log = self.log
            if log is not None:
                position = position if log in self.seen else 0
                if self._draw.random() < 0.1 and position:
                    self._note(log, log.read(self._draw.randrange(position), 300))
                position = self._note(log, log.read(position, 1_000)) or min(position, log.high_watermark)
            await asyncio.sleep(self._draw.random() * 0.05)

    def _note(self, log: UpstreamLog, batches: Sequence[StoredBatch]) -> int:
        """The offset after the batches; 0 for none. What was seen at an offset is seen there again."""
        seen = self.seen.setdefault(log, {})
        for batch in batches:
            if batch.last_offset >= log.high_watermark:
                return batch.base_offset
            assert seen.setdefault(batch.base_offset, batch.data) == batch.data, f"other records at {batch.base_offset}"
        return batches[-1].last_offset + 1 if batches else 0


async def append_for(seconds: float, upstream: Upstream, draw: random.Random) -> None:
    loop, partition = asyncio.get_running_loop(), PartitionLog(upstream, AT, deadline_ms=5_000)
    end, number = loop.time() + seconds, 0
    while loop.time() < end:
        writer = BatchWriter(1 << 20)
        for _ in range(draw.randint(1, 3)):
            number += 1
            assert writer.append(0, None, b"%d" % number, ())
        try:
            await partition.append(writer.build())
        except OutcomeUnknown:
            continue
        await asyncio.sleep(draw.random() * 0.2)


async def elect_for(seconds: float, brokers: BrokerCluster, draw: random.Random, *, unclean: bool) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(draw.random() * 6)
        partition = brokers.upstream.partition(AT)
        assert partition is not None
        if unclean and draw.random() < 0.4:
            brokers.upstream.elect_uncleanly(AT, max(0, partition.log.end - draw.randint(0, 12)))
        elif len(partition.in_sync) > 1:
            partition.lose_leader()
            await asyncio.sleep(draw.random())
            if partition.in_sync and partition.leader < 0:
                partition.elect(draw.choice(partition.in_sync), is_orderly=draw.random() < 0.5)


def run(seed: int, *, unclean: bool) -> Reader:
    readers: list[Reader] = []

    async def main() -> None:
        draw = random.Random(f"{seed}/{unclean}")
        async with simulated_cluster(seed) as (client, brokers):
            assert await create_topic(client, AT.topic, partitions=1, replicas=3, configs={"min.insync.replicas": "1"})
            await asyncio.sleep(5)
            topic = (await client.describe([AT.topic])).topics[AT.topic]
            reader = Reader(client, topic.topic_id, draw)
            readers.append(reader)
            await asyncio.gather(
                reader.read_for(SECONDS + CALM_S),
                append_for(SECONDS, client, draw),
                elect_for(SECONDS, brokers, draw, unclean=unclean),
            )
            partition, log = brokers.upstream.partition(AT), reader.log
            assert partition is not None and log is not None, reader.logs.problems()
            assert log.high_watermark == partition.high_watermark == partition.log.end
            stored = {batch.header.base_offset: bytes(batch.data) for batch in partition.log.batches}
            shown = {base: bytes(data) for base, data in reader.seen[log].items()}
            assert shown.items() <= stored.items(), "the log object has records that the cluster does not have"
            assert max(shown) == max(stored), "the end was not read"
            await reader.logs.close()

    loop = VirtualLoop(time_limit=3600.0)
    loop.run(main())
    assert not loop.problems, loop.problems
    return readers[0]


@pytest.mark.parametrize("seed", range(4))
def test_clean_elections_replace_no_log(seed: int) -> None:
    reader = run(seed, unclean=False)
    assert reader.replaced == 0
    assert len(reader.seen) == 1


@pytest.mark.parametrize("seed", range(6))
def test_unclean_elections_never_mix_the_records_of_two_logs(seed: int) -> None:
    assert run(seed, unclean=True).replaced > 0


@pytest.mark.parametrize("reads", [True, False])
def test_a_log_does_not_wait_for_lost_records_that_were_not_read_yet(reads: bool) -> None:
    async def main() -> None:
        async with simulated_cluster(1) as (client, brokers):
            assert await create_topic(client, AT.topic, partitions=1, replicas=3, configs={"min.insync.replicas": "1"})
            await asyncio.sleep(5)
            for number in range(30):
                writer = BatchWriter(1 << 20)
                assert writer.append(0, None, b"%d" % number, ())
                await PartitionLog(client, AT).append(writer.build())
            reader = Reader(client, (await client.describe([AT.topic])).topics[AT.topic].topic_id, random.Random(1))
            await asyncio.sleep(5)
            first = reader.log
            assert first is not None and first.high_watermark == 30
            while reads and not first.read(0, 1):
                await asyncio.sleep(0.1)
            brokers.upstream.elect_uncleanly(AT, 12)
            await (reader.read_for(10) if reads else asyncio.sleep(10))
            assert reader.replaced == 1 and reader.log is not None and reader.log.high_watermark == 12
            await reader.logs.close()

    VirtualLoop(time_limit=600.0).run(main())


def test_the_epochs_of_what_one_leader_appended_cost_no_requests() -> None:
    """Queries for the lag of a group ask for a log's end again and again, also while no consumer reads the log."""

    async def main() -> None:
        async with simulated_cluster(1) as (client, _):
            assert await create_topic(client, AT.topic, partitions=1, replicas=3, configs={"min.insync.replicas": "1"})
            await asyncio.sleep(5)
            reader = Reader(client, (await client.describe([AT.topic])).topics[AT.topic].topic_id, random.Random(1))
            await asyncio.sleep(5)
            log = reader.log
            assert log is not None and log.high_watermark == 0
            asked: list[str] = []
            ask_broker = client.ask_broker

            async def counted(node_id: int, request: Any, served: Any, **options: Any) -> Any:
                asked.append(type(request).__name__)
                return await ask_broker(node_id, request, served, **options)

            for end in (30, 60):
                for number in range(30):
                    writer = BatchWriter(1 << 20)
                    assert writer.append(0, None, b"%d" % number, ())
                    await PartitionLog(client, AT).append(writer.build())
                client.ask_broker = counted  # type: ignore[method-assign]
                await log.refresh()
                client.ask_broker = ask_broker  # type: ignore[method-assign]
                assert log.epochs_known_to == log.high_watermark == end
                assert [entry.start_offset for entry in log.leader_epochs] == [0]
            assert set(asked) == {"ListOffsetsRequest"}
            await reader.logs.close()

    VirtualLoop(time_limit=600.0).run(main())


@pytest.mark.parametrize("how", ["read", "refresh", "listen"])
def test_an_election_that_nobody_read_over_is_no_truncation(how: str) -> None:
    """The end is known far beyond what was read: epochs in between are learned before anything is compared."""

    async def append(client: Upstream, count: int) -> None:
        for number in range(count):
            writer = BatchWriter(1 << 20)
            assert writer.append(0, None, b"%d" % number, ())
            await PartitionLog(client, AT).append(writer.build())

    async def main() -> None:
        async with simulated_cluster(1) as (client, brokers):
            assert await create_topic(client, AT.topic, partitions=1, replicas=3, configs={"min.insync.replicas": "1"})
            await asyncio.sleep(5)
            await append(client, 30)
            reader = Reader(client, (await client.describe([AT.topic])).topics[AT.topic].topic_id, random.Random(1))
            await asyncio.sleep(5)
            log, partition = reader.log, brokers.upstream.partition(AT)
            assert log is not None and partition is not None and log.high_watermark == 30
            partition.lose_leader()
            await asyncio.sleep(1)
            partition.elect(partition.in_sync[0], is_orderly=True)
            await append(client, 30)
            await asyncio.sleep(2 * ENDS_INTERVAL_S)
            assert log.high_watermark == 60
            if how == "refresh":
                await log.refresh()
            elif how == "listen":
                log.add_listener(lambda: None)
            else:
                assert log.read(60, 1) == []
            await asyncio.sleep(2)
            await append(client, 1)
            await asyncio.sleep(2)
            if how != "refresh":
                assert [batch.base_offset for batch in log.read(60, 1_000)] == [60]
            assert [entry.start_offset for entry in log.leader_epochs] == [0, 30]
            assert await log.diverging_offset(log.leader_epochs, 60) is None
            assert reader.replaced == 0
            await reader.logs.close()

    VirtualLoop(time_limit=600.0).run(main())
