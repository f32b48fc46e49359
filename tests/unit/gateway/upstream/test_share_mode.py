"""Mode share: gateways as brokers of the cluster's topics, refusals that name the cluster, and its permissions."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.security.authorized_operations import UNKNOWN
from kshare_gateway.upstream.permissions import CLUSTER_KNOWN, ClientPermissions, Permission, RequestPermissions
from kshare_gateway.upstream.share_mode import share_routes
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.delete_topics import DeleteTopicsResponse
from kshare_wire.generated.responses.describe_groups import DescribedGroup, DescribeGroupsResponse
from kshare_wire.generated.responses.find_coordinator import Coordinator, FindCoordinatorResponse
from kshare_wire.generated.responses.heartbeat import HeartbeatResponse
from kshare_wire.generated.responses.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kshare_wire.generated.responses.sasl_authenticate import SaslAuthenticateResponse
from kshare_wire.generated.responses.sasl_handshake import SaslHandshakeResponse
from support.gateway.harness import TOPIC_ID, GatewayHarness, topic
from support.gateway.scripted_leader import found, listed, share_fetch
from support.simulation.loop import VirtualLoop
from support.upstream.scripted_broker import ScriptedBroker

ALL = (1 << 13) - 1
OTHER_ID, INVENTED = bytes(15) + b"o", b"invented".ljust(16)
Scenario = Callable[[GatewayHarness, ScriptedBroker], Awaitable[None]]
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="k" password="s";'
SASL = {
    "kshare.upstream.security.protocol": "SASL_PLAINTEXT",
    "kshare.upstream.sasl.jaas.config": JAAS,
    "sasl.server.max.receive.size": "1000",
}

DELETE_TOPICS = (ApiKey.DELETE_TOPICS, 4)
BEAT = (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0)
BEAT_VALUES: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 0}


def run(scenario: Scenario, texts: Mapping[str, str] | None = None) -> None:
    """Runs a scenario with a gateway in mode share; share groups use "orders", the cluster has "other" too."""

    async def whole() -> None:
        async with ScriptedBroker() as broker:
            host, _, port = broker.address.rpartition(":")
            configs = {
                "kshare.engine": "kafka",
                "kshare.upstream.bootstrap.servers": broker.address,
                **(texts or {}),
            }
            harness = GatewayHarness(
                configs, open_upstream=lambda: Cluster([BrokerAddress(host, int(port))], ClientSettings())
            )
            harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1, 1])
            broker.answers[ApiKey.METADATA] = lambda version, frame: topics_of(broker, ALL)
            async with harness:
                await asyncio.wait_for(scenario(harness, broker), 20)

    asyncio.run(whole())


def topics_of(broker: ScriptedBroker, bits: int) -> MetadataResponse:
    answer = broker.metadata()
    answer.cluster_authorized_operations = bits
    answer.topics = [
        MetadataResponseTopic(
            name=name,
            topic_id=topic_id,
            partitions=[
                MetadataResponsePartition(partition_index=index, leader_id=41, leader_epoch=17, replica_nodes=[41])
                for index in range(2)
            ],
            topic_authorized_operations=bits,
        )
        for name, topic_id in (("orders", TOPIC_ID), ("other", bytes(16)))
    ]
    return answer


def test_metadata_is_the_clusters_with_gateways_as_brokers_and_leaders() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        answer = await harness.client().ask(ApiKey.METADATA, 12, topics=None)
        assert [(each.node_id, each.host) for each in answer.brokers] == [(7, "gateway.example")]
        assert answer.controller_id == 7 and answer.cluster_id == "upstream"
        found = {each.name: each for each in answer.topics}
        assert found.keys() == {"orders", "other"}
        assert {each.leader_id for each in found["orders"].partitions} == {7}
        assert {each.leader_epoch for each in found["orders"].partitions} == {3}, "of the catalog's placement"
        assert {(each.leader_id, each.leader_epoch) for each in found["other"].partitions} == {(7, -1)}, (
            "the catalog's first epoch must not be older than the epoch that a client was told before"
        )

    run(scenario)


@pytest.mark.parametrize("in_catalog", [bytes(16), TOPIC_ID], ids=["not known", "known"])
@pytest.mark.parametrize("in_cluster", [bytes(16), TOPIC_ID, OTHER_ID], ids=["none", "one", "another"])
def test_clients_see_the_id_that_the_catalog_invented(in_catalog: bytes, in_cluster: bytes) -> None:
    """The state of share groups stays under this id when the cluster gets topic ids; TOPIC_ID is its own one here."""
    is_another_topic = in_catalog == TOPIC_ID and in_cluster == OTHER_ID

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        def answer(version: int, frame: bytes) -> MetadataResponse:
            assert TOPIC_ID not in frame and INVENTED not in frame, "the cluster is asked by name"
            found = topics_of(broker, ALL)
            found.topics = [each for each in found.topics if each.name == "orders"]
            found.topics[0].topic_id = in_cluster
            return found

        broker.answers[ApiKey.METADATA] = answer
        known = harness.catalog.topics["orders"] = topic("orders", INVENTED, [1, 1])
        known.upstream_topic_id = in_catalog
        harness.catalog.change()
        await asyncio.sleep(0.05)
        client = harness.client()
        for name, topic_id in (("orders", None), (None, uuid.UUID(bytes=INVENTED))):
            told = await client.ask(ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": topic_id}])
            (found,) = told.topics
            if not is_another_topic:
                assert (found.name, found.topic_id, found.error_code) == ("orders", uuid.UUID(bytes=INVENTED), 0)
            elif name is None:
                assert (found.name, found.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                assert found.topic_id == uuid.UUID(bytes=OTHER_ID)

    run(scenario)


def test_topics_that_the_catalog_lacks_are_found_by_id_beside_one_whose_id_it_invented() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        def answer(version: int, frame: bytes) -> MetadataResponse:
            found = topics_of(broker, ALL)
            if OTHER_ID in frame:
                found.topics[1].topic_id = OTHER_ID
            else:
                found.topics = found.topics[:1]
            return found

        broker.answers[ApiKey.METADATA] = answer
        known = harness.catalog.topics["orders"] = topic("orders", INVENTED, [1, 1])
        known.upstream_topic_id = TOPIC_ID
        harness.catalog.change()
        await asyncio.sleep(0.05)
        ids = [uuid.UUID(bytes=INVENTED), uuid.UUID(bytes=OTHER_ID)]
        wanted = [{"name": None, "topic_id": each} for each in ids]
        told = await harness.client().ask(ApiKey.METADATA, 12, topics=wanted)
        assert [(each.name, each.topic_id, each.error_code) for each in told.topics] == [
            ("orders", ids[0], 0),
            ("other", ids[1], 0),
        ]

    run(scenario)


def test_a_partition_whose_leader_of_kshare_is_gone_has_none() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [9, 1])
        harness.catalog.change()
        await asyncio.sleep(0.05)
        answer = await harness.client().ask(ApiKey.METADATA, 12, topics=None)
        (orders,) = [each for each in answer.topics if each.name == "orders"]
        assert [(each.error_code, each.leader_id) for each in orders.partitions] == [
            (ErrorCode.LEADER_NOT_AVAILABLE, -1),
            (ErrorCode.NONE, 7),
        ]

    run(scenario)


def test_producers_and_other_consumers_are_refused_and_told_where_to_go() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        records = {"index": 0, "records": None}
        data = [{"name": "orders", "partition_data": [records]}]
        answer = await client.ask(ApiKey.PRODUCE, 9, acks=-1, timeout=1000, topic_data=data)
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == ErrorCode.POLICY_VIOLATION
        assert broker.address in partition.error_message
        joined = await client.ask(ApiKey.JOIN_GROUP, 9, group_id="g", protocol_type="consumer")
        assert joined.error_code == ErrorCode.POLICY_VIOLATION
        beat = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, group_id="g", member_id="m", member_epoch=0)
        assert beat.error_code == ErrorCode.POLICY_VIOLATION and broker.address in beat.error_message
        assert not broker.received(ApiKey.PRODUCE) and not broker.received(ApiKey.JOIN_GROUP)

    run(scenario)


def test_offsets_of_a_topic_that_no_share_group_uses_yet_are_found() -> None:
    """The coordinator looks the topic up in the cluster."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        def look_up(request: Any, _payload: Any) -> coordinator_pb2.LookUpTopicsResponse:
            assert list(request.topic_names) == ["other"]
            harness.catalog.topics["other"] = topic("other", OTHER_ID, [1])
            return coordinator_pb2.LookUpTopicsResponse(version=harness.catalog.change())

        def listed(request: Any, _payload: Any) -> leader_pb2.ListOffsetsResponse:
            answer = leader_pb2.ListOffsetsResponse()
            for entry in request.partitions:
                answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, timestamp=-1, offset=41)
            return answer

        async def ask(name: str) -> tuple[int, int]:
            wanted = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            answer = await client.ask(ApiKey.LIST_OFFSETS, 7, topics=wanted)
            entry = answer.topics[0].partitions[0]
            return int(entry.error_code), entry.offset

        harness.catalog.answers["LookUpTopics"] = look_up
        harness.leaders[1].answers["ListOffsets"] = listed
        client = harness.client()
        assert await ask("other") == (ErrorCode.NONE, 41)
        assert await ask("other") == (ErrorCode.NONE, 41)
        assert len(harness.catalog.requests("LookUpTopics")) == 1, "it is known now"

    run(scenario)


def test_every_api_has_a_route_or_is_left_out_because_it_needs_a_certain_broker() -> None:
    routes = share_routes("broker:9092")
    left_out = set(map(int, SERVED_APIS)) - routes.handlers.keys() - routes.relayed
    assert left_out == {
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.WRITE_TXN_MARKERS,
    }


def test_the_config_of_new_topics_that_no_cluster_knows_is_kept_by_kshare() -> None:
    dead_letters = "errors.deadletterqueue.group.enable"
    configs = {
        "plain": [("retention.ms", "1")],
        "enabled": [(dead_letters, "true")],
        "disabled": [("retention.ms", "2"), (dead_letters, "False")],
        "wrong": [(dead_letters, "perhaps")],
    }
    topics = [
        {"name": name, "configs": [{"name": config, "value": value} for config, value in of_topic]}
        for name, of_topic in configs.items()
    ]
    known = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    """The broker knows the topic a moment after the controller."""

    def alter(request: Any, payload: memoryview[int]) -> Any:
        result = coordinator_pb2.IncrementalAlterConfigsResponse.Result
        found = result(error_code=known.pop(0), resource_type=2, resource_name="disabled")
        return coordinator_pb2.IncrementalAlterConfigsResponse(results=[found])

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        broker.answers[ApiKey.CREATE_TOPICS] = lambda version, frame: CreateTopicsResponse(
            topics=[CreatableTopicResult(name=name, num_partitions=1) for name in configs if name != "wrong"]
        )
        harness.catalog.answers["IncrementalAlterConfigs"] = alter
        answer = await harness.client().ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=5000)
        assert {each.name: int(each.error_code) for each in answer.topics} == {
            **dict.fromkeys(("plain", "enabled", "disabled"), 0),
            "wrong": ErrorCode.INVALID_CONFIG,
        }
        (frame,) = broker.received(ApiKey.CREATE_TOPICS)
        assert dead_letters.encode() not in frame and frame.count(b"retention.ms") == 2 and b"wrong" not in frame
        for asked in harness.catalog.requests("IncrementalAlterConfigs"):
            (resource,) = asked.resources
            assert (resource.resource_name, [(each.name, each.value) for each in resource.configs]) == (
                "disabled",
                [(dead_letters, "false")],
            )
        assert not known

    run(scenario)


def test_a_heartbeat_reaches_the_coordinator_if_the_cluster_lets_the_client_read_the_group() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        told: list[int] = [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_MEMBER_ID]
        broker.answers[ApiKey.HEARTBEAT] = lambda version, frame: HeartbeatResponse(error_code=told.pop(0))
        harness.catalog.answers["ShareGroupHeartbeat"] = lambda request, payload: (
            coordinator_pb2.ShareGroupHeartbeatResponse(member_epoch=1)
        )
        beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["orders"]}
        refused = await harness.client().ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **beat)
        assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert not harness.catalog.requests("ShareGroupHeartbeat")
        client = harness.client()
        for _ in range(3):
            allowed = await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **beat)
            assert allowed.error_code == 0 and allowed.member_epoch == 1
        assert not told and len(broker.received(ApiKey.HEARTBEAT)) == 2, "the answer is remembered"

    run(scenario)


def test_permissions_are_asked_once_and_again_when_they_are_old() -> None:
    asked: list[Any] = []
    bits = {"orders": 1 << Operation.READ | 1 << Operation.DESCRIBE, "hidden": 0}
    group_bits = [1 << Operation.DELETE]

    async def ask(request: Any, served: Any) -> Any:
        asked.append(request)
        kind = type(request).__name__
        if kind == "MetadataRequest":
            return MetadataResponse(
                cluster_authorized_operations=1 << Operation.DESCRIBE,
                topics=[
                    MetadataResponseTopic(name=each.name, topic_authorized_operations=bits.get(each.name, UNKNOWN))
                    for each in request.topics
                ],
            )
        if kind == "HeartbeatRequest":
            return HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
        if kind == "FindCoordinatorRequest":
            denied = Coordinator(key="g", node_id=-1, host="", port=-1, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return FindCoordinatorResponse(coordinators=[denied])
        return DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", authorized_operations=group_bits[0])])

    async def whole() -> None:
        client = ClientPermissions(ask, cache_ms=50)
        permissions = RequestPermissions(client)
        topics = [Permission(Operation.READ, ResourceType.TOPIC, name) for name in ("orders", "hidden")]
        assert not permissions.allows(*topics[0]) and permissions.take_missing() == {topics[0]}
        await permissions.learn([CLUSTER_KNOWN, *topics])
        assert len(asked) == 1, "topics and cluster are one question"
        assert permissions.allows(*topics[0]) and not permissions.allows(*topics[1])
        assert not permissions.allows(Operation.WRITE, ResourceType.TOPIC, "orders")
        assert not permissions.take_missing()
        group = [Permission(each, ResourceType.GROUP, "g") for each in (Operation.READ, Operation.DESCRIBE)]
        await permissions.learn(group)
        assert permissions.allows(*group[0]), "a broker that does not coordinate the group checked it first"
        assert not permissions.allows(*group[1])
        delete = Permission(Operation.DELETE, ResourceType.GROUP, "g")
        await permissions.learn([delete])
        assert permissions.allows(*delete)
        group_bits[0] = UNKNOWN  # asked a broker that does not coordinate it; the client may not alter the cluster
        bits["orders"] = 0
        later = RequestPermissions(client)
        await later.learn([delete, *topics])
        assert later.allows(*topics[0]), "the first answer is remembered"
        await asyncio.sleep(0.06)
        old, unnamed = RequestPermissions(client), RequestPermissions(client)
        await old.learn([delete, *topics])
        assert not old.allows(*topics[0]) and not old.allows(*delete)
        assert later.allows(*topics[0]), "an answer holds until its request ends"
        await asyncio.sleep(0.06)
        assert not unnamed.allows(*group[0]) and unnamed.take_missing() == {group[0]}, "old ones are asked for again"

    VirtualLoop().run(whole())


@pytest.mark.parametrize("operation", [Operation.READ, Operation.DESCRIBE])
def test_an_answer_that_says_nothing_of_a_permission_is_none(operation: Operation) -> None:
    """A broker whose authorizer fails answers UNKNOWN_SERVER_ERROR: nothing is allowed, and it is asked again."""
    code = [ErrorCode.UNKNOWN_SERVER_ERROR]

    async def ask(request: Any, served: Any) -> Any:
        if type(request).__name__ == "HeartbeatRequest":
            return HeartbeatResponse(error_code=code[0])
        return FindCoordinatorResponse(error_code=code[0], coordinators=[])

    async def whole() -> None:
        permissions = RequestPermissions(ClientPermissions(ask, cache_ms=10_000))
        permission = Permission(operation, ResourceType.GROUP, "g")
        with pytest.raises(KafkaError) as refused:
            await permissions.learn([permission])
        assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not permissions.allows(*permission)
        code[0] = ErrorCode.NOT_COORDINATOR
        await permissions.learn([permission])
        assert permissions.allows(*permission)

    asyncio.run(whole())


def test_requests_of_one_connection_do_not_take_each_others_missing_permissions() -> None:
    async def ask(request: Any, served: Any) -> Any:
        return FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1, host="h", port=1)])

    async def whole() -> None:
        client = ClientPermissions(ask, cache_ms=0)
        first, second = RequestPermissions(client), RequestPermissions(client)
        describe = Permission(Operation.DESCRIBE, ResourceType.GROUP, "g")
        assert not first.allows(*describe)
        assert not second.take_missing()
        missing = first.take_missing()
        assert missing == {describe}
        await first.learn(missing)
        assert first.allows(*describe), "without a cache, too"
        assert not second.allows(*describe)

    asyncio.run(whole())


def test_a_topic_that_becomes_known_while_permissions_are_asked_is_not_denied() -> None:
    """A client ends with TOPIC_AUTHORIZATION_FAILED, and asks again after UNKNOWN_TOPIC_ID."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        is_known = asyncio.Event()

        async def beat(version: int, frame: bytes) -> HeartbeatResponse:
            await is_known.wait()
            return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)

        def asked_for_no_topic(version: int, frame: bytes) -> MetadataResponse:
            told = topics_of(broker, ALL)
            told.topics = []
            return told

        broker.answers[ApiKey.HEARTBEAT], broker.answers[ApiKey.METADATA] = beat, asked_for_no_topic
        answer = share_fetch(harness.client(), 0, listed(OTHER_ID, 0))
        while not broker.received(ApiKey.HEARTBEAT):
            await asyncio.sleep(0.001)
        harness.catalog.topics["other"] = topic("other", OTHER_ID, [1])
        harness.catalog.change()
        await asyncio.sleep(0.05)
        is_known.set()
        assert [(each[0], each[2]) for each in found(await answer)] == [(OTHER_ID, ErrorCode.UNKNOWN_TOPIC_ID)]

    run(scenario)


def test_before_a_client_has_authenticated_frames_are_short_and_only_the_cluster_answers() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        client.connection.data_received(struct.pack(">i", 1001))
        await harness.settle()
        assert client.transport.is_closed

    run(scenario, SASL)


@pytest.mark.parametrize(
    ("rounds", "is_long_allowed"),
    [
        ([(0, b"")], True),
        ([(0, b"r=nonce,s=salt,i=4096")], False),
        ([(0, b"r=nonce,s=salt,i=4096"), (0, b"v=signature")], True),
        ([(ErrorCode.SASL_AUTHENTICATION_FAILED, b"")], False),
        ([(0, b'{"status":"invalid_token"}')], False),
    ],
)
def test_the_first_request_after_the_authentication_may_be_long(
    rounds: list[tuple[int, bytes]], is_long_allowed: bool
) -> None:
    """A producer's first request at the leader of its partition may be a batch of megabytes."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        left = iter(rounds)
        broker.answers[ApiKey.SASL_HANDSHAKE] = lambda version, frame: SaslHandshakeResponse(mechanisms=["PLAIN"])

        def authenticated(version: int, frame: bytes) -> SaslAuthenticateResponse:
            code, message = next(left)
            return SaslAuthenticateResponse(error_code=code, auth_bytes=message)

        broker.answers[ApiKey.SASL_AUTHENTICATE] = authenticated
        client = harness.client()
        await client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        for code, message in rounds:
            answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"token")
            assert (int(answer.error_code), bytes(answer.auth_bytes)) == (code, message)
        client.connection.data_received(struct.pack(">i", 1001))
        await harness.settle()
        assert client.transport.is_closed is not is_long_allowed

    run(scenario, SASL)


@pytest.mark.parametrize("is_relayed", [False, True], ids=["refused here", "relayed"])
def test_a_stranger_stays_within_the_limits_and_learns_nothing(is_relayed: bool) -> None:
    """As brokers do, this one closes the connection of a client that has not authenticated. That takes a moment."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        asked = asyncio.Event()

        def silent(version: int, frame: bytes) -> None:
            asked.set()

        broker.answers[ApiKey.METADATA] = broker.answers[ApiKey.DELETE_TOPICS] = silent
        client = harness.client()
        answer = client.send(*DELETE_TOPICS) if is_relayed else client.send(*BEAT, **BEAT_VALUES)
        was_asked = asyncio.ensure_future(asked.wait())
        await asyncio.wait([was_asked, answer], return_when=asyncio.FIRST_COMPLETED)
        was_asked.cancel()
        client.connection.data_received(struct.pack(">i", 1001))
        await harness.settle()
        assert client.transport.is_closed and not client.answered

    run(scenario, SASL)


@pytest.mark.parametrize("is_relayed", [False, True], ids=["refused here", "relayed"])
def test_a_client_that_the_cluster_answers_may_send_long_requests(is_relayed: bool) -> None:
    """It has authenticated, with a mechanism of which no message is known to be the last."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        client = harness.client()
        if is_relayed:
            broker.answers[ApiKey.DELETE_TOPICS] = lambda version, frame: DeleteTopicsResponse(responses=[])
            await client.ask(*DELETE_TOPICS)
        else:
            answer = await client.ask(*BEAT, **BEAT_VALUES)
            assert answer.error_code == ErrorCode.POLICY_VIOLATION and broker.address in answer.error_message
        client.connection.data_received(struct.pack(">i", 1001))
        await harness.settle()
        assert not client.transport.is_closed

    run(scenario, SASL)
