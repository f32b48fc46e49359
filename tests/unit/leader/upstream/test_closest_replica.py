"""A fetch from the replica in the leader's rack (KIP-392): two brokers, one of which is behind or away at times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.upstream.log_fetcher import FetchLimits, LogFetcher
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.upstream_log import UpstreamLog
from kshare_leader.upstream.window import WindowBudget
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.responses.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kshare_wire.messages import Request
from kshare_wire.record_reading import open_records
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import NODE_ID, MemoryUpstream
from support.wire.record_building import build_batch

AT = UpstreamPartitionName("orders", 0)
REPLICA_ID, RACK = 2, "rack-2"


class TwoBrokers(MemoryUpstream):
    """Broker NODE_ID leads, REPLICA_ID is the follower in RACK. The follower has the records below `replica_end`."""

    def __init__(self) -> None:
        super().__init__()
        self.replica_end = 1 << 60
        self.is_replica_away = False
        self.fetched_from: list[int] = []
        """The broker of each Fetch that brought records."""

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        if node_id == REPLICA_ID and self.is_replica_away:
            raise ConnectionLost("the replica is away")
        if isinstance(request, FetchRequest):
            offset = request.topics[0].partitions[0].fetch_offset
            if (
                node_id == NODE_ID
                and request.rack_id == RACK
                and not self.is_replica_away
                and offset < self.replica_end
            ):
                return cast(AResponse, answer(PartitionData(preferred_read_replica=REPLICA_ID), request))
            if node_id == REPLICA_ID and offset > self.replica_end:
                return cast(AResponse, answer(PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), request))
            found = await super().ask_broker(NODE_ID, request, served, wait_ms=wait_ms, purpose=purpose)
            assert isinstance(found, FetchResponse)
            if any(found.responses[0].partitions[0].records or ()):
                self.fetched_from.append(node_id)
            return cast(AResponse, found)
        assert node_id == NODE_ID
        return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)


def answer(partition: PartitionData, request: FetchRequest) -> FetchResponse:
    topic = request.topics[0]
    return FetchResponse(
        responses=[FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[partition])]
    )


class Reader:
    """Reads the log from its beginning to its end."""

    def __init__(self, brokers: TwoBrokers, topic_id: bytes) -> None:
        self.brokers = brokers
        self.partition = PartitionLog(brokers, AT)
        self.examined = 0
        loop = asyncio.get_running_loop()

        def now_ms() -> int:
            return int(loop.time() * 1000)

        limits = FetchLimits(client_rack=RACK)
        self.fetcher = LogFetcher(brokers, limits, Problems(lambda text: None, now_ms), self.examine)
        self.log = UpstreamLog(
            TopicPartition(topic_id, 0),
            self.partition,
            window_limit_bytes=1 << 20,
            now_ms=now_ms,
            on_demand=self.fetcher.demand,
            budget=WindowBudget(1 << 20),
        )

    async def examine(self, log: UpstreamLog) -> None:
        self.examined += 1
        self.fetcher.examination_ended(log)

    async def append(self, value: bytes) -> None:
        await self.partition.append(build_batch([value]))

    async def value_at(self, offset: int) -> bytes | None:
        arrived = asyncio.Event()
        remove = self.log.add_listener(arrived.set)
        try:
            async with asyncio.timeout(10):
                while not (found := self.log.read(offset, 1)):
                    await arrived.wait()
                    arrived.clear()
        finally:
            remove()
        (record,) = open_records(found[0].data)
        return record.value


def run(body: Callable[[Reader], Coroutine[Any, Any, None]]) -> None:
    async def test() -> None:
        brokers = TwoBrokers()
        assert await create_topic(brokers, "orders", partitions=1, replicas=1, configs={})
        reader = Reader(brokers, brokers.topic_ids["orders"])
        await reader.append(b"0")
        await reader.log.open()
        reader.fetcher.add(reader.log)
        reader.fetcher.start()
        try:
            await body(reader)
        finally:
            await reader.fetcher.stop()

    VirtualLoop(time_limit=600.0).run(test())


def test_records_come_from_the_replica_that_the_leader_names() -> None:
    async def body(reader: Reader) -> None:
        assert await reader.value_at(0) == b"0"
        await reader.append(b"1")
        assert await reader.value_at(1) == b"1"
        assert reader.brokers.fetched_from == [REPLICA_ID, REPLICA_ID]

    run(body)


def test_the_leader_is_read_while_the_replica_is_away() -> None:
    async def body(reader: Reader) -> None:
        assert await reader.value_at(0) == b"0"
        reader.brokers.is_replica_away = True
        await reader.append(b"1")
        assert await reader.value_at(1) == b"1"
        assert reader.brokers.fetched_from == [REPLICA_ID, NODE_ID]

    run(body)


def test_a_replica_that_is_behind_proves_no_truncation() -> None:
    async def body(reader: Reader) -> None:
        for value in (b"1", b"2"):
            await reader.append(value)
        assert await reader.value_at(0) == b"0"
        reader.brokers.replica_end = 1
        await reader.append(b"3")
        assert await reader.value_at(3) == b"3"
        assert reader.examined == 0 and reader.brokers.fetched_from[-1] == NODE_ID

    run(body)
