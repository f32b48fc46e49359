"""Keys 33, 74, 75, 91 and 92, and configs that are altered while the gateway runs, through real bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayClient, GatewayHarness, run, versions_of

TOPIC, BROKER, GROUP = 2, 4, 32
NOBODY = bytes(16)


def test_alter_share_group_offsets() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        results = [
            pb.AlterShareGroupOffsetsResponse.Result(topic_id=TOPIC_ID, topic_name="orders", partition=0),
            pb.AlterShareGroupOffsetsResponse.Result(
                topic_id=TOPIC_ID, topic_name="orders", partition=1, error_code=15, error_message="later"
            ),
            pb.AlterShareGroupOffsetsResponse.Result(topic_id=NOBODY, topic_name="x", partition=0, error_code=3),
        ]
        answers = iter(
            [
                pb.AlterShareGroupOffsetsResponse(results=results),
                pb.AlterShareGroupOffsetsResponse(error_code=ErrorCode.NON_EMPTY_GROUP, error_message="members"),
            ]
        )
        harness.catalog.answers["AlterShareGroupOffsets"] = lambda request, payload: next(answers)
        partitions = [{"partition_index": index, "start_offset": 5 + index} for index in (0, 1)]
        asked = {"group_id": "g", "topics": [{"topic_name": "orders", "partitions": partitions}]}
        client = harness.client()
        answer = await client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, **asked)
        assert [
            (topic.topic_name, topic.topic_id, [(p.partition_index, int(p.error_code)) for p in topic.partitions])
            for topic in answer.responses
        ] == [("orders", uuid.UUID(bytes=TOPIC_ID), [(0, 0), (1, 15)]), ("x", None, [(0, 3)])]
        assert answer.responses[0].partitions[1].error_message == "later"
        refused = await client.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, **asked)
        assert (int(refused.error_code), refused.error_message, refused.responses) == (68, "members", ())
        request, _ = harness.catalog.requests("AlterShareGroupOffsets")
        assert [
            (topic.topic_name, [(entry.partition, entry.start_offset) for entry in topic.partitions])
            for topic in request.topics
        ] == [("orders", [(0, 5), (1, 6)])]

    run(scenario)


def test_delete_share_group_offsets() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        result = pb.DeleteShareGroupOffsetsResponse.Result
        results = [
            result(topic_id=TOPIC_ID, topic_name="orders"),
            result(topic_id=NOBODY, topic_name="x", error_code=3, error_message="none"),
        ]
        answers = iter(
            [
                pb.DeleteShareGroupOffsetsResponse(results=results),
                pb.DeleteShareGroupOffsetsResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message="no group"),
            ]
        )
        harness.catalog.answers["DeleteShareGroupOffsets"] = lambda request, payload: next(answers)
        asked = {"group_id": "g", "topics": [{"topic_name": "orders"}, {"topic_name": "x"}]}
        client = harness.client()
        answer = await client.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, **asked)
        assert [(topic.topic_name, int(topic.error_code), topic.error_message) for topic in answer.responses] == [
            ("orders", 0, None),
            ("x", 3, "none"),
        ]
        refused = await client.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, **asked)
        assert (int(refused.error_code), refused.error_message) == (69, "no group")
        assert list(harness.catalog.requests("DeleteShareGroupOffsets")[0].topic_names) == ["orders", "x"]

    run(scenario)


@pytest.mark.parametrize("api", [ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS])
def test_a_coordinator_that_is_away(api: ApiKey) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(api, 0, group_id="g", topics=[])
        assert int(answer.error_code) == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario)


async def pages(harness: GatewayHarness, limit: int, names: tuple[str, ...] = ()) -> list[list[tuple[str, list[int]]]]:
    """Topics and partitions of each page."""
    client = harness.client()
    found: list[list[tuple[str, list[int]]]] = []
    cursor: dict[str, Any] | None = None
    while True:
        answer = await client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append([(topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.topics])
        if answer.next_cursor is None:
            return found
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }
        assert len(found) < 100


def test_topics_come_in_pages() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        named = ("orders", "missing", "mixed")
        assert await pages(harness, 100, named) == [[("missing", []), ("mixed", [0, 1]), ("orders", [0, 1, 2])]]
        assert await pages(harness, 2, named) == [
            [("missing", []), ("mixed", [0, 1])],
            [("orders", [0, 1])],
            [("orders", [2])],
        ]
        assert await pages(harness, 0, ("mixed",)) == [[("mixed", [0])], [("mixed", [1])]], "at least one"
        every = await pages(harness, 7)
        assert [name for page in every for name, _ in page].count("__consumer_offsets") == 7 + 1
        assert sum(len(parts) for page in every for name, parts in page if name == "__consumer_offsets") == 50
        assert every[-1][-1] == ("orders", [0, 1, 2])

    run(scenario, {"max.request.partition.size.limit": "7"})


def test_a_partition_without_a_leader_and_cursors_that_are_none() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        del harness.catalog.leaders[2]
        harness.catalog.change()
        await harness.settle()
        answer = await client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "mixed"}], response_partition_limit=10
        )
        (topic,) = answer.topics
        assert [(p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [
            (7, (7,), (7,)),
            (-1, (7,), (7,)),
        ]
        for cursor in ({"topic_name": "orders", "partition_index": 0}, {"topic_name": "mixed", "partition_index": -1}):
            refused = await client.ask(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                0,
                topics=[{"name": "mixed"}],
                response_partition_limit=10,
                cursor=cursor,
            )
            assert [(topic.name, int(topic.error_code)) for topic in refused.topics] == [
                ("mixed", ErrorCode.INVALID_REQUEST)
            ]

    run(scenario)


def test_config_resources() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        harness.catalog.group_configs = {"workers": {"share.isolation.level": "read_committed"}, "plain": {}}
        harness.catalog.change()
        await harness.settle()
        assert (await client.ask(ApiKey.LIST_CONFIG_RESOURCES, 0)).config_resources == ()

        async def listed(*kinds: int) -> list[tuple[int, str]]:
            answer = await client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=kinds)
            assert int(answer.error_code) == 0
            return sorted((int(entry.resource_type), entry.resource_name) for entry in answer.config_resources)

        topics = [(TOPIC, name) for name in ("__consumer_offsets", "mixed", "orders")]
        assert await listed(TOPIC) == topics
        assert await listed(GROUP) == [(GROUP, "workers")]
        assert await listed() == [*topics, (BROKER, "7"), (8, "7"), (GROUP, "workers")]
        answer = await client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[TOPIC, 99])
        assert int(answer.error_code) == ErrorCode.UNSUPPORTED_VERSION

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_CONFIGS))
def test_alter_configs_replaces_all(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def altered(request: Any, payload: memoryview) -> Any:
            answer = pb.IncrementalAlterConfigsResponse(version=harness.catalog.change())
            for resource in request.resources:
                answer.results.add(resource_type=resource.resource_type, resource_name=resource.resource_name)
            return answer

        harness.catalog.answers["IncrementalAlterConfigs"] = altered
        configs = [{"name": "retention.ms", "value": "5"}, {"name": "segment.ms", "value": None}]
        resources = [
            {"resource_type": TOPIC, "resource_name": "orders", "configs": configs},
            {"resource_type": BROKER, "resource_name": "8", "configs": []},
            {"resource_type": BROKER, "resource_name": "x", "configs": []},
        ]
        answer = await harness.client().ask(ApiKey.ALTER_CONFIGS, version, resources=resources)
        assert [(entry.resource_name, int(entry.error_code)) for entry in answer.responses] == [
            ("orders", 0),
            ("8", ErrorCode.INVALID_REQUEST),
            ("x", ErrorCode.INVALID_REQUEST),
        ]
        (request,) = harness.catalog.requests("IncrementalAlterConfigs")
        (resource,) = request.resources
        assert resource.replaces_all
        assert [(entry.name, entry.value, entry.value_is_null) for entry in resource.configs] == [
            ("retention.ms", "5", False),
            ("segment.ms", "", True),
        ]

    run(scenario)


async def described(client: GatewayClient, name: str, kind: int = BROKER) -> dict[str, tuple[Any, int]]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True)
    return {entry.name: (entry.value, int(entry.config_source)) for entry in answer.results[0].configs}


def test_altered_broker_configs_are_in_force_and_described() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        harness.catalog.broker_configs = {
            "": {"max.connections": "3", "message.max.bytes": "3000000", "nobody.knows.this": "secret"},
            "7": {"max.connections": "2"},
            "8": {"max.connections": "1"},
        }
        harness.catalog.change()
        await harness.settle()
        own = await described(client, "7")
        assert own["max.connections"] == ("2", 2)
        assert own["message.max.bytes"] == ("3000000", 3)
        assert own["nobody.knows.this"] == (None, 3), "it might be a password"
        assert await described(client, "") == {
            "max.connections": ("3", 3),
            "message.max.bytes": ("3000000", 3),
            "nobody.knows.this": (None, 3),
        }
        assert (await described(client, "orders", TOPIC))["max.message.bytes"] == ("3000000", 3)
        second, third = harness.client(), harness.client()
        await harness.settle()
        assert [each.transport.is_closed for each in (client, second, third)] == [False, False, True]
        harness.catalog.broker_configs = {}
        harness.catalog.change()
        await harness.settle()
        assert (await described(client, "7"))["max.connections"] == (str(2**31 - 1), 5)

    run(scenario)
