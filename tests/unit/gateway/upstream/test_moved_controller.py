"""Mode share in front of a cluster with ZooKeeper: requests follow the controller, which other brokers are not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import pytest

from kshare_core.errors import ErrorCode
from kshare_gateway.upstream.front import Front
from kshare_gateway.upstream.share_mode import FOR_CONTROLLER, share_routes
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker
from kshare_wire.messages import decode_response, encode_request
from support.gateway.harness import GatewayClient, GatewayHarness
from support.upstream.scripted_broker import ScriptedBroker

OLD, NEW = 41, 42
NOT_CONTROLLER = (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER)
DONE = (ErrorCode.NONE, ErrorCode.NONE)
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="k" password="s";'
SASL = {"kshare.upstream.security.protocol": "SASL_PLAINTEXT", "kshare.upstream.sasl.jaas.config": JAAS}


class TwoBrokers:
    """Brokers of which only `controller_id` creates and deletes topics; broker OLD is the controller at first."""

    def __init__(self, old: ScriptedBroker, new: ScriptedBroker) -> None:
        self.controller_id = OLD
        self.brokers = {OLD: old, NEW: new}
        for node_id, broker in self.brokers.items():
            broker.served[ApiKey.DELETE_TOPICS] = VersionRange(0, 5)
            broker.answers[ApiKey.METADATA] = lambda version, frame: self._metadata()
            broker.answers[ApiKey.CREATE_TOPICS] = partial(self._created, node_id)
            broker.answers[ApiKey.DELETE_TOPICS] = partial(self._deleted, node_id)

    def _metadata(self) -> MetadataResponse:
        brokers = [
            MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
            for node_id, broker in self.brokers.items()
        ]
        return MetadataResponse(brokers=brokers, cluster_id="upstream", controller_id=self.controller_id)

    def _created(self, node_id: int, version: int, frame: bytes) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=self._code(node_id))])

    def _deleted(self, node_id: int, version: int, frame: bytes) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", error_code=self._code(node_id))])

    def _code(self, node_id: int) -> ErrorCode:
        return ErrorCode.NONE if node_id == self.controller_id else ErrorCode.NOT_CONTROLLER


Scenario = Callable[[GatewayHarness, TwoBrokers], Awaitable[None]]


def run(scenario: Scenario, texts: Mapping[str, str], *, has_quorum: bool = False) -> None:
    async def whole() -> None:
        async with ScriptedBroker() as old, ScriptedBroker() as new:
            two = TwoBrokers(old, new)
            for broker in (old, new) if has_quorum else ():
                broker.served[ApiKey.DESCRIBE_QUORUM] = VersionRange(0, 2)
            configs = {"kshare.engine": "kafka", "kshare.upstream.bootstrap.servers": old.address, **texts}
            address = BrokerAddress("127.0.0.1", old.port)
            async with GatewayHarness(configs, open_upstream=lambda: Cluster([address], ClientSettings())) as harness:
                await asyncio.wait_for(scenario(harness, two), 20)

    asyncio.run(whole())


async def moved(client: GatewayClient, two: TwoBrokers) -> None:
    """The controller moves, and the gateway learns of it."""
    two.controller_id = NEW
    await front_of(client).brokers.look_again()


def front_of(client: GatewayClient) -> Front:
    assert client.connection.relay is not None
    return client.connection.relay.front


def delete(client: GatewayClient, correlation_id: int) -> asyncio.Future[bytes]:
    """Sends a DeleteTopics, which is relayed."""
    future = client.expect_raw(correlation_id)
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    client.connection.data_received(b"".join(map(bytes, encode_request(request, 5, correlation_id, "tester"))))
    return future


async def codes(client: GatewayClient, correlation_id: int) -> tuple[int, int]:
    """The errors of a CreateTopics, which the gateway asks, and of a DeleteTopics, which it relays."""
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
    created = await client.ask(ApiKey.CREATE_TOPICS, 5, topics=topics, timeout=1000)
    answer = struct.pack(">i", correlation_id) + await delete(client, correlation_id)
    deleted = decode_response(DeleteTopicsResponse, 5, memoryview(answer))
    return int(created.topics[0].error_code), deleted.responses[0].error_code


def test_a_client_that_stays_connected_reaches_the_new_controller() -> None:
    async def scenario(harness: GatewayHarness, two: TwoBrokers) -> None:
        client = harness.client()
        assert await codes(client, 1001) == DONE
        await moved(client, two)
        assert await codes(client, 1002) == DONE
        assert not client.transport.is_closed

    run(scenario, {})


def test_what_is_under_way_at_the_former_controller_is_answered_there() -> None:
    async def scenario(harness: GatewayHarness, two: TwoBrokers) -> None:
        client, held = harness.client(), asyncio.Event()
        old = two.brokers[OLD]

        async def late(version: int, frame: bytes) -> DeleteTopicsResponse:
            await held.wait()
            return DeleteTopicsResponse(responses=[DeletableTopicResult(name="late")])

        old.answers[ApiKey.DELETE_TOPICS] = late
        first = delete(client, 1001)
        while not old.received(ApiKey.DELETE_TOPICS):
            await asyncio.sleep(0)
        await moved(client, two)
        second = delete(client, 1002)
        held.set()
        assert b"late" in await first and b"late" in await second
        assert await codes(client, 1003) == DONE

    run(scenario, {})


@pytest.mark.parametrize("is_relayed", [True, False])
def test_a_client_that_authenticated_at_the_former_controller_connects_again(is_relayed: bool) -> None:
    async def scenario(harness: GatewayHarness, two: TwoBrokers) -> None:
        client = harness.client()
        assert await codes(client, 1001) == DONE
        await moved(client, two)
        await client.ask(ApiKey.METADATA, 5, topics=[])
        assert not client.transport.is_closed, "any broker answers Metadata"
        if is_relayed:
            delete(client, 1002)
        else:
            client.send(ApiKey.CREATE_TOPICS, 5, topics=[{"name": "t"}], timeout=1000)
        while not client.transport.is_closed:
            await asyncio.sleep(0)
        assert await codes(harness.client(), 1001) == DONE

    run(scenario, SASL)


def test_with_kraft_any_broker_will_do() -> None:
    """Metadata names a random broker there, so that a client would be moved, or closed, again and again."""

    async def scenario(harness: GatewayHarness, two: TwoBrokers) -> None:
        client = harness.client()
        assert await codes(client, 1001) == DONE
        await moved(client, two)
        assert await codes(client, 1002) == NOT_CONTROLLER, "these brokers have ZooKeeper's errors"
        assert not client.transport.is_closed

    run(scenario, SASL, has_quorum=True)


def test_what_the_controller_carries_out_is_served_in_mode_share() -> None:
    routes = share_routes("broker:9092")
    assert all(routes.is_relayed(api_key) or api_key in routes.as_upstream for api_key in FOR_CONTROLLER)
