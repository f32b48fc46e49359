"""What a log fetches ahead of its reader: in large parts, and after what its reader still has to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kshare_core.identifiers import TopicPartition
from kshare_leader.upstream.log_fetcher import FetchLimits, LogFetcher
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.upstream_log import AWAITED_FETCH_BYTES, UpstreamLog
from kshare_leader.upstream.window import WindowBudget
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.messages import Request
from kshare_wire.record_writing import BatchWriter
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream

WINDOW_BYTES = 16 * 1024 * 1024
PART_BYTES = 1000
LIMIT_S = 5
TURNS = 20
"""Enough turns of the event loop for a fetch that does not wait."""


class NotingUpstream(MemoryUpstream):
    """Notes the offset and the limit of each Fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[tuple[int, int]] = []

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        if isinstance(request, FetchRequest):
            (topic,) = request.topics
            self.fetches += [(each.fetch_offset, each.partition_max_bytes) for each in topic.partitions]
        return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)


class Reader:
    """A log of ten batches with a record of PART_BYTES each, and the fetcher that fills its window."""

    def __init__(self, upstream: NotingUpstream, log: UpstreamLog, fetcher: LogFetcher) -> None:
        self.upstream, self.log, self.fetcher = upstream, log, fetcher
        self._arrived = asyncio.Event()
        log.add_listener(self._arrived.set)

    async def read(self, offset: int) -> int:
        """Waits for the batch at an offset, and returns the offset after it."""
        while not (batches := self.log.read(offset, 1)):
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), LIMIT_S)
        return batches[-1].last_offset + 1

    async def fetches_now(self) -> list[tuple[int, int]]:
        """The Fetches of the next turns of the event loop."""
        before = len(self.upstream.fetches)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.upstream.fetches[before:]

    async def next_fetch(self) -> tuple[int, int]:
        count = len(self.upstream.fetches)
        async with asyncio.timeout(LIMIT_S):
            while len(self.upstream.fetches) == count:
                await asyncio.sleep(0.001)
        return self.upstream.fetches[count]


def run(body: Callable[[Reader], Awaitable[None]], *, limits: FetchLimits, window_bytes: int) -> None:
    async def with_reader() -> None:
        upstream, at = NotingUpstream(), UpstreamPartitionName("topic", 0)
        await create_topic(upstream, at.topic, partitions=1, replicas=1, configs={})
        partition = PartitionLog(upstream, at)
        for _ in range(10):
            writer = BatchWriter(1 << 20)
            writer.append(0, None, bytes(PART_BYTES), ())
            await partition.append(writer.build())
        problems = Problems(lambda text: None, lambda: 0)

        async def examine(log: UpstreamLog) -> None:
            raise AssertionError(f"nothing is wrong with {log.at}")

        fetcher = LogFetcher(upstream, limits, problems, examine)
        loop = asyncio.get_running_loop()
        topic_id = (await upstream.describe([at.topic])).topics[at.topic].topic_id
        log = UpstreamLog(
            TopicPartition(topic_id, 0),
            partition,
            window_limit_bytes=window_bytes,
            now_ms=lambda: int(loop.time() * 1000),
            on_demand=fetcher.demand,
            budget=WindowBudget(window_bytes),
        )
        await log.open()
        fetcher.add(log)
        fetcher.start()
        try:
            async with asyncio.timeout(4 * LIMIT_S):
                await body(Reader(upstream, log, fetcher))
        finally:
            await fetcher.stop()

    loop = VirtualLoop()  # a pause of a millisecond ends when nothing else is left to do, however slow the machine is
    loop.run(with_reader())
    assert loop.problems == []


def test_what_lies_ahead_is_fetched_after_a_pause_and_what_a_reader_waits_for_at_once() -> None:
    async def body(reader: Reader) -> None:
        offset = await reader.read(0)
        await reader.fetches_now()
        while not (wants := reader.log.next_fetch(read_committed=False)):
            offset = await reader.read(offset)
        assert not wants.is_tail and offset < wants.offset, "the reader has read all that is here"
        assert await reader.fetches_now() == [], "a fetch ahead of the reader was sent before the reader went on"
        assert (await reader.next_fetch())[0] == wants.offset
        await reader.fetches_now()
        assert not reader.log.read(0, 1), "the first batch is still in the window"
        assert [fetch[0] for fetch in await reader.fetches_now()][:1] == [0], "a reader waits for it"

    run(body, limits=FetchLimits(max_partition_fetch_bytes=2 * PART_BYTES + 500), window_bytes=6 * PART_BYTES)


def test_a_fetch_that_a_reader_waits_for_is_smaller_than_one_ahead() -> None:
    async def body(reader: Reader) -> None:
        reader.log.read(0, 1)
        await reader.read(0)
        assert reader.upstream.fetches[0] == (0, AWAITED_FETCH_BYTES)
        ahead = reader.log.next_fetch(read_committed=False)
        assert ahead is not None and ahead.max_bytes == WINDOW_BYTES // 2

    run(body, limits=FetchLimits(), window_bytes=WINDOW_BYTES)
