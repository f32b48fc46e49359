"""Relayed requests: bytes, order, own requests between them, back-pressure, and the end of either side."""

from __future__ import annotations

import asyncio
import socket
import struct
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import topic_id_text
from kshare_gateway.connections.connection import ClientConnection
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.request_context import ConnectionMustClose
from kshare_gateway.upstream.proxy_mode import proxy_routes
from kshare_gateway.upstream.relaying_connection import SEND_BUFFER_BYTES
from kshare_gateway.upstream.routes import Routes
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.api_versions import VersionRange
from kshare_wire.framing import parse_header, produce_acks
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from kshare_wire.messages import MalformedRequest, decode_request, encode_request, is_flexible
from support.environment.free_ports import free_port
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayClient, GatewayHarness, topic
from support.gateway.scripted_leader import FakeLeader, fetched, listed
from support.upstream.scripted_broker import NODE_ID, SERVED, ScriptedBroker, framed, header

Scenario = Callable[[GatewayHarness, ScriptedBroker], Awaitable[None]]
EVERYTHING = (1 << 13) - 1
LOCAL_WAIT = ApiKey.SHARE_GROUP_HEARTBEAT


def run(
    scenario: Scenario,
    texts: Mapping[str, str] | None = None,
    topics: Mapping[str, coordinator_pb2.Topic] | None = None,
    prepare: Callable[[ScriptedBroker], None] = lambda broker: None,
) -> None:
    """Runs a scenario with a gateway in mode proxy in front of one broker."""

    async def whole() -> None:
        async with ScriptedBroker() as broker:
            prepare(broker)
            host, _, port = broker.address.rpartition(":")
            configs = {
                "kshare.engine": "kafka",
                "kshare.upstream.mode": "proxy",
                "kshare.upstream.bootstrap.servers": broker.address,
                **(texts or {}),
            }
            harness = GatewayHarness(
                configs,
                client_listen="127.0.0.1:0",
                open_upstream=lambda: Cluster([BrokerAddress(host, int(port))], ClientSettings()),
            )
            harness.catalog.topics.update(topics or {})
            async with harness:
                await asyncio.wait_for(scenario(harness, broker), 20)

    asyncio.run(whole())


def of_old_cluster(version: int, ids: Mapping[str, bytes]) -> Callable[[ScriptedBroker], None]:
    """Has a broker serve Metadata up to a version, with topics of these ids, and no other topic."""

    def prepare(broker: ScriptedBroker) -> None:
        def answer(asked_in: int, frame: bytes) -> MetadataResponse:
            assert asked_in <= version
            response = broker.metadata()
            start = parse_header(memoryview(frame), flexible=is_flexible(ApiKey.METADATA, asked_in)).body_offset
            asked = decode_request(MetadataRequest, asked_in, memoryview(frame), start)
            names = [topic.name or "" for topic in asked.topics or ()]
            response.topics = [
                MetadataResponseTopic(name=name, topic_id=ids[name])
                if name in ids
                else MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for name in names
            ]
            return response

        broker.served[ApiKey.METADATA] = VersionRange(0, version)
        broker.answers[ApiKey.METADATA] = answer

    return prepare


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def relayed(client: GatewayClient, api_key: int, version: int, correlation_id: int, body: bytes) -> asyncio.Future[Any]:
    """Sends a request by hand; the future gets the bytes after the correlation id."""
    future = client.expect_raw(correlation_id)
    client.connection.data_received(framed(header(api_key, version, correlation_id) + body))
    return future


def test_frames_are_passed_on_verbatim_in_both_directions() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b"no response that could be decoded"
        body = bytes(range(256))
        answer = await relayed(client, ApiKey.HEARTBEAT, 4, 0x7FFFFFFF, body)
        assert answer == b"no response that could be decoded"
        assert broker.received(ApiKey.HEARTBEAT) == [header(ApiKey.HEARTBEAT, 4, 0x7FFFFFFF) + body]

    run(scenario)


def test_responses_of_any_size_and_in_any_pieces_are_whole() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        sizes = [0, 1, 5, 100, 70_000, 3_000_000, 2, 0]
        broker.answers[ApiKey.OFFSET_COMMIT] = lambda version, frame: b"z" * struct.unpack(">i", frame[-4:])[0]
        answers = [
            relayed(client, ApiKey.OFFSET_COMMIT, 2, number, struct.pack(">i", size))
            for number, size in enumerate(sizes)
        ]
        assert [len(answer) for answer in await asyncio.gather(*answers)] == sizes
        assert client.answered == list(range(len(sizes)))

    run(scenario)


def test_a_response_waits_for_that_of_an_earlier_request_which_is_answered_here() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client, held = harness.client(), asyncio.Event()
        broker.answers[ApiKey.OFFSET_COMMIT] = lambda version, frame: b"relayed"

        async def late(request: Any, payload: memoryview) -> Any:
            await held.wait()
            raise ConnectionError("the coordinator is gone")

        harness.catalog.answers["ShareGroupHeartbeat"] = late
        local = client.send(LOCAL_WAIT, 1, group_id="g", member_id="m", member_epoch=1)
        after = relayed(client, ApiKey.OFFSET_COMMIT, 4, 900, b"")
        await until(lambda: bool(broker.received(ApiKey.OFFSET_COMMIT)))
        await asyncio.sleep(0.05)  # its response is here by now
        assert not after.done() and not client.answered
        held.set()
        await asyncio.gather(local, after)
        assert client.answered == [1, 900]

    run(scenario)


def test_a_fetch_is_relayed_once_nothing_is_under_way_that_is_answered_here() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client, held = harness.client(), asyncio.Event()
        broker.answers[ApiKey.FETCH] = lambda version, frame: b"records"

        async def late(request: Any, payload: memoryview) -> Any:
            await held.wait()
            raise ConnectionError("the coordinator is gone")

        harness.catalog.answers["ShareGroupHeartbeat"] = late
        client.send(LOCAL_WAIT, 1, group_id="g", member_id="m", member_epoch=1)
        fetched = relayed(client, ApiKey.FETCH, 12, 900, b"")
        await harness.settle()
        assert not broker.received(ApiKey.FETCH)
        held.set()
        assert await fetched == b"records"

    run(scenario)


def test_own_requests_and_relayed_ones_share_a_connection_in_order() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: frame[-1:]
        answers: list[Any] = []
        for number in range(20):
            answers.append(relayed(client, ApiKey.HEARTBEAT, 4, 1000 + number, bytes([number])))
            answers.append(client.send(ApiKey.METADATA, 12, topics=None))
        results = await asyncio.gather(*answers)
        assert results[::2] == [bytes([number]) for number in range(20)]
        assert {answer.brokers[0].node_id for answer in results[1::2]} == {NODE_ID}
        ports = {(answer.brokers[0].host, answer.brokers[0].port) for answer in results[1::2]}
        ((host, port),) = ports
        assert host == "gateway.example" and port != broker.port

    run(scenario)


def test_the_cluster_is_asked_under_the_clients_own_id() -> None:
    """Its quotas by client id and its logs refer to this id."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        def created(version: int, frame: bytes) -> CreateTopicsResponse:
            return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", num_partitions=1)])

        broker.answers[ApiKey.CREATE_TOPICS] = created
        harness.catalog.answers["ShareGroupHeartbeat"] = lambda request, payload: (
            coordinator_pb2.ShareGroupHeartbeatResponse(member_epoch=1)
        )
        client = harness.client()
        await client.ask(ApiKey.CREATE_TOPICS, 5, topics=[{"name": "t", "num_partitions": 1}], timeout=1000)
        await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=1)
        for api in (ApiKey.CREATE_TOPICS, ApiKey.HEARTBEAT):
            (frame,) = broker.received(api)
            version, correlation_id = struct.unpack_from(">hi", frame, 2)
            assert frame.startswith(header(api, version, correlation_id, "tester"))

    run(scenario)


def test_a_produce_without_acknowledgement_has_no_response() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        broker.answers[ApiKey.PRODUCE] = lambda version, frame: (
            None if produce_acks(memoryview(frame), version) == 0 else b"p"
        )
        for version in (3, 8, 9):
            for acks, correlation_id in ((0, 5), (1, 6), (-1, 7)):
                request = ProduceRequest(transactional_id="tx" if acks else None, acks=acks, timeout_ms=1)
                frame = b"".join(map(bytes, encode_request(request, version, correlation_id, "tester")))
                if acks:
                    answer = client.expect_raw(correlation_id)
                client.connection.data_received(frame)
                if acks:
                    assert await answer == b"p"
        assert client.connection.requests_under_way == 0
        assert len(broker.received(ApiKey.PRODUCE)) == 9

    run(scenario)


def test_a_client_that_does_not_read_stops_the_reading_from_the_broker() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        sent = 0

        async def endless(version: int, frame: bytes) -> bytes:
            nonlocal sent
            sent += 1
            return bytes(1 << 20)

        broker.answers[ApiKey.HEARTBEAT] = endless
        client.connection.pause_writing()
        assert client.connection.account.unsent_bytes == 0
        client.connection.resume_writing()
        answers = [relayed(client, ApiKey.HEARTBEAT, 4, number, b"") for number in range(60)]
        await until(lambda: len(client.answered) >= 2)
        client.connection.pause_writing()
        await asyncio.sleep(0.2)
        seen = len(client.answered)
        assert sent < 60, "the broker's answers were read on, into memory"
        client.connection.resume_writing()
        await asyncio.gather(*answers)
        assert seen < 60 and client.answered == list(range(60))

    run(scenario)


def test_the_kernel_holds_little_for_a_client_that_does_not_read() -> None:
    """As a broker's: its socket's send buffer does not grow."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: bytes(1 << 20)
        connections: list[ClientConnection] = []

        def accept() -> ClientConnection:
            connections.append(harness.node.new_connection())
            return connections[-1]

        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(server.sockets[0].getsockname())
            client.sendall(b"".join(framed(header(ApiKey.HEARTBEAT, 4, number)) for number in range(20)))
            await until(lambda: bool(connections) and connections[0].unsent_bytes() > 0)
            transport = connections[0]._transport
            assert transport is not None
            kept = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            transport.abort()
        assert kept == 2 * SEND_BUFFER_BYTES, "Linux doubles what it is told"
        await until(lambda: connections[0]._is_closed)
        server.close()

    run(scenario)


def test_a_broker_that_does_not_read_stops_the_reading_from_the_client() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b""
        await relayed(client, ApiKey.HEARTBEAT, 4, 1, b"")
        broker.stop_reading()
        answers = []
        for number in range(2, 60):
            if not client.transport.reading:
                break
            answers.append(relayed(client, ApiKey.HEARTBEAT, 4, number, bytes(1 << 20)))
        assert not client.transport.reading and len(answers) < 50
        broker.read_on()
        await asyncio.gather(*answers)
        assert client.transport.reading

    run(scenario)


def test_a_request_behind_one_that_takes_long_has_its_own_time() -> None:
    """A client may send Metadata while its JoinGroup waits for other members; the broker begins it after that."""
    timeout_ms = 1_000

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        async def long(version: int, frame: bytes) -> bytes:
            await asyncio.sleep(1.5 * timeout_ms / 1000)
            return b"joined"

        broker.answers[ApiKey.HEARTBEAT] = long
        client = harness.client()
        joined = relayed(client, ApiKey.HEARTBEAT, 4, 900, b"")
        assert (await client.ask(ApiKey.METADATA, 12, topics=None)).brokers
        assert await joined == b"joined"

    run(scenario, {"kshare.upstream.request.timeout.ms": str(timeout_ms)})


def test_a_broker_that_does_not_answer_in_time_ends_the_connection() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b"relayed"
        broker.answers[ApiKey.DESCRIBE_CLUSTER] = lambda version, frame: None
        client = harness.client()
        before = relayed(client, ApiKey.HEARTBEAT, 4, 900, b"")
        client.send(ApiKey.DESCRIBE_CLUSTER, 1)
        assert await before == b"relayed"
        await until(lambda: client.transport.is_closed)

    run(scenario, {"kshare.upstream.request.timeout.ms": "100"})


def test_a_broker_that_goes_ends_the_connection_of_a_client_that_waits_for_it() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client, held = harness.client(), asyncio.Event()

        async def never(version: int, frame: bytes) -> None:
            await held.wait()

        broker.answers[ApiKey.HEARTBEAT] = never
        relayed(client, ApiKey.HEARTBEAT, 4, 1, b"")
        await until(lambda: bool(broker.received(ApiKey.HEARTBEAT)))
        broker.close_clients()
        await until(lambda: client.transport.is_closed)
        held.set()

    run(scenario)


def test_a_broker_that_goes_after_a_produce_without_response_ends_the_clients_connection() -> None:
    """It is how a broker says that it refused such a request: the client asks then where the leader is."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        broker.answers[ApiKey.PRODUCE] = lambda version, frame: None
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b""
        before = relayed(client, ApiKey.HEARTBEAT, 4, 1, b"")
        frame = b"".join(map(bytes, encode_request(ProduceRequest(acks=0), 9, 5, "tester")))
        client.connection.data_received(frame)
        await before
        await until(lambda: bool(broker.received(ApiKey.PRODUCE)))
        broker.close_clients()
        await until(lambda: client.transport.is_closed)
        other = harness.client()
        other.connection.data_received(frame)
        await relayed(other, ApiKey.HEARTBEAT, 4, 1, b"")
        link = other.connection.relay.open_link  # type: ignore[union-attr]
        broker.close_clients()
        await until(lambda: link is not None and link.is_closed)
        assert not other.transport.is_closed, "the later response shows that nothing is lost"

    run(scenario)


@pytest.mark.parametrize("version", [9, 11])
def test_topics_by_id_in_front_of_a_cluster_that_knows_them_by_name_only(version: int) -> None:
    """Kafka 2.4 has no ids, 2.8 takes no request by id; share consumers ask by the ids of heartbeats."""
    renamed, unknown = b"r" * 16, b"u" * 16

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        asked = [TOPIC_ID, renamed, OTHER_TOPIC_ID, unknown]
        topics = [{"name": None, "topic_id": uuid.UUID(bytes=each)} for each in asked]
        told = await harness.client().ask(ApiKey.METADATA, 12, topics=[*topics, {"name": "plain"}])
        found = {(each.topic_id.bytes if each.topic_id else None): (each.name, each.error_code) for each in told.topics}
        gone = (None, ErrorCode.UNKNOWN_TOPIC_ID)
        assert found[TOPIC_ID] == ("orders", 0)
        assert found[OTHER_TOPIC_ID] == found[unknown] == gone
        assert found[renamed] == (("other", 0) if version < 10 else gone)
        assert [each.name for each in told.topics].count("plain") == 1

    run(
        scenario,
        topics={
            "orders": topic("orders", TOPIC_ID, [1]),
            "other": topic("other", renamed, [1]),
            "gone": topic("gone", OTHER_TOPIC_ID, [1]),
        },
        prepare=of_old_cluster(
            version,
            {"orders": TOPIC_ID, "other": b"n" * 16, "plain": b"p" * 16}
            if version >= 10
            else dict.fromkeys(("orders", "other", "plain"), bytes(16)),
        ),
    )


@pytest.mark.parametrize("version", [11, 12])
def test_clients_get_an_invented_id_unless_they_fetch_from_the_cluster_with_it(version: int) -> None:
    """Kafka serves Fetch by id since 3.1, after Metadata by id. The cluster has an id of its own for `other`."""
    own_id = b"n" * 16

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        told = await harness.client().ask(ApiKey.METADATA, 12, topics=[{"name": "orders"}, {"name": "other"}])
        found = {each.name: each.topic_id.bytes if each.topic_id else bytes(16) for each in told.topics}
        assert found == {"orders": TOPIC_ID if version == 11 else bytes(16), "other": own_id}

    other = topic("other", OTHER_TOPIC_ID, [1])
    other.upstream_topic_id = own_id
    run(
        scenario,
        topics={"orders": topic("orders", TOPIC_ID, [1]), "other": other},
        prepare=of_old_cluster(version, {"orders": bytes(16), "other": own_id}),
    )


def test_a_member_has_a_share_session_at_each_brokers_port() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        metadata = broker.metadata()
        metadata.cluster_authorized_operations = EVERYTHING
        metadata.topics = [MetadataResponseTopic(name="orders", topic_authorized_operations=EVERYTHING)]
        other = MetadataResponseBroker(node_id=NODE_ID + 1, host="127.0.0.1", port=broker.port)
        metadata.brokers = [*metadata.brokers, other]
        broker.answers[ApiKey.METADATA] = lambda version, frame: metadata
        told = await harness.client().ask(ApiKey.METADATA, 12, topics=None)
        assert len({each.port for each in told.brokers}) == 2, "a broker that appeared has a port at once"
        FakeLeader(harness.leaders[1])
        clients = [GatewayClient(harness.node, NODE_ID + number) for number in range(2)]
        for epoch in range(3):
            for partition, client in enumerate(clients):
                asked = () if epoch else (listed(TOPIC_ID, partition),)
                await fetched(client, epoch, *asked)
        owners = {each.owner.broker_number for each in harness.leaders[1].requests("ShareFetch")}
        assert owners == {NODE_ID + 1, NODE_ID + 2}

    run(scenario, topics={"orders": topic("orders", TOPIC_ID, [1, 1])})


def test_a_connection_that_was_idle_upstream_is_opened_again() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b"again"
        await relayed(client, ApiKey.HEARTBEAT, 4, 1, b"")
        link = client.connection.relay.open_link  # type: ignore[union-attr]
        broker.close_clients()
        await until(lambda: link is not None and link.is_closed)
        assert not client.transport.is_closed
        assert await relayed(client, ApiKey.HEARTBEAT, 4, 2, b"") == b"again"

    run(scenario)


def test_a_client_that_goes_ends_its_connection_upstream() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b""
        await relayed(client, ApiKey.HEARTBEAT, 4, 1, b"")
        relay = client.connection.relay
        assert relay is not None and relay.open_link is not None
        client.lose()
        assert relay.open_link is None
        with pytest.raises(ConnectionMustClose):
            await relay.ask(ProduceRequest(), VersionRange(3, 9))

    run(scenario)


def test_a_client_at_a_port_for_any_broker_gets_one_that_lives() -> None:
    """A broker that has stopped is known as one for seconds; a client of one bootstrap address has no other choice."""

    def prepare(broker: ScriptedBroker) -> None:
        stopped = MetadataResponseBroker(node_id=NODE_ID + 1, host="127.0.0.1", port=free_port())
        both = MetadataResponse(
            brokers=[*broker.metadata().brokers, stopped], cluster_id="upstream", controller_id=NODE_ID
        )
        broker.answers[ApiKey.METADATA] = lambda version, frame: both

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b"alive"
        for _ in range(4):
            answer = relayed(harness.client(), ApiKey.HEARTBEAT, 4, 1, b"")
            assert await asyncio.wait_for(answer, 5) == b"alive"

    run(scenario, prepare=prepare)


def test_a_client_reaches_a_broker_that_is_back_before_the_gateway_has_heard_of_it() -> None:
    """The client's Metadata comes from a broker that knows it already."""
    returning = NODE_ID + 1

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        relay = harness.client().connection.relay
        assert relay is not None
        front, one = relay.front, broker.metadata()
        second = MetadataResponseBroker(
            node_id=returning, host=one.brokers[0].host, port=one.brokers[0].port, rack=None
        )
        both = MetadataResponse(brokers=[*one.brokers, second], cluster_id="upstream", controller_id=NODE_ID)
        broker.answers[ApiKey.METADATA] = lambda version, frame: both
        await front.brokers.look_again()
        assert returning in front.brokers.view.brokers
        broker.answers[ApiKey.METADATA] = lambda version, frame: one
        await front.brokers.look_again()
        assert returning not in front.brokers.view.brokers
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: b"back"
        answer = relayed(GatewayClient(harness.node, returning), ApiKey.HEARTBEAT, 4, 1, b"")
        assert await asyncio.wait_for(answer, 5) == b"back"

    run(scenario)


def test_a_broker_that_is_gone_is_no_hang() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        harness_client = GatewayClient(harness.node, 77)
        relayed(harness_client, ApiKey.HEARTBEAT, 4, 1, b"")
        await until(lambda: harness_client.transport.is_closed)

    run(scenario)


def test_versions_that_are_not_announced_close_the_connection() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        for api_key, version in (
            (ApiKey.PRODUCE, 10),
            (ApiKey.FETCH, 16),
            (ApiKey.SASL_HANDSHAKE, 0),
            (ApiKey.VOTE, 0),
        ):
            client = harness.client()
            relayed(client, api_key, version, 1, bytes(20))
            await until(lambda client=client: client.transport.is_closed)  # type: ignore[misc]
            assert not broker.received(api_key)

    run(scenario)


def test_api_versions_announces_what_the_cluster_and_kshare_have() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        answer = await harness.client().ask(ApiKey.API_VERSIONS, 4)
        told = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert told[ApiKey.PRODUCE] == (0, 9) and told[ApiKey.FETCH] == (0, 15)
        assert told[ApiKey.METADATA] == (0, 13), "the gateway's own versions: share consumers need topic ids"
        assert told[ApiKey.SASL_HANDSHAKE] == (1, 1)
        assert told[ApiKey.SHARE_FETCH] == (1, 2) and told[ApiKey.SHARE_GROUP_HEARTBEAT][1] == 1
        assert ApiKey.VOTE not in told and ApiKey.JOIN_GROUP not in told, "this broker does not serve them"
        levels = {each.name: each.max_version_level for each in answer.finalized_features}
        assert levels == {"metadata.version": 21, "transaction.version": 1, "share.version": 2}
        assert answer.finalized_features_epoch == 9
        refused = await harness.client().ask(ApiKey.API_VERSIONS, 4, client_software_name="two words")
        assert (int(refused.error_code), refused.api_keys) == (ErrorCode.INVALID_REQUEST, ())

    run(scenario)


@pytest.mark.parametrize(("bits", "code"), [(EVERYTHING, ErrorCode.NONE), (0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)])
def test_share_coordinators_are_for_clients_that_may_act_on_the_cluster(bits: int, code: ErrorCode) -> None:
    """`kshare state dump` looks for them."""

    def metadata(version: int, frame: bytes) -> MetadataResponse:
        answer = broker_of[0].metadata()
        answer.cluster_authorized_operations = bits
        return answer

    broker_of: list[ScriptedBroker] = []

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        broker_of.append(broker)
        broker.answers[ApiKey.METADATA] = metadata
        key = f"g:{topic_id_text(TOPIC_ID)}:0"
        answer = await harness.client().ask(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key])
        (found,) = answer.coordinators
        assert found.error_code == code
        assert found.node_id == (NODE_ID if code == ErrorCode.NONE else -1)

    run(scenario, topics={"orders": topic("orders", TOPIC_ID, [1])})


def test_every_api_of_the_embedded_engine_is_in_the_table_of_proxy_mode() -> None:
    routes = proxy_routes()
    assert set(map(int, SERVED_APIS)) <= routes.handlers.keys() | routes.relayed
    announced = routes.announced(SERVED)
    assert announced[ApiKey.FIND_COORDINATOR] == VersionRange(0, 5)
    with pytest.raises(ValueError, match="relayed and answered"):
        Routes(handlers=routes.handlers, relayed=frozenset({int(ApiKey.METADATA)}))


def test_acks_of_a_produce_that_ends_too_early() -> None:
    for version in (3, 8, 9):
        with pytest.raises(MalformedRequest, match="ends after"):
            produce_acks(memoryview(header(ApiKey.PRODUCE, version, 1)), version)
