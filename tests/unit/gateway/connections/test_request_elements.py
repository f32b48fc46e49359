"""Requests of too many elements are refused before anything is done with them; others are worked on in slices."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.work_slices import SLICE_ELEMENTS, ElementCount, WorkSlices
from kshare_gateway.connections.request_elements import element_count
from kshare_gateway.connections.request_parts import is_splittable, parts_of, repeated_together
from kshare_gateway.dispatch import SERVED_APIS
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import MEMBER, GatewayHarness, run, topic
from support.wire.typed_messages import ALL_REQUESTS, message_of

LIMIT = 4_096
CONFIGS = {"kshare.request.max.elements": str(LIMIT)}
TOO_MANY = range(LIMIT)
"""With the element that they are in, one more than the limit."""
TOPIC_ID = uuid.UUID(int=5)

Values = dict[str, Any]


def fetched_partition(index: int) -> Values:
    return {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1000}


def share_topics(partition: Values, count: int = 1) -> Values:
    partitions = [{"partition_index": index, **partition} for index in range(count)]
    return {"group_id": "g", "member_id": MEMBER, "topics": [{"topic_id": TOPIC_ID, "partitions": partitions}]}


def acknowledged(index: int) -> Values:
    return {"first_offset": index, "last_offset": index, "acknowledge_types": [1]}


def changed_configs() -> Values:
    configs = [{"name": f"c{index}", "value": "v"} for index in TOO_MANY]
    return {"resources": [{"resource_type": 2, "resource_name": "orders", "configs": configs}]}


REFUSED: dict[str, tuple[ApiKey, int, Values]] = {
    "Produce": (
        ApiKey.PRODUCE,
        9,
        {
            "acks": -1,
            "topic_data": [
                {"name": "orders", "partition_data": [{"index": each, "records": b"x"} for each in TOO_MANY]}
            ],
        },
    ),
    "ShareFetch, partitions": (ApiKey.SHARE_FETCH, 1, share_topics({}, LIMIT)),
    "ShareFetch, forgotten": (
        ApiKey.SHARE_FETCH,
        1,
        {**share_topics({}), "forgotten_topics_data": [{"topic_id": TOPIC_ID, "partitions": list(TOO_MANY)}]},
    ),
    "ShareAcknowledge, batches": (
        ApiKey.SHARE_ACKNOWLEDGE,
        1,
        share_topics({"acknowledgement_batches": [acknowledged(each) for each in TOO_MANY]}),
    ),
    "AddPartitionsToTxn of one transaction": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {"v3_and_below_topics": [{"name": "orders", "partitions": list(TOO_MANY)}]},
    ),
    "AddPartitionsToTxn of many": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        {"transactions": [{"topics": [{"name": "orders", "partitions": list(TOO_MANY)}]}]},
    ),
    "JoinGroup": (
        ApiKey.JOIN_GROUP,
        5,
        {"group_id": "g", "protocols": [{"name": f"p{each}", "metadata": b"m"} for each in range(LIMIT + 1)]},
    ),
    "SyncGroup": (
        ApiKey.SYNC_GROUP,
        3,
        {"group_id": "g", "assignments": [{"member_id": f"m{each}", "assignment": b"a"} for each in range(LIMIT + 1)]},
    ),
    "LeaveGroup": (
        ApiKey.LEAVE_GROUP,
        4,
        {"group_id": "g", "members": [{"member_id": f"m{each}"} for each in range(LIMIT + 1)]},
    ),
    "ShareGroupHeartbeat": (
        ApiKey.SHARE_GROUP_HEARTBEAT,
        1,
        {"group_id": "g", "member_id": MEMBER, "subscribed_topic_names": [f"t{each}" for each in range(LIMIT + 1)]},
    ),
    "ConsumerGroupHeartbeat": (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        {
            "group_id": "g",
            "member_id": MEMBER,
            "topic_partitions": [{"topic_id": TOPIC_ID, "partitions": list(TOO_MANY)}],
        },
    ),
    "IncrementalAlterConfigs": (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, changed_configs()),
    "AlterConfigs": (ApiKey.ALTER_CONFIGS, 1, changed_configs()),
    "AlterShareGroupOffsets": (
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        0,
        {
            "group_id": "g",
            "topics": [{"topic_name": "orders", "partitions": [{"partition_index": each} for each in TOO_MANY]}],
        },
    ),
    "DeleteShareGroupOffsets": (
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        0,
        {"group_id": "g", "topics": [{"topic_name": f"t{each}"} for each in range(LIMIT + 1)]},
    ),
    "ListGroups": (ApiKey.LIST_GROUPS, 5, {"states_filter": [f"s{each}" for each in range(LIMIT + 1)]}),
    "DescribeUserScramCredentials": (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        {"users": [{"name": f"u{each}"} for each in range(LIMIT + 1)]},
    ),
    "CreateTopics, assignments of one topic": (
        ApiKey.CREATE_TOPICS,
        5,
        {
            "topics": [
                {
                    "name": "new",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": each, "broker_ids": [7]} for each in TOO_MANY],
                }
            ]
        },
    ),
    "DescribeConfigs, keys of one resource": (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "orders",
                    "configuration_keys": [f"k{each}" for each in range(LIMIT + 1)],
                }
            ]
        },
    ),
    "DescribeShareGroupOffsets of one group": (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        {"groups": [{"group_id": "g", "topics": [{"topic_name": "orders", "partitions": list(TOO_MANY)}]}]},
    ),
    "WriteShareGroupState, batches of one partition": (
        ApiKey.WRITE_SHARE_GROUP_STATE,
        0,
        {
            "group_id": "g",
            "topics": [
                {
                    "topic_id": TOPIC_ID,
                    "partitions": [
                        {
                            "partition": 0,
                            "state_batches": [{"first_offset": each, "last_offset": each} for each in TOO_MANY],
                        }
                    ],
                }
            ],
        },
    ),
}


def error_codes(answer: Any) -> list[int]:
    """Of an answer as kio reads it, at every depth."""
    found: list[int] = []
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if field.name.endswith("error_code"):
            found.append(int(value))
        for nested in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(nested):
                found += error_codes(nested)
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_of_too_many_elements_is_refused_at_the_door(name: str) -> None:
    """No other role hears of it, and its elements, where the answer names them, all have the error."""
    api_key, version, values = REFUSED[name]

    async def scenario(harness: GatewayHarness) -> None:
        answer = await harness.client().ask(api_key, version, **values)
        assert int(ErrorCode.INVALID_REQUEST) in error_codes(answer)
        assert set(error_codes(answer)) <= {ErrorCode.NONE, ErrorCode.INVALID_REQUEST}
        assert {name for name, *_ in harness.catalog.calls} == {"RegisterNode", "WatchCatalog"}
        assert not any(role.calls for role in (*harness.leaders.values(), *harness.share_coordinators.values()))

    run(scenario, CONFIGS)


def test_the_error_says_what_is_allowed() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        api_key, version, values = REFUSED["ShareGroupHeartbeat"]
        answer = await harness.client().ask(api_key, version, **values)
        assert answer.error_message == (
            f"The request has {LIMIT + 1} elements in its arrays; kshare.request.max.elements allows {LIMIT}"
        )
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    run(scenario, CONFIGS)


def test_as_many_elements_as_the_limit_are_served() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        response = coordinator_pb2.ShareGroupHeartbeatResponse
        harness.catalog.answers["ShareGroupHeartbeat"] = lambda request, payload: response(member_epoch=1)
        names = [f"t{each}" for each in range(LIMIT)]
        answer = await harness.client().ask(
            ApiKey.SHARE_GROUP_HEARTBEAT, 1, group_id="g", member_id=MEMBER, subscribed_topic_names=names
        )
        assert answer.error_code == ErrorCode.NONE and answer.member_epoch == 1

    run(scenario, CONFIGS)


def test_acknowledge_types_are_no_elements() -> None:
    """They take one byte each, and a batch may have one for each of its offsets."""

    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        batch = {"first_offset": 0, "last_offset": 2 * LIMIT - 1, "acknowledge_types": [1, -1] * LIMIT}
        values = share_topics({"acknowledgement_batches": [batch]})
        answer = await client.ask(ApiKey.SHARE_ACKNOWLEDGE, 1, share_session_epoch=1, **values)
        assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    run(scenario, CONFIGS)


def test_a_refusal_that_names_every_element_is_made_in_slices() -> None:
    elements = 50_000

    async def scenario(harness: GatewayHarness) -> None:
        before = harness.node._gateway.slices.slices
        partitions = [{"index": index, "records": b"x"} for index in range(elements)]
        answer = await harness.client().ask(
            ApiKey.PRODUCE, 9, acks=-1, topic_data=[{"name": "orders", "partition_data": partitions}]
        )
        (topic,) = answer.responses
        assert [entry.index for entry in topic.partition_responses] == list(range(elements))
        assert {entry.error_code for entry in topic.partition_responses} == {ErrorCode.INVALID_REQUEST}
        assert harness.node._gateway.slices.slices - before >= 3 * elements // SLICE_ELEMENTS - 1

    run(scenario)


PARTITIONS = 20_000
INDEXES = list(range(PARTITIONS))
DIRECTORIES = [{"path": "leader-1", "topics": [{"name": "orders", "partitions": INDEXES}]}]
IN_SLICES: dict[str, tuple[ApiKey, int, Values, int]] = {
    "Fetch": (
        ApiKey.FETCH,
        12,
        {"session_epoch": -1, "topics": [{"topic": "wide", "partitions": list(map(fetched_partition, INDEXES))}]},
        7,
    ),
    "Fetch of unknown partitions": (
        ApiKey.FETCH,
        12,
        {"session_epoch": -1, "topics": [{"topic": "none", "partitions": list(map(fetched_partition, INDEXES))}]},
        4,
    ),
    "OffsetFetch within a group": (
        ApiKey.OFFSET_FETCH,
        9,
        {"groups": [{"group_id": "g", "topics": [{"name": "wide", "partition_indexes": INDEXES}]}]},
        2,
    ),
    "OffsetFetch of a group": (
        ApiKey.OFFSET_FETCH,
        7,
        {"group_id": "g", "topics": [{"name": "wide", "partition_indexes": INDEXES}]},
        2,
    ),
    "DescribeLogDirs": (ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": "wide", "partitions": INDEXES}]}, 3),
    "DescribeLogDirs of all": (ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}, 3),
    "DescribeTopicPartitions": (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": f"t{index}"} for index in INDEXES], "response_partition_limit": 100},
        3,
    ),
    "AlterReplicaLogDirs": (ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": DIRECTORIES}, 2),
}
"""With how often each element, at least, belongs to a slice: decoded, worked on, sent, answered, encoded."""


def committed(request: Any, payload: memoryview) -> Any:
    results = [
        coordinator_pb2.OffsetFetchResponse.Result(
            offset=coordinator_pb2.CommittedOffset(topic_name=each.topic_name, partition=index, committed_offset=index)
        )
        for each in request.topics
        for index in each.partitions
    ]
    return coordinator_pb2.OffsetFetchResponse(results=results)


def sizes(request: Any, payload: memoryview) -> Any:
    result = leader_pb2.DescribeLogDirsResponse.Result
    results = [result(topic_id=each.topic_id, partition=each.partition, size_bytes=1) for each in request.partitions]
    return leader_pb2.DescribeLogDirsResponse(results=results)


def no_records(request: Any, payload: memoryview) -> Any:
    found = leader_pb2.FetchResponse.Partition
    results = [found(topic_id=each.topic_id, partition=each.partition) for each in request.partitions]
    return leader_pb2.FetchResponse(partitions=results), []


@pytest.mark.parametrize("name", IN_SLICES)
def test_many_elements_are_worked_on_in_slices(name: str) -> None:
    """Meanwhile another client is answered again and again, and no other role gets long commands."""
    api_key, version, values, times = IN_SLICES[name]

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.topics["wide"] = topic("wide", b"wide-topic-id-16", [1] * PARTITIONS)
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=5_000)
        harness.catalog.answers["OffsetFetch"] = committed
        for leader in harness.leaders.values():
            leader.answers.update({"DescribeLogDirs": sizes, "Fetch": no_records})
        long, other = harness.client(), harness.client()
        before, asked = harness.node._gateway.slices.slices, 0
        answer = long.send(api_key, version, **values)
        while not answer.done():
            await other.ask(ApiKey.API_VERSIONS, 3)
            await asyncio.sleep(0)
            asked += 1
        enough = times * PARTITIONS // SLICE_ELEMENTS - times
        assert harness.node._gateway.slices.slices - before >= enough and asked >= enough // 4
        assert partitions_of(await answer) == INDEXES
        lengths = [
            sum(len(each.partitions) for each in call.topics) for call in harness.catalog.requests("OffsetFetch")
        ]
        lengths += [len(call.partitions) for call in harness.leaders[1].requests("DescribeLogDirs")]
        assert all(length <= SLICE_ELEMENTS for length in lengths)

    run(scenario)


def partitions_of(answer: Any) -> list[int]:
    """The indexes of partitions in an answer as kio reads it; of topics without any, their numbers in order."""
    found: list[int] = []
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if field.name == "partition_index":
            found.append(value)
        if field.name == "name" and value.startswith("t") and value[1:].isdigit():
            found.append(int(value[1:]))
        for nested in value if isinstance(value, tuple) else ():
            if dataclasses.is_dataclass(nested):
                found += partitions_of(nested)
    return sorted(set(found))


def test_one_element_of_too_many_is_refused_alone() -> None:
    """A request of many topics, one of which has too many configs."""
    asked: list[str] = []

    def create(request: Any, payload: memoryview) -> Any:
        asked.extend(topic.name for topic in request.topics)
        result = coordinator_pb2.CreateTopicsResponse.CreatableTopicResult
        results = [result(name=topic.name, topic_id=bytes(16), num_partitions=1) for topic in request.topics]
        return coordinator_pb2.CreateTopicsResponse(version=1, topics=results)

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["CreateTopics"] = create
        configs = [{"name": f"c{each}", "value": "v"} for each in range(LIMIT)]
        topics = [{"name": f"n{each}", "num_partitions": 1, "replication_factor": 1} for each in range(1_000)]
        topics.insert(300, {"name": "much", "num_partitions": 1, "replication_factor": 1, "configs": configs})
        answer = await harness.client().ask(ApiKey.CREATE_TOPICS, 5, timeout=1000, validate_only=True, topics=topics)
        codes = {topic.name: topic.error_code for topic in answer.topics}
        assert len(codes) == 1_001 and codes.pop("much") == ErrorCode.INVALID_REQUEST
        assert set(codes.values()) == {ErrorCode.NONE}
        assert sorted(asked) == sorted(codes)

    run(scenario, CONFIGS)


@pytest.mark.parametrize(
    ("api_key", "version", "field"),
    [(ApiKey.CREATE_TOPICS, 5, "topics"), (ApiKey.CREATE_PARTITIONS, 1, "topics"), (ApiKey.DELETE_TOPICS, 6, "topics")],
)
def test_what_is_named_twice_in_a_long_request_is_in_one_part(api_key: ApiKey, version: int, field: str) -> None:
    """So that the coordinator notices it."""

    async def main() -> None:
        once = [f"t{each}" for each in range(1_999)]
        names = [*once, "t7", "t450", "t7", "t1998"]
        request = message_of(ALL_REQUESTS[api_key], {field: [{"name": name} for name in names]})
        slices = WorkSlices()
        together = await repeated_together(api_key, request, ElementCount(slices))
        assert slices.slices >= 2 * 2_000 // SLICE_ELEMENTS - 1
        parts = [[each.name for each in getattr(part, field)] for part, _ in parts_of(api_key, together, LIMIT)]
        assert sum(map(len, parts)) == 1_999 + 3 and {name for part in parts for name in part} == set(once)
        for name in ("t7", "t450", "t1998"):
            assert sorted(part.count(name) for part in parts)[-2:] == [0, 2]

    asyncio.run(main())


@pytest.mark.parametrize("api_key", [ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS])
def test_many_resources_are_altered_in_parts_and_one_that_is_named_twice_is_in_one_of_them(api_key: ApiKey) -> None:
    """Resources are told apart by type and name."""

    def resource(name: str, resource_type: int = 2) -> Values:
        configs = [{"name": "retention.ms", "value": "1"}]
        return {"resource_type": resource_type, "resource_name": name, "configs": configs}

    def resources_of(request: Any) -> Any:
        return request.resources

    async def main() -> None:
        resources = [resource(f"t{each}") for each in range(LIMIT)]
        fields = {"resources": [*resources, resource("t3"), resource("t9", resource_type=32)]}
        request = message_of(ALL_REQUESTS[api_key], fields)
        together = await repeated_together(api_key, request, ElementCount(WorkSlices()))
        parts = list(parts_of(api_key, together, LIMIT))
        assert len(parts) >= 2 * LIMIT // SLICE_ELEMENTS and max(part.elements for part in parts) <= SLICE_ELEMENTS + 2
        named = [[each.resource_name for each in resources_of(part.request)] for part in parts]
        assert sorted(names.count("t3") for names in named)[-2:] == [0, 2]
        assert sorted(names.count("t9") for names in named)[-2:] == [1, 1]
        assert sum(map(len, named)) == LIMIT + 2

    asyncio.run(main())


def test_each_api_is_limited_or_works_in_slices_or_answers_at_once() -> None:
    """An API that is added has to say how it takes a request of 200,000 elements."""
    at_once = {
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
    without_refusal = {key for key, served in SERVED_APIS.items() if served.failed is None}
    assert {key for key in without_refusal if not is_splittable(key)} == at_once
    assert not any(SERVED_APIS[key].works_in_slices for key in at_once)


def test_elements_are_counted_at_every_depth_and_no_further_than_the_limit() -> None:
    assignments = [{"broker_ids": (1, 2)}, {"broker_ids": ()}]
    topics = [{"name": "t", "assignments": assignments, "configs": ()} for _ in range(100)]
    request = message_of(ALL_REQUESTS[ApiKey.CREATE_TOPICS], {"topics": topics, "timeout_ms": 1})
    assert element_count(request, 10_000) == 100 + 200 + 200
    assert 100 < element_count(request, 100 + 7) < 120
