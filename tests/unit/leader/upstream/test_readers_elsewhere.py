"""Several groups that read one partition at different places: a stopped one does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.share.log_slices import read_slice
from kshare_leader.upstream.log_fetcher import FetchLimits, LogFetcher
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.stalled_offsets import STALL_BACKOFF_MAX_MS, STALL_KEPT_MS
from kshare_leader.upstream.upstream_log import TAIL_PAUSE_MS, UpstreamLog
from kshare_leader.upstream.window import WindowBudget
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.responses.fetch import FetchResponse, PartitionData
from kshare_wire.messages import Request
from kshare_wire.record_batches import read_header
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream
from support.wire.record_building import build_batch

AT = UpstreamPartitionName("orders", 0)
WINDOW_BYTES = 400_000
FETCH_BYTES = 60_000
BATCH_BYTES = 1_000
SOON_S = 0.05
MAGIC_AT = 16


class StoppingBroker(MemoryUpstream):
    """Does not deliver some batches at the beginning of an answer: it sends nothing, an error, or message format v1."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped_from = self.stopped_below = 0
        self.how = ""
        self.fetches: list[int] = []
        """Their offsets."""

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
        if isinstance(request, FetchRequest) and isinstance(answer, FetchResponse):
            for topic in request.topics:
                self.fetches += [wanted.fetch_offset for wanted in topic.partitions]
            for found in [found for topic in answer.responses for found in topic.partitions]:
                self._stop(found)
        return answer

    def _stop(self, found: PartitionData) -> None:
        records = bytearray(b"".join(found.records or ()))
        if records and self.stopped_from <= read_header(memoryview(records)).base_offset < self.stopped_below:
            if self.how == "error":
                found.error_code = ErrorCode.CORRUPT_MESSAGE
            if self.how == "format v1":
                records[MAGIC_AT] = 1
            found.records = [memoryview(records)] if self.how == "format v1" else []


class Bench:
    def __init__(self, broker: StoppingBroker) -> None:
        self.broker = broker
        self.partition = PartitionLog(broker, AT)
        self._loop = asyncio.get_running_loop()
        self.problems = Problems(lambda text: None, self._now_ms)
        self.fetcher = LogFetcher(
            broker, FetchLimits(max_partition_fetch_bytes=FETCH_BYTES), self.problems, self._examine
        )
        self.log = self.new_log(self.partition)

    def new_log(self, partition: PartitionLog) -> UpstreamLog:
        return UpstreamLog(
            TopicPartition(self.broker.topic_ids[partition.at.topic], 0),
            partition,
            window_limit_bytes=WINDOW_BYTES,
            now_ms=self._now_ms,
            on_demand=self.fetcher.demand,
            budget=WindowBudget(WINDOW_BYTES),
        )

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    async def _examine(self, log: UpstreamLog) -> None:
        assert await log.learn_epochs() is None
        self.fetcher.examination_ended(log)

    async def append(self, count: int = 1) -> None:
        for _ in range(count):
            await self.partition.append(build_batch([bytes(BATCH_BYTES)]))

    async def read(self, offset: int, limit_s: float) -> int:
        """Reads as a share-partition does: never at the log's end, and again whenever the log calls."""
        arrived = asyncio.Event()
        remove = self.log.add_listener(arrived.set)
        try:
            async with asyncio.timeout(limit_s):
                while (found := read_slice(self.log, offset, 1, read_committed=False)) is None:
                    arrived.clear()
                    await arrived.wait()
        finally:
            remove()
        return found.covered_end

    async def read_slowly(self, offset: int) -> None:
        """A group that reads a batch in a second."""
        remove = self.log.add_listener(lambda: None)
        try:
            while True:
                offset = await self.read(offset, 60.0)
                await asyncio.sleep(1)
        finally:
            remove()


def run(body: Callable[[Bench], Awaitable[None]], *, batches: int) -> None:
    async def test() -> None:
        broker = StoppingBroker()
        await create_topic(broker, AT.topic, partitions=1, replicas=1, configs={})
        bench = Bench(broker)
        await bench.append(batches)
        await bench.log.open()
        bench.fetcher.add(bench.log)
        bench.fetcher.start()
        try:
            await body(bench)
        finally:
            await bench.fetcher.stop()

    loop = VirtualLoop(time_limit=1_000.0)
    loop.run(test())
    assert loop.problems == []


@pytest.mark.parametrize("how", ["nothing", "error", "format v1"])
def test_an_offset_that_cannot_be_fetched_stops_only_its_readers(how: str) -> None:
    async def body(bench: Bench) -> None:
        bench.broker.stopped_below, bench.broker.how = 10, how
        stopped = asyncio.ensure_future(bench.read(0, 900.0))
        await asyncio.sleep(1)
        for end in (21, 22, 23):
            await bench.append()
            assert await bench.read(end - 1, SOON_S) == end
            await asyncio.sleep(2)
        assert await bench.read(15, SOON_S) == 16
        began = len(bench.broker.fetches)
        await asyncio.sleep(60)
        retries = bench.broker.fetches[began:].count(0)
        assert 60_000 // STALL_BACKOFF_MAX_MS - 2 <= retries <= 60_000 // STALL_BACKOFF_MAX_MS + 1
        assert [text for text in bench.problems.texts() if "offset 0 cannot be read" in text] or how == "nothing"
        bench.broker.stopped_below = 0
        async with asyncio.timeout(STALL_BACKOFF_MAX_MS / 1000 + SOON_S):
            assert await stopped == 1
        await asyncio.sleep(SOON_S)
        assert not bench.problems.texts()

    run(body, batches=20)


@pytest.mark.parametrize("how", ["nothing", "error", "format v1"])
def test_an_offset_that_no_group_wants_any_more_is_not_fetched_again(how: str) -> None:
    async def body(bench: Bench) -> None:
        bench.broker.stopped_below, bench.broker.how = 10, how
        with pytest.raises(TimeoutError):
            await bench.read(0, 5.0)
        remove = bench.log.add_listener(lambda: None)  # another group, which waits at the end
        await asyncio.sleep((2 * STALL_BACKOFF_MAX_MS + STALL_KEPT_MS) / 1000 + 1)
        assert not bench.problems.texts()
        assert 0 in bench.broker.fetches
        bench.broker.fetches.clear()
        await asyncio.sleep(30)
        assert set(bench.broker.fetches) == {20}
        remove()

    run(body, batches=20)


def test_a_batch_of_an_old_format_at_the_end_of_the_log_does_not_hide_what_follows() -> None:
    async def body(bench: Bench) -> None:
        bench.log.add_listener(lambda: None)
        bench.broker.stopped_below, bench.broker.how = 21, "format v1"
        await bench.append()
        await asyncio.sleep(1)
        await bench.append()
        assert await bench.read(21, SOON_S) == 22

    run(body, batches=20)


def test_what_is_buffered_for_a_slow_group_is_not_fetched_again_for_new_records() -> None:
    async def body(bench: Bench) -> None:
        slow = asyncio.ensure_future(bench.read_slowly(0))
        await asyncio.sleep(5)
        bench.broker.fetches.clear()
        for _ in range(600):
            await bench.append()
            await asyncio.sleep(0.05)
        assert bench.broker.fetches == []
        slow.cancel()

    run(body, batches=2_000)


def test_an_offset_that_cannot_be_fetched_ahead_of_a_busy_reader_leaves_it_what_is_buffered() -> None:
    async def body(bench: Bench) -> None:
        bench.broker.stopped_from, bench.broker.stopped_below, bench.broker.how = 300, 2_000, "error"
        remove = bench.log.add_listener(lambda: None)  # the reader, which stays busy with its last records
        offset = 0
        while offset < 250:
            offset = await bench.read(offset, SOON_S)
        await asyncio.sleep(1)
        assert any(300 <= each < 2_000 for each in bench.broker.fetches), "the offset ahead was not tried"
        bench.broker.fetches.clear()
        for _ in range(160):
            await bench.append(5)
            await asyncio.sleep(0.05)
        assert len(bench.broker.fetches) <= 2 * 8_000 // TAIL_PAUSE_MS, "the end of the log was fetched at full rate"
        began = len(bench.broker.fetches)
        assert await bench.read(offset, SOON_S) == offset + 1
        assert [each for each in bench.broker.fetches[began:] if each < 300] == [], "it was not buffered any more"
        remove()

    run(body, batches=2_000)


def test_only_the_first_partition_of_an_answer_without_records_is_given_up() -> None:
    """The broker may have charged the answer's limit with records that it then left out."""

    async def body(bench: Bench) -> None:
        bench.broker.stopped_below, bench.broker.how = 10, "nothing"
        await create_topic(bench.broker, "other", partitions=1, replicas=1, configs={})
        other = PartitionLog(bench.broker, UpstreamPartitionName("other", 0))
        await other.append(build_batch([bytes(BATCH_BYTES)]))
        log = bench.new_log(other)
        await log.open()
        bench.fetcher.add(log)
        stopped = [each.add_listener(lambda: None) for each in (bench.log, log)]
        for each in (bench.log, log):
            each.read(0, 1)
        while not bench.broker.fetches:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert [each.is_stalled for each in (bench.log, log)].count(True) == 1
        for remove in stopped:
            remove()

    run(body, batches=20)
