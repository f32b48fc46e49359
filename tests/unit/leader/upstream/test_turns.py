"""Many partitions of one broker with more to read than an answer holds: each gets its turn."""

from __future__ import annotations

import asyncio
from collections import Counter

from kshare_core.identifiers import TopicPartition
from kshare_leader.upstream.log_fetcher import FetchLimits, LogFetcher
from kshare_leader.upstream.problems import Problems
from kshare_leader.upstream.upstream_log import UpstreamLog
from kshare_leader.upstream.window import WindowBudget
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.responses.fetch import FetchResponse
from kshare_wire.messages import Request
from kshare_wire.record_batches import read_header
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream
from support.wire.record_building import build_batch

PARTITIONS = 12
BATCHES = 600
BATCH_BYTES = 1_000
LARGE_BYTES = 50_000
LIMITS = FetchLimits(fetch_max_bytes=168_000, max_partition_fetch_bytes=80_000)
"""An answer has room for two partitions at their limits, and a third in part."""
FETCH_S = 0.02


class LimitedBroker(MemoryUpstream):
    """Fills an answer as Kafka does (ReplicaManager.readFromLog).

    Partitions come in the order of the request. Each has at most what is left of the request's limit and of its own;
    only the first one with records may exceed them, with one batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[set[str]] = []
        """The topics with records in each answer."""

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
            await asyncio.sleep(FETCH_S)
            self._limit(request, answer)
        return answer

    def _limit(self, request: FetchRequest, answer: FetchResponse) -> None:
        limits = {topic.topic: topic.partitions[0].partition_max_bytes for topic in request.topics}
        left_bytes, found = request.max_bytes, set[str]()
        for topic in answer.responses:
            records = memoryview(b"".join(topic.partitions[0].records or ()))
            limit = max(0, min(limits[topic.topic], left_bytes))
            if records and (not found or read_header(records).size <= limit):
                found.add(topic.topic)
                records = records[: limit if read_header(records).size <= limit else read_header(records).size]
            else:
                records = records[:0]
            left_bytes -= len(records)
            topic.partitions[0].records = [records]
        self.answers.append(found)


async def read_all(log: UpstreamLog, offsets_read: Counter[str]) -> None:
    """Reads a log as fast as it comes, from its beginning."""
    arrived = asyncio.Event()
    log.add_listener(arrived.set)
    while True:
        if found := log.read(offsets_read[log.at.topic], 64 * 1024):
            offsets_read[log.at.topic] = found[-1].last_offset + 1
            await asyncio.sleep(0.001)
        else:
            arrived.clear()
            await arrived.wait()


async def opened_log(broker: LimitedBroker, fetcher: LogFetcher, topic: str, batch: bytes, count: int) -> UpstreamLog:
    await create_topic(broker, topic, partitions=1, replicas=1, configs={})
    loop, partition = asyncio.get_running_loop(), PartitionLog(broker, UpstreamPartitionName(topic, 0))
    for _ in range(count):
        await partition.append(batch)
    log = UpstreamLog(
        TopicPartition(broker.topic_ids[topic], 0),
        partition,
        window_limit_bytes=LIMITS.fetch_max_bytes,
        now_ms=lambda: int(loop.time() * 1000),
        on_demand=fetcher.demand,
        budget=WindowBudget(1 << 30),
    )
    await log.open()
    fetcher.add(log)
    return log


def offsets_read_at_once(large_topics: int) -> tuple[Counter[str], list[set[str]]]:
    """How far each of PARTITIONS logs was read after the time of 20 Fetches, and which topics the answers had."""
    offsets_read: Counter[str] = Counter()

    async def main() -> None:
        broker = LimitedBroker()

        async def examine(log: UpstreamLog) -> None:
            raise AssertionError(f"nothing is wrong with {log.at}")

        fetcher = LogFetcher(broker, LIMITS, Problems(lambda text: None, lambda: 0), examine)
        small, large = build_batch([bytes(BATCH_BYTES)]), build_batch([bytes(LARGE_BYTES)])
        logs = []
        for number in range(PARTITIONS):
            batch, count = (large, 12) if number >= PARTITIONS - large_topics else (small, BATCHES)
            logs.append(await opened_log(broker, fetcher, f"topic{number}", batch, count))
        fetcher.start()
        reads = [asyncio.ensure_future(read_all(log, offsets_read)) for log in logs]
        await asyncio.sleep(20 * FETCH_S + FETCH_S / 2)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await fetcher.stop()
        answers.extend(broker.answers)

    answers: list[set[str]] = []
    loop = VirtualLoop()
    loop.run(main())
    assert loop.problems == []
    return offsets_read, answers


def test_each_partition_gets_its_turn_while_all_have_more_than_an_answer_holds() -> None:
    offsets_read, answers = offsets_read_at_once(0)
    assert len(offsets_read) == PARTITIONS
    assert max(offsets_read.values()) <= 3 * min(offsets_read.values()), offsets_read
    assert all(len(found) <= 3 for found in answers)


def test_a_batch_that_is_larger_than_the_rest_of_an_answer_gets_its_turn() -> None:
    offsets_read, _ = offsets_read_at_once(2)
    assert min(offsets_read[f"topic{number}"] for number in range(PARTITIONS - 2)) > 0, offsets_read
    assert all(offsets_read[f"topic{PARTITIONS - number}"] > 0 for number in (1, 2)), offsets_read
