"""Many partitions of an existing cluster at one leader: how few requests open them and tell their ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from kshare_core.identifiers import TopicPartition
from kshare_leader.handlers.list_offsets import LATEST, ListOffsetsHandler
from kshare_leader.upstream.log_fetcher import FetchLimits
from kshare_leader.upstream.upstream_logs import UpstreamLogs
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.messages import Request
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import NODE_ID, MemoryUpstream
from support.wire.record_building import build_batch

TOPIC = "wide"
PARTITIONS = 600
REQUEST_MS = 5
NOTHING = memoryview(b"")


class CountingUpstream(MemoryUpstream):
    """Counts requests by kind; a broker takes REQUEST_MS for each, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self._free = asyncio.Lock()

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        self.asked[type(request).__name__] += 1
        async with self._free:
            await asyncio.sleep(REQUEST_MS / 1000)
        return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)


class Bench:
    def __init__(self, upstream: CountingUpstream, topic_id: bytes) -> None:
        self.upstream, self.topic_id = upstream, topic_id
        self.logs = UpstreamLogs(
            upstream=upstream,
            node_id=NODE_ID,
            limits=FetchLimits(),
            window_limit_bytes=1 << 20,
            partition_window_limit_bytes=1 << 16,
            has_lease=lambda: True,
            report=lambda text: None,
        )
        topic = coordinator_pb2.Topic(topic_id=topic_id, name=TOPIC)
        for partition in range(PARTITIONS):
            topic.partitions.add(partition=partition, leader_node_id=NODE_ID, leader_epoch=1)
        self.logs.start()
        self.logs.on_view(CatalogView(), CatalogView(version=1, topics_by_id={topic_id: topic}))


def run(body: Callable[[Bench], Awaitable[None]]) -> None:
    async def with_logs() -> None:
        upstream = CountingUpstream()
        await create_topic(upstream, TOPIC, partitions=PARTITIONS, replicas=1, configs={})
        upstream.topic_ids[TOPIC] = topic_id = bytes(range(16))
        await PartitionLog(upstream, UpstreamPartitionName(TOPIC, 7)).append(build_batch([b"a", b"b"]))
        bench = Bench(upstream, topic_id)
        try:
            await body(bench)
        finally:
            await bench.logs.close()

    loop = VirtualLoop()
    loop.run(with_logs())
    assert loop.problems == []


def test_partitions_are_opened_with_few_requests() -> None:
    async def body(bench: Bench) -> None:
        async with asyncio.timeout(1):
            while bench.logs.offline_count:
                await asyncio.sleep(REQUEST_MS / 1000)
        assert bench.upstream.asked["ListOffsetsRequest"] <= 30, bench.upstream.asked
        assert bench.upstream.asked["OffsetForLeaderEpochRequest"] <= 20, bench.upstream.asked
        log = bench.logs.find(TopicPartition(bench.topic_id, 7))
        assert log is not None and log.high_watermark == 2

    run(body)


def test_the_ends_of_all_partitions_are_told_within_the_time_of_a_call() -> None:
    """The coordinator gives a call for 1,000 partitions three seconds (DescribeShareGroupOffsets)."""

    async def body(bench: Bench) -> None:
        while bench.logs.offline_count:
            await asyncio.sleep(REQUEST_MS / 1000)
        request = leader_pb2.ListOffsetsRequest(
            partitions=[
                leader_pb2.ListOffsetsRequest.Partition(
                    topic_id=bench.topic_id, partition=partition, timestamp=LATEST, current_leader_epoch=-1
                )
                for partition in range(PARTITIONS)
            ]
        )
        async with asyncio.timeout(1):
            answer = await ListOffsetsHandler(bench.logs)(request, NOTHING)
        ends = {each.partition: each.offset for each in answer.partitions if not each.error_code}
        assert ends == {partition: 2 if partition == 7 else 0 for partition in range(PARTITIONS)}

    run(body)
