"""The stop of a gateway in virtual time: each connection is closed once its requests are answered; waits are ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kshare_gateway.node import SHORT_REQUESTS_MS
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import MEMBER, TOPIC_ID, GatewayClient, GatewayHarness, topic
from support.simulation.loop import VirtualLoop

GRACE_MS = 5_000
WAIT_MS = 60_000
SOON_S = SHORT_REQUESTS_MS / 1000 + 0.2


class Waits:
    """Roles where fetches and joins wait, until a leader is told to end them."""

    def __init__(self, harness: GatewayHarness) -> None:
        self.ended = asyncio.Event()
        leader = harness.leaders[1]
        leader.answers |= {"Fetch": self._fetch, "ShareFetch": self._share_fetch, "ReleaseShareSession": self._release}
        harness.catalog.answers["JoinGroup"] = self._join

    async def _fetch(self, request: Any, payload: memoryview) -> Any:
        if request.partitions:
            await self.ended.wait()
        self.ended.set()  # the next Fetch of a connection ends the wait of the one before it
        return leader_pb2.FetchResponse()

    async def _share_fetch(self, request: Any, payload: memoryview) -> Any:
        await self.ended.wait()
        return leader_pb2.ShareFetchResponse()

    def _release(self, request: Any, payload: memoryview) -> Any:
        self.ended.set()
        return leader_pb2.ReleaseShareSessionResponse()

    async def _join(self, request: Any, payload: memoryview) -> Any:
        await asyncio.Event().wait()


def fetch(client: GatewayClient) -> asyncio.Future[Any]:
    topics = [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, "partition_max_bytes": 10}]}]
    return client.send(ApiKey.FETCH, 13, max_wait=WAIT_MS, min_bytes=1, session_epoch=-1, topics=topics)


def share_fetch(client: GatewayClient) -> asyncio.Future[Any]:
    values = {"group_id": "workers", "member_id": MEMBER, "share_session_epoch": 0, "max_wait": WAIT_MS}
    topics = [{"topic_id": TOPIC_ID, "partitions": [{"partition_index": 0}]}]
    return client.send(
        ApiKey.SHARE_FETCH, 1, **values, min_bytes=1, max_bytes=1000, max_records=10, batch_size=10, topics=topics
    )


def join_group(client: GatewayClient) -> asyncio.Future[Any]:
    values = {"group_id": "group", "session_timeout": WAIT_MS, "rebalance_timeout": WAIT_MS}
    protocols = [{"name": "range", "metadata": b"\0\1"}]
    return client.send(ApiKey.JOIN_GROUP, 3, **values, protocol_type="consumer", protocols=protocols)


def in_virtual_time(scenario: Callable[[GatewayHarness], Awaitable[None]]) -> None:
    async def whole() -> None:
        harness = GatewayHarness()
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1])
        async with harness:
            await scenario(harness)

    VirtualLoop().run(whole())


@pytest.mark.parametrize("wait", [fetch, share_fetch, join_group])
def test_a_request_that_waits_delays_no_connection(wait: Callable[[GatewayClient], asyncio.Future[Any]]) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        Waits(harness)
        idle, waiting = harness.client(), harness.client()
        answer = wait(waiting)
        await asyncio.sleep(1)
        assert not answer.done()
        stopping = asyncio.ensure_future(harness.node.stop(GRACE_MS))
        await harness.settle()
        assert idle.transport.is_closed and not waiting.transport.is_closed
        await asyncio.sleep(SOON_S)
        assert waiting.transport.is_closed and stopping.done()
        assert answer.done() == (wait is not join_group)
        if wait is fetch:
            (partition,) = answer.result().responses[0].partitions
            assert not partition.error_code and not partition.records, "an application may be told of an error"

    in_virtual_time(scenario)


def test_a_connection_is_closed_with_its_last_response() -> None:
    """Those behind a Fetch that waits are sent as well."""

    async def scenario(harness: GatewayHarness) -> None:
        Waits(harness)
        stored = asyncio.Event()

        async def committed(request: Any, payload: memoryview) -> Any:
            await stored.wait()
            return coordinator_pb2.OffsetCommitResponse(results=[coordinator_pb2.OffsetCommitResponse.Result()])

        harness.catalog.answers["OffsetCommit"] = committed
        offsets = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        client = harness.client()
        answers = [fetch(client), client.send(ApiKey.OFFSET_COMMIT, 8, group_id="group", topics=offsets)]
        await asyncio.sleep(1)
        stopping = asyncio.ensure_future(harness.node.stop(GRACE_MS))
        await asyncio.sleep(SOON_S)
        assert client.answered == [1] and not client.transport.is_closed
        stored.set()
        await asyncio.wait_for(asyncio.gather(*answers), 1)
        await harness.settle()
        assert client.transport.is_closed and stopping.done()

    in_virtual_time(scenario)
