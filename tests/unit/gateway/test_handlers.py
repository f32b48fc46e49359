"""Each handler but those of share fetching, through real bytes, between scripted roles."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kshare_core.configs import TOPIC_CONFIGS
from kshare_core.errors import ErrorCode
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.handlers.admin.describe_configs import NO_EFFECT
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import (
    MEMBER,
    OTHER_TOPIC_ID,
    TOPIC_ID,
    GatewayClient,
    GatewayHarness,
    run,
    topic,
    unknown_id,
    versions_of,
)

# ApiVersions, Metadata, DescribeCluster, FindCoordinator


@pytest.mark.parametrize("version", versions_of(ApiKey.API_VERSIONS))
def test_api_versions(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.API_VERSIONS, version)
        listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        served = {int(key): tuple(api.versions) for key, api in SERVED_APIS.items()}
        assert listed == {**served, ApiKey.PRODUCE: (0, SERVED_APIS[ApiKey.PRODUCE].versions.maximum)}
        if version >= 3:
            least = 0 if version >= 4 else 1
            supported = {entry.name: (entry.min_version, entry.max_version) for entry in answer.supported_features}
            levels = {"group.version": 1, "share.version": 2, "transaction.version": 2}
            assert supported == {name: (least, level) for name, level in levels.items()}
            finalized = {
                entry.name: (entry.min_version_level, entry.max_version_level) for entry in answer.finalized_features
            }
            assert finalized == {name: (level, level) for name, level in levels.items()}
            assert answer.finalized_features_epoch >= 0

    run(scenario)


@pytest.mark.parametrize(
    ("name", "software_version", "is_valid"),
    [
        ("librdkafka", "2.6.1", True),
        ("a", "1", True),
        ("Apache-Kafka.java", "4.3.1-rc0", True),
        ("", "1", False),
        ("a", "", False),
        ("two words", "1", False),
        ("-a", "1", False),
        ("a", "1.", False),
        ("a\n", "1", False),
        ("\u00e4", "1", False),
        ("a", "\u0661", False),
    ],
)
def test_software_names_are_those_that_kafka_allows(name: str, software_version: str, is_valid: bool) -> None:
    """ApiVersionsRequest.isValid; the client may ask again."""

    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        software = {"client_software_name": name, "client_software_version": software_version}
        for version in (3, 4):
            answer = await client.ask(ApiKey.API_VERSIONS, version, **software)
            assert int(answer.error_code) == (ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST)
            assert bool(answer.api_keys) == is_valid
        assert int((await client.ask(ApiKey.API_VERSIONS, 2)).error_code) == ErrorCode.NONE

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
def test_metadata_of_all_topics(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.METADATA, version, topics=() if version == 0 else None)
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (7, "gateway.example", 9092)
        assert [entry.name for entry in answer.topics] == ["__consumer_offsets", "mixed", "orders"]
        partitions = answer.topics[2].partitions
        assert [partition.partition_index for partition in partitions] == [0, 1, 2]
        assert {partition.leader_id for partition in partitions} == {7}
        if version >= 7:
            assert {partition.leader_epoch for partition in partitions} == {3}
        if version >= 10:
            assert answer.topics[2].topic_id == uuid.UUID(bytes=TOPIC_ID)
        assert len(answer.topics[0].partitions) == 50
        if version >= 1:
            assert answer.controller_id == 7
            assert [entry.is_internal for entry in answer.topics] == [True, False, False]

    run(scenario)


def test_metadata_by_name_and_id() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        topics = [
            {"name": "orders"},
            {"name": None, "topic_id": OTHER_TOPIC_ID},
            {"name": "missing"},
            {"name": None, "topic_id": unknown_id()},
            {"name": "bad name"},
        ]
        answer = await harness.client().ask(ApiKey.METADATA, 12, topics=topics, allow_auto_topic_creation=False)
        assert [(entry.name, int(entry.error_code)) for entry in answer.topics] == [
            ("orders", 0),
            ("mixed", 0),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
            ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        assert harness.catalog.requests("CreateTopics") == []

    run(scenario)


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("by_id", [{"name": None}, {"name": "orders", "topic_id": OTHER_TOPIC_ID}])
def test_metadata_by_id_in_a_version_whose_answer_has_no_null_name(version: int, by_id: dict[str, Any]) -> None:
    """As Kafka, which refuses all of the request; the answer was no valid one before."""

    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.METADATA, version, topics=[{"name": "orders"}, by_id])
        named = [(entry.name, int(entry.error_code)) for entry in answer.topics]
        assert named == [("orders", ErrorCode.INVALID_REQUEST), (by_id["name"] or "", ErrorCode.INVALID_REQUEST)]

    run(scenario)


@pytest.mark.parametrize(("enabled", "asked", "created"), [("true", True, 1), ("false", True, 0), ("true", False, 0)])
def test_metadata_creates_topics_where_both_sides_allow_it(enabled: str, asked: bool, created: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def create(request: Any, payload: memoryview) -> Any:
            harness.catalog.topics["new"] = topic("new", bytes([9] * 16), [1])
            return coordinator_pb2.CreateTopicsResponse(version=harness.catalog.change())

        harness.catalog.answers["CreateTopics"] = create
        wanted = [{"name": "new"}, {"name": "not/valid"}]
        answer = await harness.client().ask(ApiKey.METADATA, 12, topics=wanted, allow_auto_topic_creation=asked)
        assert len(harness.catalog.requests("CreateTopics")) == created
        expected = 0 if created else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert int(answer.topics[0].error_code) == expected
        for request in harness.catalog.requests("CreateTopics"):
            assert [entry.name for entry in request.topics] == ["new"]

    run(scenario, {"auto.create.topics.enable": enabled})


def test_partitions_are_spread_over_the_gateways_of_their_leader() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.extra_gateways = [
            coordinator_pb2.Node(role=coordinator_pb2.ROLE_GATEWAY, node_id=node_id, advertised_host="h")
            for node_id in (3, 8, 9)
        ]
        harness.catalog.topics["wide"] = topic("wide", bytes([5] * 16), [1, 2] * 16)
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        answer = await harness.client().ask(ApiKey.METADATA, 12, topics=[{"name": "wide"}])
        brokers = [partition.leader_id for partition in answer.topics[0].partitions]
        assert set(brokers[::2]) == {3, 8} and set(brokers[1::2]) == {7, 9}
        assert answer.controller_id == 7, "the gateway that was asked: the others may be gone"

    run(scenario)


def test_a_partition_without_a_live_leader() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        del harness.catalog.leaders[2]
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        answer = await harness.client().ask(ApiKey.METADATA, 12, topics=[{"name": "mixed"}])
        assert [(int(p.error_code), p.leader_id) for p in answer.topics[0].partitions] == [
            (0, 7),
            (ErrorCode.LEADER_NOT_AVAILABLE, -1),
        ]

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_CLUSTER))
def test_describe_cluster(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, version)
        assert (answer.cluster_id, answer.controller_id) == ("test-cluster", 7)
        assert [(broker.broker_id, broker.host, broker.port) for broker in answer.brokers] == [
            (7, "gateway.example", 9092)
        ]
        if version >= 1:
            for endpoint_type, code in (
                (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
                (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
            ):
                answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=endpoint_type)
                assert int(answer.error_code) == code

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.FIND_COORDINATOR))
def test_find_coordinator(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()

        async def find(key: str, key_type: int) -> tuple[int, int, str, int]:
            if version >= 4:
                answer = await client.ask(ApiKey.FIND_COORDINATOR, version, key_type=key_type, coordinator_keys=[key])
                (entry,) = answer.coordinators
                assert entry.key == key
            else:
                typed = {"key_type": key_type} if version >= 1 else {}
                entry = await client.ask(ApiKey.FIND_COORDINATOR, version, key=key, **typed)
            return int(entry.error_code), entry.node_id, entry.host, entry.port

        assert await find("group", 0) == (0, 7, "gateway.example", 9092)
        if version >= 1:
            assert await find("transaction", 1) == (0, 7, "gateway.example", 9092)
        share_key = "my:group:AAECAwQFBgcICQoLDA0ODw:0"
        if version >= 6:
            assert await find(share_key, 2) == (0, 7, "gateway.example", 9092)
            for wrong in ("group", "g:AAECAwQFBgcICQoLDA0ODw", ":AAECAwQFBgcICQoLDA0ODw:0", "g:x:0", "g:::"):
                assert (await find(wrong, 2))[0] == ErrorCode.INVALID_REQUEST
        elif version >= 1:
            assert (await find(share_key, 2))[0] == ErrorCode.INVALID_REQUEST

    run(scenario)


# Topics and configs


@pytest.mark.parametrize("version", versions_of(ApiKey.CREATE_TOPICS))
def test_create_topics_is_answered_when_the_gateway_knows_them(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def create(request: Any, payload: memoryview) -> Any:
            harness.catalog.topics["new"] = topic("new", bytes([9] * 16), [1, 1])
            answer = coordinator_pb2.CreateTopicsResponse(version=harness.catalog.change())
            added = answer.topics.add(name="new", topic_id=bytes([9] * 16), num_partitions=2)
            added.configs.add(name="retention.ms", value="1000")
            answer.topics.add(name="orders", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="is there")
            return answer

        harness.catalog.answers["CreateTopics"] = create
        client = harness.client()
        wanted = [
            {
                "name": "new",
                "num_partitions": 2,
                "replication_factor": 1,
                "configs": [{"name": "retention.ms", "value": "1000"}],
            },
            {"name": "orders", "num_partitions": 1, "replication_factor": 1},
            {
                "name": "placed",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": (99,)}],
            },
        ]
        answer = await client.ask(ApiKey.CREATE_TOPICS, version, topics=wanted, timeout=5000)
        assert [(entry.name, int(entry.error_code)) for entry in answer.topics] == [
            ("new", 0),
            ("orders", ErrorCode.TOPIC_ALREADY_EXISTS),
            ("placed", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ]
        (request,) = harness.catalog.requests("CreateTopics")
        assert [(entry.name, entry.num_partitions) for entry in request.topics] == [("new", 2), ("orders", 1)]
        if version >= 5:
            values = {entry.name: (entry.value, entry.config_source) for entry in answer.topics[0].configs}
            assert values["retention.ms"] == ("1000", 1) and values["cleanup.policy"] == ("delete", 5)
            assert answer.topics[0].num_partitions == 2
        known = await client.ask(ApiKey.METADATA, 12, topics=[{"name": "new"}])
        assert int(known.topics[0].error_code) == 0 and len(known.topics[0].partitions) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("name", "count", "codes"),
    [
        ("orders", 3, (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_PARTITIONS)),
        ("orders", 4, (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_REPLICA_ASSIGNMENT)),
        ("missing", 3, (ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)),
    ],
)
def test_whether_a_topic_exists_comes_before_its_assignment(name: str, count: int, codes: tuple[int, int]) -> None:
    """kafka-topics.sh --create --if-not-exists ignores TOPIC_ALREADY_EXISTS only."""

    async def scenario(harness: GatewayHarness) -> None:
        placed = [{"partition_index": 0, "broker_ids": (99,)}]
        created = [{"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": placed}]
        client = harness.client()
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, topics=created, timeout=1000)
        grown = [{"name": name, "count": count, "assignments": [{"broker_ids": (99,)}]}]
        growth = await client.ask(ApiKey.CREATE_PARTITIONS, 3, topics=grown, timeout=1000)
        assert (answer.topics[0].error_code, growth.results[0].error_code) == codes

    run(scenario)


def test_an_assignment_to_live_gateways_counts_its_partitions() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["CreateTopics"] = lambda request, payload: coordinator_pb2.CreateTopicsResponse()
        assignments = [{"partition_index": index, "broker_ids": (7,)} for index in (1, 0)]
        wanted = [{"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}]
        await harness.client().ask(ApiKey.CREATE_TOPICS, 7, topics=wanted, timeout=1000)
        (request,) = harness.catalog.requests("CreateTopics")
        assert (request.topics[0].num_partitions, list(request.topics[0].assigned_partitions)) == (-1, [1, 0])

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DELETE_TOPICS))
def test_delete_topics_is_answered_when_the_gateway_forgot_them(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def delete(request: Any, payload: memoryview) -> Any:
            del harness.catalog.topics["orders"]
            answer = coordinator_pb2.DeleteTopicsResponse(version=harness.catalog.change())
            answer.results.add(name="orders", topic_id=TOPIC_ID)
            return answer

        harness.catalog.answers["DeleteTopics"] = delete
        client = harness.client()
        if version >= 6:
            wanted: dict[str, Any] = {"topics": [{"name": None, "topic_id": TOPIC_ID}, {"name": None}]}
        else:
            wanted = {"topic_names": ["orders"]}
        answer = await client.ask(ApiKey.DELETE_TOPICS, version, timeout=5000, **wanted)
        codes = [int(entry.error_code) for entry in answer.responses]
        assert codes == ([0, ErrorCode.INVALID_REQUEST] if version >= 6 else [0])
        known = await client.ask(ApiKey.METADATA, 12, topics=[{"name": "orders"}])
        assert int(known.topics[0].error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DELETE_TOPICS))
def test_disabled_deletion_is_answered_with_an_error_that_the_version_knows(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        disabled = coordinator_pb2.DeleteTopicsResponse(version=harness.catalog.version)
        disabled.results.add(name="orders", error_code=ErrorCode.TOPIC_DELETION_DISABLED, error_message="disabled")
        harness.catalog.answers["DeleteTopics"] = lambda request, payload: disabled
        wanted: dict[str, Any] = {"topics": [{"name": "orders"}]} if version >= 6 else {"topic_names": ["orders"]}
        answer = await harness.client().ask(ApiKey.DELETE_TOPICS, version, timeout=5000, **wanted)
        expected = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert [int(entry.error_code) for entry in answer.responses] == [expected]

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_CONFIGS))
def test_describe_configs(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1], **{"retention.ms": "5000"})
        harness.catalog.group_configs["workers"] = {"share.isolation.level": "read_committed"}
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        resources = [
            {"resource_type": 2, "resource_name": "orders", "configuration_keys": None},
            {"resource_type": 32, "resource_name": "workers", "configuration_keys": None},
            {"resource_type": 4, "resource_name": "7", "configuration_keys": ["num.partitions", "message.max.bytes"]},
            {"resource_type": 2, "resource_name": "missing", "configuration_keys": None},
            {"resource_type": 4, "resource_name": "99", "configuration_keys": None},
            {"resource_type": 8, "resource_name": "7", "configuration_keys": None},
        ]
        client = harness.client()
        answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=resources, include_synonyms=True)
        assert [int(result.error_code) for result in answer.results] == [
            0,
            0,
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        orders, workers, broker = ({entry.name: entry for entry in result.configs} for result in answer.results[:3])
        assert (orders["retention.ms"].value, orders["retention.ms"].config_source) == ("5000", 1)
        assert orders["max.message.bytes"].config_source == 4 and orders["max.message.bytes"].value == "2000000"
        synonyms = [(synonym.name, synonym.source) for synonym in orders["max.message.bytes"].synonyms]
        assert synonyms == [("message.max.bytes", 4), ("message.max.bytes", 5)]
        assert orders["flush.ms"].synonyms == () and orders["leader.replication.throttled.replicas"].synonyms == ()
        assert "internal.segment.bytes" not in orders
        assert (workers["share.isolation.level"].value, workers["share.isolation.level"].config_source) == (
            "read_committed",
            8,
        )
        assert broker.keys() == {"num.partitions", "message.max.bytes"}
        assert (broker["num.partitions"].value, broker["num.partitions"].config_source) == ("1", 5)
        assert broker["message.max.bytes"].config_source == 4
        if version >= 3:
            assert orders["retention.ms"].config_type == 5 and orders["retention.ms"].documentation is None
            answer = await client.ask(
                ApiKey.DESCRIBE_CONFIGS, version, resources=resources[:1], include_documentation=True
            )
            told = {entry.name: entry.documentation for entry in answer.results[0].configs}
            assert told == {
                name: definition.documentation or NO_EFFECT
                for name, definition in TOPIC_CONFIGS.items()
                if not definition.is_internal
            }
            assert all(entry.synonyms == () for entry in answer.results[0].configs)

    run(scenario, {"message.max.bytes": "2000000"})


@pytest.mark.parametrize("version", versions_of(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_incremental_alter_configs(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def alter(request: Any, payload: memoryview) -> Any:
            harness.catalog.group_configs["workers"] = {"share.isolation.level": "read_committed"}
            answer = coordinator_pb2.IncrementalAlterConfigsResponse(version=harness.catalog.change())
            answer.results.add(resource_type=32, resource_name="workers")
            return answer

        harness.catalog.answers["IncrementalAlterConfigs"] = alter
        client = harness.client()
        configs = [
            {"name": "share.isolation.level", "config_operation": 0, "value": "read_committed"},
            {"name": "share.session.timeout.ms", "config_operation": 1, "value": None},
        ]
        resources = [{"resource_type": 32, "resource_name": "workers", "configs": configs}]
        answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=resources)
        assert [(int(entry.error_code), entry.resource_name) for entry in answer.responses] == [(0, "workers")]
        (request,) = harness.catalog.requests("IncrementalAlterConfigs")
        sent = [(entry.name, entry.config_operation, entry.value_is_null) for entry in request.resources[0].configs]
        assert sent == [("share.isolation.level", 0, False), ("share.session.timeout.ms", 1, True)]

    run(scenario)


def test_configs_of_groups_whose_ids_are_too_long_are_refused_here() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        known, new = "k" * 2_000, "n" * 2_000
        harness.catalog.group_configs[known] = {"share.isolation.level": "read_committed"}
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)

        def alter(request: Any, payload: memoryview) -> Any:
            answer = coordinator_pb2.IncrementalAlterConfigsResponse(version=harness.catalog.change())
            for resource in request.resources:
                answer.results.add(resource_type=32, resource_name=resource.resource_name)
            return answer

        harness.catalog.answers["IncrementalAlterConfigs"] = alter
        configs = [{"name": "share.isolation.level", "config_operation": 1, "value": None}]
        resources = [{"resource_type": 32, "resource_name": name, "configs": configs} for name in (new, known)]
        answer = await harness.client().ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources)
        found = {entry.resource_name: ErrorCode(entry.error_code) for entry in answer.responses}
        assert found == {known: ErrorCode.NONE, new: ErrorCode.INVALID_GROUP_ID}
        (request,) = harness.catalog.requests("IncrementalAlterConfigs")
        assert [resource.resource_name for resource in request.resources] == [known]

    run(scenario)


# Groups


def test_share_group_heartbeat() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answers = [
            coordinator_pb2.ShareGroupHeartbeatResponse(
                member_id=MEMBER,
                member_epoch=2,
                heartbeat_interval_ms=5000,
                has_assignment=True,
                assignment=[coordinator_pb2.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 2])],
            ),
            coordinator_pb2.ShareGroupHeartbeatResponse(member_id=MEMBER, member_epoch=2, heartbeat_interval_ms=5000),
            coordinator_pb2.ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, error_message="who"),
        ]
        harness.catalog.answers["ShareGroupHeartbeat"] = lambda request, payload: answers.pop(0)
        client = harness.client()
        who = {"group_id": "workers", "member_id": MEMBER}
        answer = await client.ask(
            ApiKey.SHARE_GROUP_HEARTBEAT, 1, member_epoch=0, subscribed_topic_names=["orders"], **who
        )
        (assigned,) = answer.assignment.topic_partitions
        assert (assigned.topic_id.bytes, assigned.partitions) == (TOPIC_ID, (0, 2))
        assert (answer.member_epoch, answer.heartbeat_interval.total_seconds()) == (2, 5.0)
        answer = await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, member_epoch=2, **who)
        assert answer.assignment is None
        answer = await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, member_epoch=2, **who)
        assert (int(answer.error_code), answer.error_message) == (ErrorCode.UNKNOWN_MEMBER_ID, "who")
        first, second, _ = harness.catalog.requests("ShareGroupHeartbeat")
        assert (first.client_id, first.client_host, first.has_subscribed_topic_names) == ("tester", "/10.1.2.3", True)
        assert list(first.subscribed_topic_names) == ["orders"] and not second.has_subscribed_topic_names

    run(scenario)


@pytest.mark.parametrize("member_id", ["", "m" * 37])
def test_a_member_id_that_is_no_uuid_is_refused_before_topics_are_looked_at(member_id: str) -> None:
    """As in Kafka, where ShareGroupHeartbeat and ShareFetch have the same limit of 36 characters."""

    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        values = {"group_id": "g", "member_id": member_id, "member_epoch": 0, "subscribed_topic_names": ["orders"]}
        answer = await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **values)
        assert answer.error_message == "Invalid member id in the request."
        assert int(answer.error_code) == ErrorCode.INVALID_REQUEST
        assert not harness.catalog.requests("ShareGroupHeartbeat")

    run(scenario)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("::1", "/0:0:0:0:0:0:0:1"), ("::ffff:10.1.2.3", "/10.1.2.3"), ("fd00::a:0", "/fd00:0:0:0:0:0:a:0")],
)
def test_the_host_of_a_client_is_written_as_by_java(host: str, shown: str) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["ShareGroupHeartbeat"] = lambda request, payload: (
            coordinator_pb2.ShareGroupHeartbeatResponse(member_id=MEMBER, member_epoch=1)
        )
        client = GatewayClient(harness.node, host=host)
        await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, group_id="g", member_id=MEMBER, member_epoch=0)
        (request,) = harness.catalog.requests("ShareGroupHeartbeat")
        assert request.client_host == shown

    run(scenario)


def test_the_coordinator_is_away() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        who = {"group_id": "workers", "member_id": MEMBER, "member_epoch": 1}
        answer = await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **who)
        assert int(answer.error_code) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await client.ask(ApiKey.LIST_GROUPS, 5)
        assert int(answer.error_code) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=["workers"])
        assert int(answer.groups[0].error_code) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 4)
        assert int(answer.error_code) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a coordinator has no key here"
        answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id="pay")
        assert int(answer.error_code) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        wanted = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, topics=wanted, timeout=1000)
        assert int(answer.topics[0].error_code) == ErrorCode.REQUEST_TIMED_OUT
        answer = await client.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "orders"}], timeout=1000)
        assert int(answer.responses[0].error_code) == ErrorCode.REQUEST_TIMED_OUT

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.LIST_GROUPS))
def test_list_groups(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = coordinator_pb2.ListGroupsResponse()
        answer.groups.add(group_id="workers", protocol_type="share", group_state="Stable", group_type="share")
        harness.catalog.answers["ListGroups"] = lambda request, payload: answer
        filters: dict[str, Any] = {"states_filter": ["Stable"]} if version >= 4 else {}
        if version >= 5:
            filters["types_filter"] = ["share"]
        (group,) = (await harness.client().ask(ApiKey.LIST_GROUPS, version, **filters)).groups
        assert (group.group_id, group.protocol_type) == ("workers", "share")
        (request,) = harness.catalog.requests("ListGroups")
        assert list(request.states_filter) == filters.get("states_filter", [])
        assert list(request.types_filter) == filters.get("types_filter", [])

    run(scenario)


def test_share_group_describe() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = coordinator_pb2.ShareGroupDescribeResponse()
        group = answer.groups.add(group_id="workers", group_state="Stable", group_epoch=4, assignor_name="simple")
        member = group.members.add(member_id=MEMBER, client_id="c", client_host="/h", subscribed_topic_names=["orders"])
        member.assignment.add(topic_id=TOPIC_ID, topic_name="orders", partitions=[1])
        answer.groups.add(group_id="gone", error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message="no such group")
        harness.catalog.answers["ShareGroupDescribe"] = lambda request, payload: answer
        described = await harness.client().ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=["workers", "gone"])
        workers, gone = described.groups
        assert (workers.group_state, workers.group_epoch, workers.members[0].member_id) == ("Stable", 4, MEMBER)
        assert workers.members[0].assignment.topic_partitions[0].partitions == (1,)
        assert (int(gone.error_code), gone.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "no such group")

    run(scenario)
