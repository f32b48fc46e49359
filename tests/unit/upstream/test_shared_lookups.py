"""Look-ups of several partitions in one request, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kshare_upstream.connection import ConnectionLost
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.shared_lookups import REQUEST_PARTITIONS_LIMIT, SharedLookups
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_offsets import ListOffsetsRequest
from kshare_wire.generated.requests.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kshare_wire.messages import Request
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import NODE_ID, MemoryUpstream
from support.wire.record_building import build_batch

TOPIC = "orders"
PARTITIONS = 8
ALL = list(range(PARTITIONS))


class SlowUpstream(MemoryUpstream):
    """A look-up takes a second; `asked` has the partitions of each, with the value that is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[int, int]] = []
        self.leaves_out = -1
        """A partition that its answers do not have."""

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        if isinstance(request, ListOffsetsRequest):
            (topic,) = request.topics
            self.asked.append({each.partition_index: each.timestamp for each in topic.partitions})
            assert len(self.asked[-1]) == len(topic.partitions), "a partition is named once"
            topic.partitions = [each for each in topic.partitions if each.partition_index != self.leaves_out]
            await asyncio.sleep(1)
        elif isinstance(request, OffsetForLeaderEpochRequest):
            (of_epochs,) = request.topics
            self.asked.append({each.partition: each.leader_epoch for each in of_epochs.partitions})
            assert len(self.asked[-1]) == len(of_epochs.partitions), "a partition is named once"
            await asyncio.sleep(1)
        return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)


class Bench:
    def __init__(self, partitions: int) -> None:
        self.upstream = SlowUpstream()
        self.lookups = SharedLookups(self.upstream)
        self.names = [UpstreamPartitionName(TOPIC, number) for number in range(partitions)]
        self.logs = [PartitionLog(self.upstream, at, deadline_ms=5_000, lookups=self.lookups) for at in self.names]


def run(body: Callable[[Bench], Awaitable[None]], *, partitions: int = PARTITIONS) -> None:
    async def with_logs() -> None:
        bench = Bench(partitions)
        await create_topic(bench.upstream, TOPIC, partitions=partitions, replicas=1, configs={})
        await body(bench)

    loop = VirtualLoop()
    loop.run(with_logs())
    assert loop.problems == []


def test_look_ups_of_one_turn_share_a_request_and_each_has_its_answer() -> None:
    async def body(bench: Bench) -> None:
        for number in ALL:
            for _ in range(number):
                await bench.logs[number].append(build_batch([b"value"]))
        assert await asyncio.gather(*[log.offset_at(LATEST_TIMESTAMP) for log in bench.logs]) == ALL
        assert bench.upstream.asked == [dict.fromkeys(ALL, LATEST_TIMESTAMP)]

    run(body)


def test_what_comes_while_a_request_is_under_way_shares_the_next_one() -> None:
    async def body(bench: Bench) -> None:
        tasks = []
        for log in bench.logs:
            tasks.append(asyncio.create_task(log.offset_at(LATEST_TIMESTAMP)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        assert [list(asked) for asked in bench.upstream.asked] == [[0], ALL[1:]]

    run(body)


def test_an_answer_is_not_older_than_its_call() -> None:
    async def body(bench: Bench) -> None:
        log = bench.logs[0]
        before = asyncio.create_task(log.offset_at(LATEST_TIMESTAMP))
        await asyncio.sleep(0.5)
        await log.append(build_batch([b"value"]))
        after = asyncio.create_task(log.offset_at(LATEST_TIMESTAMP))
        await asyncio.gather(before, after)
        assert after.result() == 1
        assert len(bench.upstream.asked) == 2

    run(body)


def test_other_kinds_of_look_ups_are_asked_at_the_same_time() -> None:
    async def body(bench: Bench) -> None:
        log, loop = bench.logs[0], asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.gather(
            log.offset_at(EARLIEST_TIMESTAMP),
            log.offset_at(LATEST_TIMESTAMP),
            log.offset_at(LATEST_TIMESTAMP, read_committed=True),
            log.end_of_epoch(0),
        )
        assert loop.time() - began_s == pytest.approx(1)
        assert len(bench.upstream.asked) == 4

    run(body)


def test_two_values_of_one_partition_are_two_requests() -> None:
    async def body(bench: Bench) -> None:
        bench.upstream.elect(bench.names[0], 3)
        epochs = await asyncio.gather(*[bench.logs[0].end_of_epoch(epoch) for epoch in (3, 4, 3)])
        assert epochs == [(3, 0), (-1, -1), (3, 0)]
        assert bench.upstream.asked == [{0: 3}, {0: 4}]

    run(body)


def test_a_request_has_a_limit() -> None:
    async def body(bench: Bench) -> None:
        await asyncio.gather(*[log.offset_at(LATEST_TIMESTAMP) for log in bench.logs])
        assert [len(asked) for asked in bench.upstream.asked] == [REQUEST_PARTITIONS_LIMIT, 5]

    run(body, partitions=REQUEST_PARTITIONS_LIMIT + 5)


def test_a_lost_connection_is_told_to_all_and_each_repeats_its_look_up() -> None:
    async def body(bench: Bench) -> None:
        bench.upstream.flaws.losing = [ListOffsetsRequest]
        assert await asyncio.gather(*[log.offset_at(LATEST_TIMESTAMP) for log in bench.logs]) == [0] * PARTITIONS
        assert [sorted(asked) for asked in bench.upstream.asked] == [ALL, ALL]

    run(body)


def test_a_partition_that_an_answer_leaves_out_fails_alone() -> None:
    async def body(bench: Bench) -> None:
        bench.upstream.leaves_out = 3
        asking = [
            bench.lookups.offset_at(NODE_ID, at, LATEST_TIMESTAMP, read_committed=False) for at in bench.names[2:5]
        ]
        second, third, fourth = await asyncio.gather(*asking, return_exceptions=True)
        assert not isinstance(second, BaseException) and not isinstance(fourth, BaseException)
        assert isinstance(third, ConnectionLost) and "orders-3" in str(third)

    run(body)


def test_a_look_up_that_was_given_up_leaves_the_others_theirs() -> None:
    async def body(bench: Bench) -> None:
        given_up = asyncio.create_task(bench.logs[0].offset_at(LATEST_TIMESTAMP))
        other = asyncio.create_task(bench.logs[1].offset_at(LATEST_TIMESTAMP))
        await asyncio.sleep(0.5)
        given_up.cancel()
        assert await other == 0
        before_it_was_sent = asyncio.create_task(bench.logs[2].offset_at(LATEST_TIMESTAMP))
        await asyncio.sleep(0)
        before_it_was_sent.cancel()
        assert await bench.logs[3].offset_at(LATEST_TIMESTAMP) == 0
        assert [list(asked) for asked in bench.upstream.asked] == [[0, 1], [3]]

    run(body)
