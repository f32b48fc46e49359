"""`__share_group_state` at the gateway: every client can see and read it, and none can change it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.internal_topics import STATE_TOPIC, STATE_TOPIC_ID
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.record_batches import patch
from support.gateway.harness import TOPIC_ID, GatewayHarness, run, versions_of
from support.wire.record_building import build_batch

STATE_PARTITIONS = 4
NO_MORE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def with_state_topic(scenario: Callable[[GatewayHarness], Awaitable[None]]) -> None:
    """State partitions 0 and 2 are share coordinator 5's, 1 is 6's and 3 nobody's."""

    async def whole(harness: GatewayHarness) -> None:
        harness.catalog.state_partition_count = STATE_PARTITIONS
        harness.catalog.state_partition_owners = {0: 5, 1: 6, 2: 5}
        harness.catalog.change()
        await harness.settle()
        await scenario(harness)

    run(whole)


async def metadata(harness: GatewayHarness, version: int, **fields: Any) -> dict[str, Any]:
    answer = await harness.client().ask(ApiKey.METADATA, version, **fields)
    return {topic.name: topic for topic in answer.topics}


@pytest.mark.parametrize("version", versions_of(ApiKey.METADATA))
def test_it_is_among_all_topics_as_an_internal_one(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        found = await metadata(harness, version, topics=[] if version == 0 else None)
        assert list(found) == sorted(found) and {STATE_TOPIC, "mixed", "orders"} <= found.keys()
        topic = found[STATE_TOPIC]
        if version >= 1:
            assert topic.is_internal and not found["orders"].is_internal
        if version >= 10:
            assert topic.topic_id.bytes == STATE_TOPIC_ID
        away = ErrorCode.LEADER_NOT_AVAILABLE
        assert [
            (partition.partition_index, partition.leader_id, partition.error_code) for partition in topic.partitions
        ] == [(0, 7, 0), (1, 7, 0), (2, 7, 0), (3, -1, away)]

    with_state_topic(scenario)


def test_it_is_found_by_name_and_by_id() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        by_name = await metadata(harness, 12, topics=[{"name": STATE_TOPIC}])
        by_id = await metadata(harness, 12, topics=[{"name": None, "topic_id": STATE_TOPIC_ID}])
        assert by_name[STATE_TOPIC] == by_id[STATE_TOPIC]
        assert by_name[STATE_TOPIC].error_code == ErrorCode.NONE

    with_state_topic(scenario)


def test_without_state_partitions_there_is_none_and_clients_do_not_make_it() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        assert STATE_TOPIC not in await metadata(harness, 12, topics=None)
        harness.catalog.answers["CreateTopics"] = lambda request, payload: coordinator_pb2.CreateTopicsResponse(
            topics=[
                coordinator_pb2.CreateTopicsResponse.CreatableTopicResult(
                    name=STATE_TOPIC, error_code=ErrorCode.INVALID_REQUEST
                )
            ]
        )
        found = await metadata(harness, 12, topics=[{"name": STATE_TOPIC}], allow_auto_topic_creation=True)
        assert found[STATE_TOPIC].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topics = [{"topic": STATE_TOPIC, "partitions": [{"partition": 0, "fetch_offset": 0}]}]
        answer = await harness.client().ask(ApiKey.FETCH, 12, topics=topics, max_bytes=100, session_epoch=-1)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_asking_for_it_by_name_makes_no_topic() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        await metadata(harness, 12, topics=[{"name": STATE_TOPIC}], allow_auto_topic_creation=True)
        assert harness.catalog.requests("CreateTopics") == []

    with_state_topic(scenario)


def batch_at(offset: int) -> bytes:
    return patch(build_batch([b"state"]), offset, 0)


def fetched(request: Any, payload: memoryview) -> Any:
    """One record batch for each partition, at its fetch offset."""
    answer = leader_pb2.FetchResponse()
    pieces = []
    for asked in request.partitions:
        batch = batch_at(asked.fetch_offset)
        pieces.append(batch)
        answer.partitions.add(
            topic_id=asked.topic_id,
            partition=asked.partition,
            high_watermark=100 + asked.partition,
            last_stable_offset=100 + asked.partition,
            records_length=len(batch),
        )
    return answer, pieces


def asked_topics(version: int, *topics: tuple[str, bytes, list[int]]) -> list[dict[str, Any]]:
    return [
        {
            **({"topic_id": topic_id} if version >= 13 else {"topic": name}),
            "partitions": [
                {"partition": partition, "fetch_offset": 10 + partition, "partition_max_bytes": 1000}
                for partition in partitions
            ],
        }
        for name, topic_id, partitions in topics
    ]


@pytest.mark.parametrize("version", versions_of(ApiKey.FETCH))
def test_its_records_come_from_the_share_coordinators(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for share_coordinator in harness.share_coordinators.values():
            share_coordinator.answers["FetchStateTopic"] = fetched
        harness.leaders[1].answers["Fetch"] = fetched
        topics = asked_topics(version, (STATE_TOPIC, STATE_TOPIC_ID, [0, 1, 2, 3, 9]), ("orders", TOPIC_ID, [0]))
        full = {"session_epoch": -1} if version >= 7 else {}
        answer = await harness.client().ask(
            ApiKey.FETCH, version, topics=topics, max_bytes=10_000, min_bytes=1, max_wait=500, **full
        )
        state, orders = answer.responses
        assert [
            (partition.partition_index, partition.error_code, partition.high_watermark)
            for partition in state.partitions
        ] == [
            (0, 0, 100),
            (1, 0, 101),
            (2, 0, 102),
            (3, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
            (9, NO_MORE, -1),
        ]
        assert bytes(state.partitions[2].records) == batch_at(12)
        assert bytes(orders.partitions[0].records) == batch_at(10)
        asked = {
            node_id: [
                (each.topic_id, each.partition, each.fetch_offset, each.partition_max_bytes)
                for request in share_coordinator.requests("FetchStateTopic")
                for each in request.partitions
            ]
            for node_id, share_coordinator in harness.share_coordinators.items()
        }
        assert asked == {
            5: [(STATE_TOPIC_ID, 0, 10, 1000), (STATE_TOPIC_ID, 2, 12, 1000)],
            6: [(STATE_TOPIC_ID, 1, 11, 1000)],
        }

    with_state_topic(scenario)


def test_a_fetch_of_one_share_coordinator_waits_there() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.share_coordinators[5].answers["FetchStateTopic"] = fetched
        topics = asked_topics(13, (STATE_TOPIC, STATE_TOPIC_ID, [0, 2]))
        await harness.client().ask(
            ApiKey.FETCH, 13, topics=topics, max_bytes=10_000, min_bytes=7, max_wait=500, session_epoch=-1
        )
        (asked,) = harness.share_coordinators[5].requests("FetchStateTopic")
        assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (500, 7, 10_000)

    with_state_topic(scenario)


def test_a_share_coordinator_that_is_away_is_no_leader() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        topics = asked_topics(13, (STATE_TOPIC, STATE_TOPIC_ID, [0]))
        answer = await harness.client().ask(ApiKey.FETCH, 13, topics=topics, max_bytes=10_000, session_epoch=-1)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        topics = [{"name": STATE_TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        listed = await harness.client().ask(ApiKey.LIST_OFFSETS, 7, topics=topics)
        assert listed.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_state_topic(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.LIST_OFFSETS))
def test_its_offsets_come_from_the_share_coordinators(version: int) -> None:
    def listed(request: Any, payload: memoryview) -> Any:
        answer = leader_pb2.ListOffsetsResponse()
        for asked in request.partitions:
            answer.partitions.add(
                topic_id=asked.topic_id, partition=asked.partition, offset=40 + asked.partition, timestamp=-1
            )
        return answer

    async def scenario(harness: GatewayHarness) -> None:
        for share_coordinator in harness.share_coordinators.values():
            share_coordinator.answers["ListStateTopicOffsets"] = listed
        partitions = [{"partition_index": index, "timestamp": -2} for index in (0, 1, 3, 4)]
        topics = [{"name": STATE_TOPIC, "partitions": partitions}]
        answer = await harness.client().ask(ApiKey.LIST_OFFSETS, version, topics=topics)
        found = [
            (partition.partition_index, partition.offset, partition.error_code)
            for partition in answer.topics[0].partitions
        ]
        assert found == [(0, 40, 0), (1, 41, 0), (3, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, -1, NO_MORE)]
        (asked,) = harness.share_coordinators[6].requests("ListStateTopicOffsets")
        assert [(each.topic_id, each.partition, each.timestamp) for each in asked.partitions] == [
            (STATE_TOPIC_ID, 1, -2)
        ]

    with_state_topic(scenario)


def test_its_configs_are_kafkas() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        resources = [{"resource_type": 2, "resource_name": STATE_TOPIC, "configuration_keys": None}]
        answer = await harness.client().ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
        (result,) = answer.results
        assert result.error_code == ErrorCode.NONE
        own = {config.name: config.value for config in result.configs if config.config_source == 1}
        assert own == {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": "2",
            "retention.ms": "-1",
            "segment.bytes": "104857600",
        }

    with_state_topic(scenario)


@pytest.mark.parametrize("version", [12, 13])
def test_produce_is_refused(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        topic = {"topic_id": STATE_TOPIC_ID} if version >= 13 else {"name": STATE_TOPIC}
        partition = {"index": 0, "records": build_batch([b"mine"])}
        answer = await harness.client().ask(
            ApiKey.PRODUCE, version, acks=-1, timeout=1000, topic_data=[{**topic, "partition_data": [partition]}]
        )
        (result,) = answer.responses[0].partition_responses
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert all(role.calls == [] for role in (*harness.leaders.values(), *harness.share_coordinators.values()))

    with_state_topic(scenario)


def test_creation_and_deletion_of_the_topic_or_its_records_are_refused() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        created = await client.ask(
            ApiKey.CREATE_TOPICS,
            7,
            timeout=1000,
            topics=[{"name": STATE_TOPIC, "num_partitions": 1, "replication_factor": 1}],
        )
        assert created.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        deleted = await client.ask(
            ApiKey.DELETE_TOPICS, 6, timeout=1000, topics=[{"name": None, "topic_id": STATE_TOPIC_ID}]
        )
        (result,) = deleted.responses
        assert (result.name, result.error_code) == (STATE_TOPIC, ErrorCode.INVALID_REQUEST)
        emptied = await client.ask(
            ApiKey.DELETE_RECORDS,
            2,
            timeout=1000,
            topics=[{"name": STATE_TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}],
        )
        assert emptied.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert [name for name, _, _ in harness.catalog.calls if name not in ("RegisterNode", "WatchCatalog")] == []

    with_state_topic(scenario)


def test_its_epochs_end_where_its_partitions_end() -> None:
    """It loses no records, so a consumer is never told of a truncation."""

    async def scenario(harness: GatewayHarness) -> None:
        def listed(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ListOffsetsResponse()
            for entry in request.partitions:
                assert (entry.topic_id, entry.timestamp) == (STATE_TOPIC_ID, -1)
                answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, offset=77, leader_epoch=0)
            return answer

        harness.share_coordinators[5].answers["ListStateTopicOffsets"] = listed
        partitions = [{"partition": partition, "leader_epoch": 0} for partition in (0, 3)]
        topics = [{"topic": STATE_TOPIC, "partitions": partitions}]
        answer = await harness.client().ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, topics=topics)
        found = [
            (entry.partition, entry.error_code, entry.leader_epoch, entry.end_offset)
            for entry in answer.topics[0].partitions
        ]
        assert found == [(0, 0, 0, 77), (3, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)]

    with_state_topic(scenario)
