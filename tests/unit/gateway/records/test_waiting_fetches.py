"""Fetches that wait at several leaders: a connection has at most one wait at each, and none once it is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC_ID
from kshare_leader.handlers.fetch import FetchHandler
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, GatewayClient, GatewayHarness, run
from support.leader.log.leader_logs import open_logs, topic
from support.wire.record_building import build_batch

BATCH = build_batch([b"value"])


class Leader:
    """The logs of "mixed" and their Fetch handler, with a count of the calls that wait there."""

    def __init__(self) -> None:
        self.logs = open_logs(MemoryDisk().open_store("leader"), topic(OTHER_TOPIC_ID))
        self._handler = FetchHandler(self.logs)
        self.waiting = 0
        self.sent_bytes = 0

    async def append(self, partition: int) -> None:
        await self.logs.append(TopicPartition(OTHER_TOPIC_ID, partition), memoryview(BATCH))

    async def fetch(self, request: leader_pb2.FetchRequest, payload: memoryview) -> Any:
        self.waiting += request.max_wait_ms > 0
        try:
            answer, records = await self._handler(request, payload)
        finally:
            self.waiting -= request.max_wait_ms > 0
        self.sent_bytes += sum(map(len, records))
        return answer, records


def leaders_of(harness: GatewayHarness) -> tuple[Leader, Leader]:
    """Leader 1 has partition 0 of "mixed", leader 2 partition 1."""
    leaders = Leader(), Leader()
    for role, leader in zip(harness.leaders.values(), leaders, strict=True):
        role.answers["Fetch"] = leader.fetch
    return leaders


def mixed(*partitions: tuple[int, int]) -> dict[str, Any]:
    """Partitions of "mixed" and the offsets to fetch from."""
    return {
        "topic_id": OTHER_TOPIC_ID,
        "partitions": [
            {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1_000}
            for partition, offset in partitions
        ],
    }


def fetch(client: GatewayClient, *offsets: int, max_wait_ms: int = 60_000) -> asyncio.Future[Any]:
    """A Fetch of the first partitions of "mixed"."""
    return fetch_topics(client, [mixed(*enumerate(offsets))], max_wait_ms)


def fetch_topics(client: GatewayClient, topics: list[dict[str, Any]], max_wait_ms: int = 60_000) -> asyncio.Future[Any]:
    return client.send(
        ApiKey.FETCH,
        13,
        max_wait=max_wait_ms,
        min_bytes=1,
        max_bytes=1_000_000,
        session_epoch=-1,
        topics=topics,
    )


def test_a_connection_waits_at_most_once_at_each_leader() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        busy, idle = leaders_of(harness)
        client = harness.client()
        for offset in range(20):
            fetched = fetch(client, offset, 0)
            await harness.settle()
            assert (busy.waiting, idle.waiting) == (1, 1)
            await busy.append(0)
            answer = await asyncio.wait_for(fetched, 5)
            assert [len(part.records) for part in answer.responses[0].partitions] == [len(BATCH), 0]
        await idle.append(1)
        await harness.settle()
        assert (idle.waiting, idle.sent_bytes) == (0, len(BATCH)), "only the wait of the last Fetch was left"
        answer = await asyncio.wait_for(fetch(client, 20, 0), 5)
        assert [len(part.records) for part in answer.responses[0].partitions] == [0, len(BATCH)]

    run(scenario)


def test_a_fetch_that_does_not_wait_ends_the_waits_of_the_one_before() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        busy, idle = leaders_of(harness)
        client = harness.client()
        fetched = fetch(client, 0, 0)
        await harness.settle()
        await busy.append(0)
        await asyncio.wait_for(fetched, 5)
        await asyncio.wait_for(fetch(client, 1, 0, max_wait_ms=0), 5)
        await harness.settle()
        assert (busy.waiting, idle.waiting) == (0, 0)

    run(scenario)


def test_waits_of_other_connections_go_on() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        busy, idle = leaders_of(harness)
        one, other = harness.client(), harness.client()
        fetched = [fetch(one, 0, 0), fetch(other, 0, 0)]
        await harness.settle()
        assert (busy.waiting, idle.waiting) == (2, 2)
        one.lose()
        await harness.settle()
        assert (busy.waiting, idle.waiting) == (1, 1)
        await idle.append(1)
        answer = await asyncio.wait_for(fetched[1], 5)
        assert [len(part.records) for part in answer.responses[0].partitions] == [0, len(BATCH)]

    run(scenario)


def test_a_closed_connection_waits_at_no_leader() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        leaders = leaders_of(harness)
        for offsets in ((0,), (0, 0)):
            client = harness.client()
            fetch(client, *offsets)
            await harness.settle()
            assert sum(leader.waiting for leader in leaders) == len(offsets)
            client.lose()
            await harness.settle()
            assert [leader.waiting for leader in leaders] == [0, 0]

    run(scenario)


def test_a_connection_that_closes_before_its_fetch_waits_does_not_wait() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        leaders = leaders_of(harness)
        may_answer = asyncio.Event()

        async def slow(request: leader_pb2.FetchRequest, payload: memoryview) -> Any:
            await may_answer.wait()
            return await leaders[0].fetch(request, payload)

        harness.leaders[1].answers["Fetch"] = slow
        client = harness.client()
        fetch(client, 0, 0)
        await harness.settle()
        client.lose()
        may_answer.set()
        await harness.settle()
        assert [leader.waiting for leader in leaders] == [0, 0]

    run(scenario)


@pytest.mark.parametrize("partitions", [(0,), (0, 1)], ids=["one leader", "two leaders"])
def test_partitions_that_the_gateway_refuses_do_not_end_the_wait_of_others(partitions: tuple[int, ...]) -> None:
    """As in Kafka (KafkaApis.handleFetchRequest), which reads and waits for the others alone."""

    async def scenario(harness: GatewayHarness) -> None:
        idle, _ = leaders_of(harness)
        unknown = [{"topic_id": bytes(15) + b"x", "partitions": [{"partition": 0}]}]
        refused = [{"topic_id": CONSUMER_OFFSETS_TOPIC_ID, "partitions": [{"partition": 0}]}]
        topics = [*unknown, *refused, mixed(*[(partition, 0) for partition in (*partitions, 9)])]
        fetched = fetch_topics(harness.client(), topics)
        await harness.settle()
        assert not fetched.done()
        await idle.append(0)
        answer = await asyncio.wait_for(fetched, 5)
        codes = [[int(part.error_code) for part in topic.partitions] for topic in answer.responses]
        assert codes == [
            [ErrorCode.UNKNOWN_TOPIC_ID],
            [ErrorCode.TOPIC_AUTHORIZATION_FAILED],
            [*[ErrorCode.NONE] * len(partitions), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        ]

    run(scenario)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_partition_without_a_leader_ends_the_wait(is_alone: bool) -> None:
    """As in Kafka, whose ReplicaManager cannot read it."""

    async def scenario(harness: GatewayHarness) -> None:
        leaders_of(harness)
        del harness.catalog.leaders[2]
        harness.catalog.change()
        await harness.settle()
        topics = [mixed((1, 0)) if is_alone else mixed((0, 0), (1, 0))]
        answer = await asyncio.wait_for(fetch_topics(harness.client(), topics), 5)
        assert int(answer.responses[0].partitions[-1].error_code) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)


def test_a_fetch_of_refused_partitions_alone_is_answered_at_once() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        topics = [{"topic_id": bytes(15) + b"x", "partitions": [{"partition": 0}]}, mixed((9, 0))]
        answer = await asyncio.wait_for(fetch_topics(harness.client(), topics), 5)
        codes = [int(topic.partitions[0].error_code) for topic in answer.responses]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    run(scenario)
