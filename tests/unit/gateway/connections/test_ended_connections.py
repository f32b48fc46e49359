"""Requests that wait for a turn when their client says that it is done, or is gone."""

from __future__ import annotations

import asyncio
from typing import Any

from kshare_gateway.connections.turns import REQUESTS_PER_TURN
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayClient, GatewayHarness, build, request_frame, run

VERSIONS = request_frame(ApiKey.API_VERSIONS, 0, 2, build(ApiKey.API_VERSIONS, 0, {}))


def behind_others(harness: GatewayHarness) -> GatewayClient:
    """A client whose requests wait: others have had this turn of the loop."""
    for _ in range(REQUESTS_PER_TURN):
        harness.client().send(ApiKey.API_VERSIONS, 0)
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
        assert not client.connection.waits_for_turn
        assert not client.connection.eof_received()

    run(scenario)


def test_a_produce_that_waits_for_its_turn_is_carried_out_although_the_client_has_gone() -> None:
    """With acks = 0 a client may close its connection right after it."""

    async def scenario(harness: GatewayHarness) -> None:
        came: list[int] = []
        both = asyncio.Event()

        def store(request: Any, payload: memoryview) -> Any:
            came.append(len(payload))
            if len(came) == 2:
                both.set()
            return leader_pb2.ProduceResponse()

        harness.leaders[1].answers["Produce"] = store
        client = behind_others(harness)
        topics = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(80)}]}]
        frame = request_frame(ApiKey.PRODUCE, 9, 1, build(ApiKey.PRODUCE, 9, {"acks": 0, "topic_data": topics}))
        client.connection.data_received(frame + VERSIONS + frame)
        assert client.connection.waits_for_turn
        client.lose()
        await asyncio.wait_for(both.wait(), 5)

    run(scenario)
