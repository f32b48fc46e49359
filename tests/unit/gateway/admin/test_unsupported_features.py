"""Requests for features without support, in every version: quotas, users, elections and more; sizes of logs."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import is_flexible
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, build, request_frame, run, versions_of


@pytest.mark.parametrize("version", versions_of(ApiKey.ELECT_LEADERS))
def test_no_leader_is_elected(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        async def elect(partitions: Any, **fields: Any) -> dict[tuple[str, int], int]:
            answer = await harness.client().ask(
                ApiKey.ELECT_LEADERS, version, topic_partitions=partitions, timeout=1000, **fields
            )
            return {
                (topic.topic, part.partition_id): int(part.error_code)
                for topic in answer.replica_election_results
                for part in topic.partition_result
            }

        asked = [{"topic": "mixed", "partitions": [0, 1, 2]}, {"topic": "missing", "partitions": [0]}]
        assert await elect(asked) == {
            ("mixed", 0): E.ELECTION_NOT_NEEDED,
            ("mixed", 1): E.ELECTION_NOT_NEEDED,
            ("mixed", 2): E.UNKNOWN_TOPIC_OR_PARTITION,
            ("missing", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await elect(None) == {}, "of all partitions only those that need an election are named"
        del harness.catalog.leaders[2]
        harness.catalog.change()
        await harness.settle()
        away = {0: E.PREFERRED_LEADER_NOT_AVAILABLE, 1: E.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        for election_type, code in away.items() if version else [(0, E.PREFERRED_LEADER_NOT_AVAILABLE)]:
            fields = {"election_type": election_type} if version else {}
            assert await elect(None, **fields) == {("mixed", 1): code}

    run(scenario)


def test_an_election_of_an_unknown_type() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        fields: dict[str, Any] = {"election_type": 5, "topic_partitions": None, "timeout": 1000}
        answer = await harness.client().ask(ApiKey.ELECT_LEADERS, 2, **fields)
        assert answer.error_code == E.INVALID_REQUEST

    run(scenario)


@pytest.mark.parametrize("asked", [None, [{"name": "orders", "partition_indexes": [0, 9]}]])
def test_there_are_no_reassignments(asked: Any) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=asked, timeout=1000)
        assert (int(answer.error_code), answer.topics) == (0, ())

    run(scenario)


@pytest.mark.parametrize(
    ("name", "partition", "replicas", "code"),
    [
        ("orders", 0, [7], E.NONE),
        ("orders", 0, [9], E.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, [1, 1], E.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, [], E.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, None, E.NO_REASSIGNMENT_IN_PROGRESS),
        ("orders", 3, [1], E.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, None, E.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
def test_a_partition_keeps_its_replica(
    version: int, name: str, partition: int, replicas: list[int] | None, code: E
) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        topics = [{"name": name, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
        fields = {"allow_replication_factor_change": False} if version else {}
        answer = await harness.client().ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, topics=topics, timeout=1000, **fields
        )
        (result,) = answer.responses[0].partitions
        assert (answer.responses[0].name, result.partition_index, result.error_code) == (name, partition, code)
        assert bool(result.error_message) == (code != E.NONE)
        assert not version or answer.allow_replication_factor_change is False

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_REPLICA_LOG_DIRS))
def test_a_log_stays_in_its_directory(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        async def codes(path: str, name: str) -> list[int]:
            dirs = [{"path": path, "topics": [{"name": name, "partitions": [0, 1, 9]}]}]
            answer = await harness.client().ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
            return [int(entry.error_code) for entry in answer.results[0].partitions]

        gone, unknown = E.LOG_DIR_NOT_FOUND, E.UNKNOWN_TOPIC_OR_PARTITION
        assert await codes("leader-1", "mixed") == [E.NONE, gone, unknown]
        assert await codes("leader-2", "mixed") == [gone, E.NONE, unknown]
        assert await codes("leader-2", "none") == [unknown] * 3
        assert await codes("/nowhere", "mixed") == [gone] * 3

    run(scenario)


def _filter(*components: tuple[str, int, str | None]) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_CLIENT_QUOTAS))
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((), E.NONE),
        ((("user", 0, "alice"),), E.NONE),
        ((("user", 1, None), ("client-id", 2, None)), E.NONE),
        ((("ip", 0, "10.0.0.1"),), E.NONE),
        ((("", 0, "x"),), E.INVALID_REQUEST),
        ((("user", 0, "a"), ("user", 0, "b")), E.INVALID_REQUEST),
        ((("planet", 0, "earth"),), E.UNSUPPORTED_VERSION),
        ((("user", 3, None),), E.INVALID_REQUEST),
        ((("user", 1, "named"),), E.INVALID_REQUEST),
        ((("user", 0, None),), E.INVALID_REQUEST),
        ((("user", 2, "named"),), E.INVALID_REQUEST),
        ((("ip", 2, None), ("user", 2, None)), E.INVALID_REQUEST),
    ],
)
def test_there_are_no_quotas(version: int, components: tuple[tuple[str, int, str | None], ...], code: E) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        wanted = {"components": _filter(*components), "strict": True}
        answer = await harness.client().ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, **wanted)
        assert int(answer.error_code) == code
        assert answer.entries == (None if code else ())

    run(scenario)


@pytest.mark.parametrize(
    ("users", "codes"),
    [
        (None, {}),
        ([], {}),
        (["alice"], {"alice": E.RESOURCE_NOT_FOUND}),
        (["alice", "bob", "alice"], {"alice": E.DUPLICATE_RESOURCE, "bob": E.RESOURCE_NOT_FOUND}),
    ],
)
def test_there_are_no_users(users: list[str] | None, codes: dict[str, E]) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        asked = None if users is None else [{"name": name} for name in users]
        answer = await harness.client().ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=asked)
        assert int(answer.error_code) == 0
        assert {result.user: int(result.error_code) for result in answer.results} == codes

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_ACLS))
def test_there_is_no_authorizer(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        wanted = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        described = await client.ask(ApiKey.DESCRIBE_ACLS, version, **wanted)
        assert described.error_code == E.SECURITY_DISABLED
        acl = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:alice"}
        acl |= {"host": "*", "operation": 3, "permission_type": 3}
        created = await client.ask(ApiKey.CREATE_ACLS, version, creations=[acl, acl])
        assert [int(result.error_code) for result in created.results] == [E.SECURITY_DISABLED] * 2
        deleted = await client.ask(ApiKey.DELETE_ACLS, version, filters=[wanted])
        assert [int(result.error_code) for result in deleted.filter_results] == [E.SECURITY_DISABLED]

    run(scenario)


TOKEN_FIELDS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CREATE_DELEGATION_TOKEN: {"max_lifetime": 1},
    ApiKey.RENEW_DELEGATION_TOKEN: {"hmac": b"x", "renew_period": 1},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {"hmac": b"x", "expiry_time_period": 1},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {"owners": None},
}


@pytest.mark.parametrize("api_key", TOKEN_FIELDS)
def test_there_are_no_delegation_tokens(api_key: ApiKey) -> None:
    fields = TOKEN_FIELDS[api_key]

    async def scenario(harness: GatewayHarness) -> None:
        for version in versions_of(api_key):
            client = harness.client()
            raw = client.expect_raw(1)  # kio reads no time that is not known
            client.connection.data_received(request_frame(api_key, version, 1, build(api_key, version, fields)))
            body = await asyncio.wait_for(raw, 5)
            (code,) = struct.unpack_from(">h", body, 1 if is_flexible(api_key, version) else 0)
            assert code == E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    run(scenario)


def test_no_group_is_a_streams_group() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(ApiKey.STREAMS_GROUP_DESCRIBE, 0, group_ids=["one", ""])
        found = [(group.group_id, int(group.error_code)) for group in answer.groups]
        assert found == [("one", E.GROUP_ID_NOT_FOUND), ("", E.GROUP_ID_NOT_FOUND)]

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_LOG_DIRS))
def test_sizes_of_logs_are_asked_from_their_leaders(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def sizes(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.DescribeLogDirsResponse()
            for entry in request.partitions:
                size = 100 * entry.topic_id[0] + entry.partition
                answer.results.add(topic_id=entry.topic_id, partition=entry.partition, size_bytes=size)
            return answer

        async def described(topics: Any) -> dict[str, dict[tuple[str, int], int] | int]:
            answer = await harness.client().ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=topics)
            return {
                directory.log_dir: int(directory.error_code)
                or {
                    (topic.name, part.partition_index): part.partition_size
                    for topic in directory.topics
                    for part in topic.partitions
                }
                for directory in answer.results
            }

        for leader in harness.leaders.values():
            leader.answers["DescribeLogDirs"] = sizes
        orders, mixed = 100 * TOPIC_ID[0], 100 * OTHER_TOPIC_ID[0]
        asked = [{"topic": "orders", "partitions": [2, 2, 9]}, {"topic": "missing", "partitions": [0]}]
        assert await described(asked) == {"leader-1": {("orders", 2): orders + 2}, "leader-2": {}}
        here = {("mixed", 0): mixed, **{("orders", index): orders + index for index in range(3)}}
        assert await described(None) == {"leader-1": here, "leader-2": {("mixed", 1): mixed + 1}}
        del harness.leaders[2].answers["DescribeLogDirs"]
        assert await described(None) == {"leader-1": here, "leader-2": E.KAFKA_STORAGE_ERROR}

    run(scenario)


def test_produce_is_announced_from_version_0_on() -> None:
    """librdkafka before 2.11 takes a higher one for a broker that knows no compression (KAFKA-18659)."""

    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(
            ApiKey.API_VERSIONS, 4, client_software_name="t", client_software_version="1"
        )
        (produce,) = (entry for entry in answer.api_keys if entry.api_key == ApiKey.PRODUCE)
        assert (produce.min_version, produce.max_version) == (0, 13)
        client = harness.client()
        client.connection.data_received(struct.pack(">ihhih", 10, ApiKey.PRODUCE, 0, 1, -1))
        await harness.settle()
        assert client.transport.is_closed, "as in Kafka"

    run(scenario)
