"""Requests that wait for a turn when their client says that it is done, or is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_gateway.connections.connection import REQUESTS_UNDER_WAY_LIMIT
from kshare_gateway.connections.turns import REQUESTS_PER_TURN
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayClient, GatewayHarness, build, request_frame, run

NEGATIVE_LENGTH = b"\xff\xff\xff\xfb"


def behind_others(harness: GatewayHarness) -> GatewayClient:
    """A client whose requests wait: others have had this turn of the loop, and want many more."""
    for _ in range(REQUESTS_PER_TURN):
        other = harness.client()
        for _ in range(20):
            other.send(ApiKey.API_VERSIONS, 0)
    return harness.client()


def test_a_half_closed_connection_is_answered_and_then_closed() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = behind_others(harness)
        answer = client.send(ApiKey.API_VERSIONS, 0)
        assert client.connection.waits_for_turn
        assert client.connection.eof_received(), "the transport stays open"
        assert not client.transport.is_closed
        assert (await asyncio.wait_for(answer, 5)).error_code == 0
        assert client.transport.is_closed

    run(scenario)


def test_a_connection_without_a_waiting_request_ends_at_once() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        client.send(ApiKey.API_VERSIONS, 0)
        assert not client.connection.eof_received()

    run(scenario)


PRODUCES = [1, 2, 3, 5, 100]
"""More than a connection in a crowd has under way, and more than any has."""


def produce_frame(partitions: int = 1) -> bytes:
    topics = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(80)}] * partitions}]
    return request_frame(ApiKey.PRODUCE, 9, 1, build(ApiKey.PRODUCE, 9, {"acks": 0, "topic_data": topics}))


class Stored:
    """The leader's Produces; `release` answers those that wait."""

    def __init__(self, harness: GatewayHarness, wanted: int) -> None:
        self.count = 0
        self.came = asyncio.Event()
        self.release = asyncio.Event()
        self._wanted = wanted
        harness.leaders[1].answers["Produce"] = self._store

    async def _store(self, request: Any, payload: memoryview) -> Any:
        self.count += 1
        if self.count == self._wanted:
            self.came.set()
        await self.release.wait()
        stored = [leader_pb2.ProduceResponse.Partition(topic_id=p.topic_id, partition=0) for p in request.partitions]
        return leader_pb2.ProduceResponse(partitions=stored)


@pytest.mark.parametrize("ends", ["closed", "lost"])
@pytest.mark.parametrize("produces", PRODUCES)
@pytest.mark.parametrize("is_crowded", [False, True])
def test_produces_that_were_received_whole_are_carried_out_although_the_client_has_gone(
    ends: str, produces: int, is_crowded: bool
) -> None:
    """With acks = 0 a client may close its connection right after them."""

    async def scenario(harness: GatewayHarness) -> None:
        whole = produces if ends == "closed" else min(produces, REQUESTS_UNDER_WAY_LIMIT)
        stored = Stored(harness, whole)
        client = behind_others(harness) if is_crowded else harness.client()
        client.connection.data_received(produce_frame() * produces + produce_frame()[:-1])
        if ends == "closed":
            stored.release.set()
            if not client.connection.eof_received():
                client.lose()
        else:
            client.lose()
        await asyncio.wait_for(stored.came.wait(), 5)
        stored.release.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert stored.count == whole
        assert client.transport.is_closed

    run(scenario)


def test_a_long_produce_is_carried_out_although_the_client_has_gone() -> None:
    """It has so many partitions that it is decoded in slices, the first of them before the client goes."""

    async def scenario(harness: GatewayHarness) -> None:
        stored = Stored(harness, 1)
        client = harness.client()
        client.connection.data_received(produce_frame(partitions=4 * SLICE_ELEMENTS))
        client.lose()
        await asyncio.wait_for(stored.came.wait(), 5)
        stored.release.set()

    run(scenario)


def test_long_requests_are_dropped_once_their_client_has_sent_the_end_of_its_data() -> None:
    """One under way stops at its next part, those behind it never start; a Produce among them is carried out."""
    partitions = [{"partition_index": number, "committed_offset": 1} for number in range(4 * SLICE_ELEMENTS)]
    values = {"group_id": "group", "topics": [{"name": "orders", "partitions": partitions}]}
    commit = request_frame(ApiKey.OFFSET_COMMIT, 8, 1, build(ApiKey.OFFSET_COMMIT, 8, values))

    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        produce = Stored(harness, 1)
        produce.release.set()
        commits = asyncio.Event()
        go_on = asyncio.Event()

        async def committed(request: Any, payload: memoryview) -> Any:
            commits.set()
            await go_on.wait()
            results = [coordinator_pb2.OffsetCommitResponse.Result()] * len(request.offsets)
            return coordinator_pb2.OffsetCommitResponse(results=results)

        harness.catalog.answers["OffsetCommit"] = committed
        client.connection.data_received(commit * 2 + produce_frame())
        await asyncio.wait_for(commits.wait(), 5)
        assert client.connection.eof_received(), "the Produce waits"
        go_on.set()
        await asyncio.wait_for(produce.came.wait(), 5)
        await harness.settle()
        assert client.transport.is_closed
        assert len(harness.catalog.requests("OffsetCommit")) == 1

    run(scenario)


def test_nothing_is_carried_out_after_a_malformed_request() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        stored = Stored(harness, 1)
        client = harness.client()
        client.connection.data_received(NEGATIVE_LENGTH + produce_frame())
        assert client.transport.is_closed
        client.lose()
        for _ in range(100):
            await asyncio.sleep(0)
        assert stored.count == 0

    run(scenario)


@pytest.mark.parametrize("ends", ["closed", "lost"])
def test_a_call_that_waits_for_other_members_is_not_awaited_after_its_client_has_gone(ends: str) -> None:
    """It would keep the call's place in the channel until the coordinator answers, after minutes."""
    protocols = [{"name": "range", "metadata": b"\0\1"}]
    values = {"group_id": "group", "session_timeout": 7_000, "protocol_type": "consumer", "protocols": protocols}

    def joining() -> int:
        return sum(task.get_name() == "JoinGroup" for task in asyncio.all_tasks())

    async def scenario(harness: GatewayHarness) -> None:
        answered = asyncio.Event()

        async def joined(request: Any, payload: memoryview) -> Any:
            await all_joined.wait()
            answered.set()
            return coordinator_pb2.JoinGroupResponse()

        all_joined = asyncio.Event()
        harness.catalog.answers["JoinGroup"] = joined
        client = harness.client()
        client.send(ApiKey.JOIN_GROUP, 3, rebalance_timeout=300_000, **values)
        await harness.settle()
        assert len(harness.catalog.requests("JoinGroup")) == joining() == 1
        if ends == "closed":
            assert not client.connection.eof_received()
        client.lose()
        await harness.settle()
        assert joining() == 0
        all_joined.set()
        await asyncio.wait_for(answered.wait(), 5)  # the coordinator's call goes on

    run(scenario)
