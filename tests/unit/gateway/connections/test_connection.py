"""Connections: order, limits, hostile bytes, idle time."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.security.bounded_lines import LINES_PER_SECOND
from kshare_gateway.connections.connection import REQUESTS_UNDER_WAY_LIMIT
from kshare_gateway.dispatch import SERVED_APIS
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayClient, GatewayHarness, build, request_frame, run
from support.simulation.loop import VirtualLoop


def list_groups_when(event: asyncio.Event) -> Any:
    async def answer(request: Any, payload: memoryview) -> Any:
        await event.wait()
        return coordinator_pb2.ListGroupsResponse()

    return answer


def heartbeat_when(event: asyncio.Event) -> Any:
    async def answer(request: Any, payload: memoryview) -> Any:
        await event.wait()
        return coordinator_pb2.ShareGroupHeartbeatResponse()

    return answer


NOT_SERVED = {
    *(ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.UPDATE_FEATURES),
    *(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY),
    # Of brokers and controllers among themselves, and of their administration.
    *(ApiKey.ALTER_PARTITION, ApiKey.ENVELOPE, ApiKey.ALLOCATE_PRODUCER_IDS),
    *(ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH_SNAPSHOT),
    *(ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.UNREGISTER_BROKER),
    *(ApiKey.CONTROLLER_REGISTRATION, ApiKey.ASSIGN_REPLICAS_TO_DIRS),
    *(ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UPDATE_RAFT_VOTER),
}


def test_every_other_api_has_a_handler() -> None:
    assert set(ApiKey) - NOT_SERVED <= SERVED_APIS.keys()


def test_answers_come_in_the_order_of_requests_and_other_connections_do_not_wait() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        event = asyncio.Event()
        harness.catalog.answers["ListGroups"] = list_groups_when(event)
        slow, other = harness.client(), harness.client()
        first = slow.send(ApiKey.LIST_GROUPS, 5)
        second = slow.send(ApiKey.METADATA, 12, topics=())
        third = slow.send(ApiKey.API_VERSIONS, 3)
        await other.ask(ApiKey.METADATA, 12, topics=())
        await harness.settle()
        assert slow.answered == [] and not second.done()
        event.set()
        await asyncio.wait_for(asyncio.gather(first, second, third), 5)
        assert slow.answered == [1, 2, 3]

    run(scenario)


def test_answers_that_are_done_together_are_written_together() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        event = asyncio.Event()
        harness.catalog.answers["ListGroups"] = list_groups_when(event)
        client = harness.client()
        await client.ask(ApiKey.API_VERSIONS, 3)
        answers = [client.send(ApiKey.LIST_GROUPS, 5), *(client.send(ApiKey.API_VERSIONS, 3) for _ in range(9))]
        await harness.settle()
        before = client.transport.writes
        event.set()
        await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert client.transport.writes - before == 1 and client.answered == list(range(1, 12))

    run(scenario)


@pytest.mark.parametrize("turns", range(30))
@pytest.mark.parametrize("is_half_closed", [False, True])
def test_what_is_done_is_written_before_the_end(turns: int, is_half_closed: bool) -> None:
    """In each turn of the loop, also in that in which answers are done and wait for its end."""

    async def scenario(harness: GatewayHarness) -> None:
        event = asyncio.Event()
        harness.catalog.answers["ListGroups"] = list_groups_when(event)
        client = harness.client()
        client.send(ApiKey.LIST_GROUPS, 5)
        client.send(ApiKey.API_VERSIONS, 3)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        is_done = (int(ApiKey.LIST_GROUPS), 5) in harness.requests_done
        if is_half_closed:
            assert not client.connection.eof_received()
        else:
            client.connection.close()
        assert client.answered == ([1, 2] if is_done else [])

    run(scenario)


def test_requests_under_way_are_limited_and_reading_stops() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        event = asyncio.Event()
        harness.catalog.answers["ShareGroupHeartbeat"] = heartbeat_when(event)
        client = harness.client()
        futures = [
            client.send(ApiKey.SHARE_GROUP_HEARTBEAT, 1, group_id="g", member_id="m")
            for _ in range(REQUESTS_UNDER_WAY_LIMIT + 10)
        ]
        await harness.settle()
        assert len(harness.catalog.requests("ShareGroupHeartbeat")) == REQUESTS_UNDER_WAY_LIMIT
        assert not client.transport.reading
        event.set()
        await asyncio.wait_for(asyncio.gather(*futures), 5)
        assert client.transport.reading and client.answered == list(range(1, len(futures) + 1))

    run(scenario)


def test_a_client_that_does_not_read_is_not_read() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        client.connection.pause_writing()
        assert not client.transport.reading
        future = client.send(ApiKey.API_VERSIONS, 3)
        await harness.settle()
        assert not future.done()
        client.connection.resume_writing()
        assert future.done() and client.transport.reading

    run(scenario)


def test_one_fetch_at_a_time() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        event = asyncio.Event()

        async def fetch(request: Any, payload: memoryview) -> Any:
            await event.wait()
            return leader_pb2.FetchResponse()

        harness.leaders[1].answers["Fetch"] = fetch
        client = harness.client()
        topics = [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, "partition_max_bytes": 10}]}]
        futures = [client.send(ApiKey.FETCH, 13, max_wait=100, session_epoch=-1, topics=topics) for _ in range(2)]
        await harness.settle()
        assert len(harness.leaders[1].requests("Fetch")) == 1 and not client.transport.reading
        event.set()
        await asyncio.wait_for(asyncio.gather(*futures), 5)
        assert len(harness.leaders[1].requests("Fetch")) == 2 and client.transport.reading

    run(scenario)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(struct.pack(">i", 2_000_000), "socket.request.max.bytes", id="longer than allowed"),
        pytest.param(struct.pack(">i", -1), "-1 bytes", id="negative length"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", "socket.request.max.bytes", id="HTTP"),
        pytest.param(frame(struct.pack(">hhih", 999, 0, 1, -1)), "API 999 version 0", id="unknown API"),
        pytest.param(frame(struct.pack(">hhih", 78, 9, 1, -1)), "API 78 version 9", id="unknown version"),
        pytest.param(frame(struct.pack(">hhih", 3, 1, 1, 500)), "client id of 500", id="bad header"),
        pytest.param(frame(struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1)), "2147483647 elements", id="huge array"),
        pytest.param(frame(struct.pack(">hhih", 3, 1, 1, -1) + b"\0"), "ends in the middle", id="truncated"),
    ],
)
def test_hostile_bytes_close_their_connection_and_no_other(
    data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        hostile, other = harness.client(), harness.client()
        with caplog.at_level(logging.WARNING, "kshare_gateway"):
            hostile.connection.data_received(data)
        assert hostile.transport.is_closed and hostile.answered == []
        assert reason in caplog.text and "/10.1.2.3" in caplog.text
        hostile.connection.data_received(data)
        await other.ask(ApiKey.METADATA, 12, topics=())

    run(scenario, {"socket.request.max.bytes": "1000000"})


def test_a_flood_of_hostile_clients_has_a_bounded_number_of_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Malformed requests, and good ones that are refused, of one kind each."""

    async def scenario(harness: GatewayHarness) -> None:
        with caplog.at_level(logging.INFO, "kshare_gateway"):
            for _ in range(1_000):
                harness.client().connection.data_received(struct.pack(">i", -1))
            client = harness.client()
            for _ in range(1_000):
                await client.ask(ApiKey.SHARE_ACKNOWLEDGE, 1, group_id="g", member_id="m", share_session_epoch=0)
        seconds_at_most = 20
        malformed = [text for text in caplog.messages if "closing connection" in text]
        refused = [text for text in caplog.messages if text.startswith("ShareAcknowledge of /10.1.2.3: ")]
        assert 0 < len(malformed) <= LINES_PER_SECOND * seconds_at_most
        assert 0 < len(refused) <= LINES_PER_SECOND * seconds_at_most

    run(scenario)


def test_a_request_in_pieces() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        whole = request_frame(ApiKey.LIST_GROUPS, 0, 5, build(ApiKey.LIST_GROUPS, 0, {}))
        harness.catalog.answers["ListGroups"] = lambda request, payload: coordinator_pb2.ListGroupsResponse()
        answer = client.expect_raw(5)
        for index in range(len(whole)):
            client.connection.data_received(whole[index : index + 1])
        assert await asyncio.wait_for(answer, 5) == struct.pack(">hi", 0, 0)

    run(scenario)


def test_api_versions_of_an_unknown_version_is_answered_in_version_0() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        answer = client.expect_raw(9)
        client.connection.data_received(frame(struct.pack(">hhih", 18, 5, 9, -1) + b"\0\x05java\x044.4\0\0"))
        body = await asyncio.wait_for(answer, 5)
        code, count = struct.unpack_from(">hi", body)
        listed = {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", body[6:])}
        assert code == ErrorCode.UNSUPPORTED_VERSION and count == 1
        assert listed == {int(ApiKey.API_VERSIONS): tuple(SERVED_APIS[ApiKey.API_VERSIONS].versions)}
        assert not client.transport.is_closed

    run(scenario)


def test_a_handler_that_fails_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()

        class Broken:
            groups = 5
            error_code = 0

        harness.catalog.answers["ListGroups"] = lambda request, payload: Broken()
        assert (await client.ask(ApiKey.LIST_GROUPS, 5)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "ListGroups failed with an unexpected error" in caplog.text
        await client.ask(ApiKey.METADATA, 12, topics=())

    run(scenario)


def test_connections_are_limited() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        first, second = harness.client(), harness.client()
        assert second.transport.is_closed and not first.transport.is_closed
        await harness.settle()
        first.lose()
        assert not GatewayClient(harness.node).transport.is_closed

    run(scenario, {"max.connections": "1"})


def test_idle_connections_are_closed_but_not_waiting_ones() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        async with GatewayHarness({"connections.max.idle.ms": "5000"}) as harness:
            harness.catalog.answers["ListGroups"] = list_groups_when(event)
            idle, active, waiting = harness.client(), harness.client(), harness.client()
            future = waiting.send(ApiKey.LIST_GROUPS, 5)
            await asyncio.sleep(4)
            await active.ask(ApiKey.API_VERSIONS, 3)
            await asyncio.sleep(2)
            assert idle.transport.is_closed
            assert not active.transport.is_closed and not waiting.transport.is_closed
            await asyncio.sleep(4)
            assert active.transport.is_closed and not waiting.transport.is_closed
            event.set()
            await future
            await asyncio.sleep(11)
            assert waiting.transport.is_closed

    loop = VirtualLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_stopping_answers_what_is_under_way_and_takes_nothing_new() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        event = asyncio.Event()
        harness.catalog.answers["ListGroups"] = list_groups_when(event)
        client = harness.client()
        future = client.send(ApiKey.LIST_GROUPS, 5)
        await harness.settle()
        stopping = asyncio.ensure_future(harness.node.stop(5_000))
        await harness.settle()
        refused = harness.client()
        late = client.send(ApiKey.API_VERSIONS, 3)
        assert refused.transport.is_closed and not stopping.done()
        (given_back,) = harness.catalog.requests("DeregisterNode")
        assert harness.catalog.gateway is not None
        assert given_back.incarnation == harness.catalog.gateway.incarnation, "clients are sent elsewhere already"
        assert harness.node.problems() == ["the gateway is stopping"]
        event.set()
        await asyncio.wait_for(stopping, 5)
        assert future.done() and not late.done() and client.transport.is_closed

    run(scenario)
