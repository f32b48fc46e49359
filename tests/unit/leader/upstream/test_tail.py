"""Records that arrive while a broker waits for them: they are readable at once, whatever else is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kshare_core.identifiers import TopicPartition
from kshare_leader.upstream.log_fetcher import QUIET_AFTER_S, TAILS, FetchLimits, LogFetcher
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.upstream_log import FetchPosition, UpstreamLog
from kshare_leader.upstream.window import WindowBudget
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.responses.fetch import FetchResponse
from kshare_wire.messages import Request
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream
from support.wire.record_building import build_batch

SOON_S = 0.05
"""Far below the 500 ms that a broker waits."""


class LateEnds(MemoryUpstream):
    """Its answers have the ends of the log before the records that they bring, as a broker's have now and then."""

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        answer = await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)
        if isinstance(answer, FetchResponse):
            for topic in answer.responses:
                for partition in topic.partitions:
                    if any(partition.records or ()):
                        partition.high_watermark -= 1
                        partition.last_stable_offset -= 1
        return answer


class CountingUpstream(MemoryUpstream):
    """Counts the partitions that are fetched, and the Fetches that wait."""

    fetched_partitions = 0
    fetches_under_way = 0

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        fetched = sum(len(topic.partitions) for topic in request.topics) if isinstance(request, FetchRequest) else 0
        self.fetched_partitions += fetched
        self.fetches_under_way += bool(fetched)
        try:
            return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)
        finally:
            self.fetches_under_way -= bool(fetched)


class HangingUpstream(MemoryUpstream):
    """Once told so, does not answer Fetches of several partitions, as behind a connection that hangs."""

    hangs = False

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        if self.hangs and isinstance(request, FetchRequest) and len(request.topics) > 1:
            await asyncio.sleep(3600)
        return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)


class CountingLog(UpstreamLog):
    """Counts how often it is asked for what to fetch next."""

    looked_at = 0

    def next_fetch(self, *, read_committed: bool) -> FetchPosition | None:
        self.looked_at += 1
        return super().next_fetch(read_committed=read_committed)


class Tails:
    """Logs of topics with one empty partition each, and the fetcher that reads them."""

    def __init__(self, upstream: MemoryUpstream) -> None:
        self._upstream = upstream
        loop = asyncio.get_running_loop()
        self._now_ms: Callable[[], int] = lambda: int(loop.time() * 1000)
        problems = Problems(lambda text: None, self._now_ms)
        self.fetcher = LogFetcher(upstream, FetchLimits(), problems, self._examine)
        self.logs: list[CountingLog] = []

    async def _examine(self, log: UpstreamLog) -> None:
        raise AssertionError(f"nothing is wrong with {log.at}")

    async def follow(self, name: str, *, read_committed: bool) -> asyncio.Event:
        """Adds a log; the event is set when it has more than before."""
        await create_topic(self._upstream, name, partitions=1, replicas=1, configs={})
        at = UpstreamPartitionName(name, 0)
        topic_id = (await self._upstream.describe([name])).topics[name].topic_id
        log = CountingLog(
            TopicPartition(topic_id, 0),
            PartitionLog(self._upstream, at),
            window_limit_bytes=1 << 20,
            now_ms=self._now_ms,
            on_demand=self.fetcher.demand,
            budget=WindowBudget(1 << 20),
        )
        await log.open()
        self.logs.append(log)
        arrived = asyncio.Event()
        log.add_listener(arrived.set, read_committed=read_committed)
        self.fetcher.add(log)
        return arrived

    async def append(self, log: UpstreamLog) -> None:
        await PartitionLog(self._upstream, log.at).append(build_batch([b"value"]))


def run(upstream: MemoryUpstream, body: Callable[[Tails], Coroutine[Any, Any, None]]) -> None:
    async def test() -> None:
        tails = Tails(upstream)
        tails.fetcher.start()
        try:
            await body(tails)
        finally:
            await tails.fetcher.stop()

    loop = VirtualLoop()
    loop.run(test())
    assert loop.problems == []


@pytest.mark.parametrize("read_committed", [False, True])
def test_records_beyond_the_end_that_their_answer_tells_are_readable(read_committed: bool) -> None:
    async def body(tails: Tails) -> None:
        arrived = await tails.follow("orders", read_committed=read_committed)
        (log,) = tails.logs
        await asyncio.sleep(0.1)
        for end_offset in range(1, 4):
            arrived.clear()
            await tails.append(log)
            await asyncio.wait_for(arrived.wait(), SOON_S)
            assert (log.last_stable_offset if read_committed else log.high_watermark) == end_offset

    run(LateEnds(), body)


def test_a_log_whose_end_is_reached_does_not_wait_for_those_that_wait_already() -> None:
    async def body(tails: Tails) -> None:
        for number in range(TAILS):
            arrived = await tails.follow(f"topic-{number}", read_committed=False)
            await asyncio.sleep(0.01)  # the ones before wait at the broker now
            await tails.append(tails.logs[-1])
            await asyncio.wait_for(arrived.wait(), SOON_S)

    run(MemoryUpstream(), body)


def test_a_log_that_is_read_costs_the_others_nothing() -> None:
    async def body(tails: Tails) -> None:
        for number in range(20):
            await tails.follow(f"topic-{number}", read_committed=False)
        await asyncio.sleep(0.1)
        read, *others = tails.logs
        before = [log.looked_at for log in others]
        for _ in range(10):
            looked_at = read.looked_at
            tails.fetcher.demand(read)
            await asyncio.sleep(0.001)
            assert read.looked_at > looked_at
        assert [log.looked_at for log in others] == before

    run(MemoryUpstream(), body)


def test_logs_that_wait_for_a_fetch_under_way_have_the_next_one() -> None:
    async def body(tails: Tails) -> None:
        arrived = [await tails.follow(f"topic-{number}", read_committed=False) for number in range(2 * TAILS)]
        await asyncio.sleep(2)  # every log is part of a fetch that waits
        for log, event in zip(tails.logs, arrived, strict=True):
            await tails.append(log)
            await asyncio.wait_for(event.wait(), SOON_S)

    run(MemoryUpstream(), body)


def test_a_record_of_a_busy_log_does_not_fetch_the_quiet_ones_anew() -> None:
    upstream = CountingUpstream()

    async def body(tails: Tails) -> None:
        arrived = [await tails.follow(f"topic-{number}", read_committed=False) for number in range(50)]
        await asyncio.sleep(QUIET_AFTER_S + 2)
        await tails.append(tails.logs[0])
        await asyncio.sleep(0.1)
        before = upstream.fetched_partitions
        for _ in range(100):
            arrived[0].clear()
            await tails.append(tails.logs[0])
            await asyncio.wait_for(arrived[0].wait(), SOON_S)
        quiet = 2 * 49  # at most twice, as less than 500 ms pass
        assert upstream.fetched_partitions - before <= 100 + quiet

    run(upstream, body)


def test_logs_that_become_quiet_one_after_the_other_share_one_fetch() -> None:
    upstream = CountingUpstream()

    async def body(tails: Tails) -> None:
        for number in range(2 * TAILS):
            await tails.follow(f"topic-{number}", read_committed=False)
            await asyncio.sleep(0.13)
        await asyncio.sleep(QUIET_AFTER_S + 2)
        assert upstream.fetches_under_way == 1

    run(upstream, body)


def test_a_log_that_becomes_quiet_does_not_wait_for_a_fetch_that_hangs() -> None:
    upstream = HangingUpstream()

    async def body(tails: Tails) -> None:
        arrived = [await tails.follow(f"topic-{number}", read_committed=False) for number in range(4)]
        await asyncio.sleep(QUIET_AFTER_S + 2)
        for pause_s in (0.1, QUIET_AFTER_S + 0.3, QUIET_AFTER_S + 0.5):  # the last ones while it is quiet
            arrived[0].clear()
            await tails.append(tails.logs[0])
            await asyncio.wait_for(arrived[0].wait(), SOON_S)
            upstream.hangs = True  # the three others are fetched together from now on
            before = tails.logs[0].looked_at
            await asyncio.sleep(pause_s)
            assert tails.logs[0].looked_at - before < 100, "and the broker is not asked all the time"

    run(upstream, body)
