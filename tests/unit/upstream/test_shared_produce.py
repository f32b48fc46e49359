"""Appends of several partitions in one request, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kshare_core.errors import ErrorCode
from kshare_upstream.partition_log import OutcomeUnknown, PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, UpstreamPartitionName
from kshare_upstream.shared_produce import REQUESTS_UNDER_WAY, SharedProduce
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.messages import Request
from kshare_wire.record_writing import BatchWriter
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream

PARTITIONS = 16


class SlowUpstream(MemoryUpstream):
    """A Produce takes a second; `requests` has the partitions of each."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[list[int]] = []

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        if isinstance(request, ProduceRequest):
            self.requests.append([each.index for topic in request.topic_data for each in topic.partition_data])
            await asyncio.sleep(1)
        return await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)


def run(body: Callable[[SlowUpstream, list[PartitionLog]], Awaitable[None]]) -> None:
    async def with_logs() -> None:
        upstream = SlowUpstream()
        await create_topic(upstream, "state", partitions=PARTITIONS, replicas=1, configs={})
        produce = SharedProduce(upstream, timeout_ms=1_000)
        names = [UpstreamPartitionName("state", number) for number in range(PARTITIONS)]
        await body(upstream, [PartitionLog(upstream, at, deadline_ms=5_000, produce=produce) for at in names])

    loop = VirtualLoop()
    loop.run(with_logs())
    assert loop.problems == []


def batch(value: bytes = b"value") -> bytes:
    writer = BatchWriter(1_000)
    writer.append(0, b"key", value, ())
    return writer.build()


def test_appends_of_one_turn_share_a_request() -> None:
    async def body(upstream: SlowUpstream, logs: list[PartitionLog]) -> None:
        await asyncio.gather(*[log.append(batch()) for log in logs])
        assert upstream.requests == [list(range(PARTITIONS))]

    run(body)


def test_what_comes_while_all_connections_are_busy_shares_the_next_request() -> None:
    async def body(upstream: SlowUpstream, logs: list[PartitionLog]) -> None:
        tasks = []
        for log in logs:
            tasks.append(asyncio.create_task(log.append(batch())))
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        first = [[number] for number in range(REQUESTS_UNDER_WAY)]
        assert upstream.requests == [*first, list(range(REQUESTS_UNDER_WAY, PARTITIONS))]

    run(body)


def test_batches_of_one_partition_stay_in_order() -> None:
    async def body(upstream: SlowUpstream, logs: list[PartitionLog]) -> None:
        offsets = await asyncio.gather(*[logs[0].append(batch()) for _ in range(3)])
        assert offsets == [0, 1, 2]
        assert upstream.requests == [[0], [0], [0]]

    run(body)


def test_what_a_broker_asks_to_repeat_shares_a_request_again() -> None:
    async def body(upstream: SlowUpstream, logs: list[PartitionLog]) -> None:
        upstream.flaws.errors[ProduceRequest] = [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert await asyncio.gather(*[log.append(batch()) for log in logs[:3]]) == [0, 0, 0]
        assert upstream.requests == [[0, 1, 2], [0, 1, 2]]

    run(body)


def test_a_lost_connection_is_told_to_all_and_each_repeats_its_batch() -> None:
    async def body(upstream: SlowUpstream, logs: list[PartitionLog]) -> None:
        upstream.flaws.losing = [ProduceRequest] * 50
        outcomes = await asyncio.gather(*[log.append(batch()) for log in logs[:3]], return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 3

    run(body)


def test_an_append_that_was_given_up_before_it_was_sent_is_not_sent() -> None:
    async def body(upstream: SlowUpstream, logs: list[PartitionLog]) -> None:
        produce = SharedProduce(upstream, timeout_ms=1_000)
        given_up = produce.append(1, logs[0].at, batch())
        other = produce.append(1, logs[1].at, batch())
        given_up.cancel()
        await other
        assert upstream.requests == [[1]]
        with pytest.raises(asyncio.CancelledError):
            await given_up

    run(body)
