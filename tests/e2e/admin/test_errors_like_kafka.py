"""Each administrative API of share groups and the catalog with each of its errors: the codes are Kafka 4.3.1's.

Every request is sent to kshare and to Kafka, which have the same topics and groups, and the codes of the answers are
compared: of the answer as a whole, of each topic, of each partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kshare_wire.generated.api_keys import ApiKey
from support.clients.kafka_requests import KafkaRequests
from support.kafka.same_answers import BUSY, MEMBERLESS, PARTITIONS, TOPIC, Pair, asked_pair
from support.kafka.same_answers import SIMPLE as CLASSIC

MISSING_ID = uuid.UUID("11111111-2222-3333-4444-555555555555")
MEMBER = "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with asked_pair(tmp_path_factory.mktemp) as pair:
        yield pair


def alteration(group: str, **topics: dict[int, int]) -> dict[str, Any]:
    return {
        "group_id": group,
        "topics": [
            {
                "topic_name": name,
                "partitions": [{"partition_index": part, "start_offset": at} for part, at in offsets.items()],
            }
            for name, offsets in topics.items()
        ],
    }


def deletion(group: str, *topics: str) -> dict[str, Any]:
    return {"group_id": group, "topics": [{"topic_name": name} for name in topics]}


def joining(**fields: Any) -> dict[str, Any]:
    names = fields.pop("subscribed_topic_names", [TOPIC])
    return {"group_id": "new", "member_id": MEMBER, "member_epoch": 0, "subscribed_topic_names": names, **fields}


def creation(name: str, **fields: Any) -> dict[str, Any]:
    return {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1, **fields}], "timeout": 5000}


def assignment(*brokers: tuple[int, list[int]]) -> dict[str, Any]:
    assigned = [{"partition_index": index, "broker_ids": ids} for index, ids in brokers]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": assigned}


def growth(name: str, count: int, assignments: list[list[int]] | None = None) -> dict[str, Any]:
    given = None if assignments is None else [{"broker_ids": ids} for ids in assignments]
    return {"topics": [{"name": name, "count": count, "assignments": given}], "timeout": 5000}


REFUSED: list[tuple[ApiKey, int, dict[str, Any]]] = [
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration("", orders={0: 1})),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration(BUSY, orders={0: 1})),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration(BUSY)),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration(CLASSIC, orders={0: 1})),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration(MEMBERLESS, missing={0: 1, 1: 1})),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration(MEMBERLESS, orders={PARTITIONS: 1})),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration("nobody", missing={0: 1})),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion("", TOPIC)),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion("nobody", TOPIC)),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion(BUSY, TOPIC)),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion(CLASSIC, TOPIC)),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion(MEMBERLESS, "missing", "other")),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion(MEMBERLESS)),
    (ApiKey.DELETE_GROUPS, 2, {"groups_names": [BUSY, "nobody", ""]}),
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": [BUSY, MEMBERLESS, CLASSIC, "nobody", ""]}),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(group_id="")),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(member_id="")),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(rack_id="")),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(group_id=" ")),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(member_id=" ")),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(rack_id=" ")),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(subscribed_topic_names=None)),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(subscribed_topic_names=[])),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(member_epoch=-2)),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(member_epoch=3)),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(member_epoch=-1)),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(group_id=BUSY, member_epoch=3)),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(group_id=BUSY, member_epoch=-1)),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining(group_id=CLASSIC)),
    (ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [99]}),
    (ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [2, 99]}),
    (ApiKey.DESCRIBE_CLUSTER, 0, {}),
    (ApiKey.DESCRIBE_CLUSTER, 1, {"endpoint_type": 2}),
    (ApiKey.DESCRIBE_CLUSTER, 2, {"endpoint_type": 7}),
    (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": TOPIC}, {"name": "missing"}, {"name": "bad name"}], "response_partition_limit": 10},
    ),
    (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {
            "topics": [{"name": TOPIC}],
            "response_partition_limit": 10,
            "cursor": {"topic_name": "other", "partition_index": 0},
        },
    ),
    (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {
            "topics": [{"name": TOPIC}],
            "response_partition_limit": 10,
            "cursor": {"topic_name": TOPIC, "partition_index": -1},
        },
    ),
    (ApiKey.CREATE_TOPICS, 7, creation("")),
    (ApiKey.CREATE_TOPICS, 7, creation("bad name")),
    (ApiKey.CREATE_TOPICS, 7, creation(".")),
    (ApiKey.CREATE_TOPICS, 7, creation("n" * 250)),
    (ApiKey.CREATE_TOPICS, 7, creation(TOPIC)),
    (ApiKey.CREATE_TOPICS, 7, creation("__consumer_offsets")),
    (ApiKey.CREATE_TOPICS, 7, creation(TOPIC, **assignment((0, [7])))),
    (ApiKey.CREATE_TOPICS, 7, creation(TOPIC, configs=[{"name": "retention.ms", "value": None}])),
    (ApiKey.CREATE_TOPICS, 7, creation("bad name", **assignment((0, [7])))),
    (ApiKey.CREATE_TOPICS, 7, creation("__share_group_state")),
    (ApiKey.CREATE_TOPICS, 7, creation("__cluster_metadata")),
    (ApiKey.CREATE_TOPICS, 7, creation("new", num_partitions=0)),
    (ApiKey.CREATE_TOPICS, 7, creation("new", num_partitions=-2)),
    (ApiKey.CREATE_TOPICS, 7, creation("new", replication_factor=0)),
    (ApiKey.CREATE_TOPICS, 7, creation("new", replication_factor=2)),
    (ApiKey.CREATE_TOPICS, 7, creation("new", configs=[{"name": "no.such.config", "value": "1"}])),
    (ApiKey.CREATE_TOPICS, 7, creation("new", configs=[{"name": "retention.ms", "value": "soon"}])),
    (ApiKey.CREATE_TOPICS, 7, creation("new", configs=[{"name": "retention.ms", "value": None}])),
    (ApiKey.CREATE_TOPICS, 7, creation("new", **{**assignment((0, [1])), "num_partitions": 1})),
    (ApiKey.CREATE_TOPICS, 7, creation("new", **assignment((1, [1])))),
    (ApiKey.CREATE_TOPICS, 7, creation("new", **assignment((0, [])))),
    (ApiKey.CREATE_TOPICS, 7, creation("new", **assignment((0, [7])))),
    (ApiKey.CREATE_TOPICS, 7, creation("new", **assignment((0, [1, 1])))),
    (ApiKey.CREATE_TOPICS, 7, {"topics": 2 * creation("twice")["topics"], "timeout": 5000}),
    (ApiKey.CREATE_TOPICS, 7, {**creation("only-tried"), "validate_only": True}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "missing", "topic_id": bytes(16)}], "timeout": 5000}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": MISSING_ID}], "timeout": 5000}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": bytes(16)}], "timeout": 5000}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": TOPIC, "topic_id": MISSING_ID}], "timeout": 5000}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": 2 * [{"name": TOPIC, "topic_id": bytes(16)}], "timeout": 5000}),
    (ApiKey.CREATE_PARTITIONS, 3, growth("missing", 5)),
    (ApiKey.CREATE_PARTITIONS, 3, growth(TOPIC, PARTITIONS)),
    (ApiKey.CREATE_PARTITIONS, 3, growth(TOPIC, 1)),
    (ApiKey.CREATE_PARTITIONS, 3, growth(TOPIC, 0)),
    (ApiKey.CREATE_PARTITIONS, 3, growth(TOPIC, 3, [[1], [1]])),
    (ApiKey.CREATE_PARTITIONS, 3, growth(TOPIC, 3, [[7]])),
    (ApiKey.CREATE_PARTITIONS, 3, growth(TOPIC, 3, [[]])),
    (ApiKey.CREATE_PARTITIONS, 3, {**growth(TOPIC, 9), "validate_only": True}),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("api", "version", "values"), REFUSED)
def test_the_codes_are_kafkas(pair: Pair, api: ApiKey, version: int, values: dict[str, Any]) -> None:
    pair.same(api, version, **values)


@pytest.mark.timeout(240)
def test_what_is_done_has_no_error(pair: Pair) -> None:
    """Each in the order in which it makes sense; the second time says that nothing is left."""
    steps: list[tuple[ApiKey, int, dict[str, Any]]] = [
        (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration("altered", orders={0: 1, PARTITIONS: 1}, missing={0: 1})),
        (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration("altered", orders={0: 0, 1: 1})),
        (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion("altered", TOPIC, "missing", "other")),
        (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, deletion("altered", TOPIC)),
        (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, alteration("second", orders={0: 1})),
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["altered", "altered", "second"]}),
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["altered", "second"]}),
    ]
    for api, version, values in steps:
        pair.same(api, version, **values)


@pytest.mark.timeout(120)
def test_pages_of_topics(pair: Pair) -> None:
    """The same topics and cursors, page by page."""

    def pages(kafka: KafkaRequests) -> list[tuple[list[tuple[str, list[int]]], Any]]:
        found: list[tuple[list[tuple[str, list[int]]], Any]] = []
        cursor: dict[str, Any] | None = None
        while True:
            answer = kafka.ask(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                0,
                topics=[{"name": name} for name in ("other", TOPIC, "missing")],
                response_partition_limit=1,
                cursor=cursor,
            )
            told = [(topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.topics]
            after = answer.next_cursor
            found.append((sorted(told), after and (after.topic_name, int(after.partition_index))))
            if after is None:
                return found
            cursor = {"topic_name": after.topic_name, "partition_index": after.partition_index}

    assert pages(pair.kshare.requests) == pages(pair.kafka.requests)


def _resources(kafka: KafkaRequests, kinds: list[int]) -> list[tuple[int, str]]:
    answer = kafka.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=kinds)
    found = [(int(resource.resource_type), resource.resource_name) for resource in answer.config_resources]
    return sorted(entry for entry in found if not entry[1].startswith("__"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kinds", [[], [2], [4], [8], [16], [32], [2, 32]])
def test_config_resources(pair: Pair, kinds: list[int]) -> None:
    """But for internal topics: Kafka has those that were used so far."""
    assert _resources(pair.kshare.requests, kinds) == _resources(pair.kafka.requests, kinds)


OPERATIONS: list[tuple[ApiKey, int, str, dict[str, Any]]] = [
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, "", {"group_ids": [BUSY, "nobody"]}),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "", {"group_ids": [BUSY, "nobody"]}),
    *((ApiKey.DESCRIBE_GROUPS, version, "", {"groups": [CLASSIC, "nobody"]}) for version in (3, 5, 6)),
    *(
        (ApiKey.METADATA, version, "topic_", {"topics": [{"name": TOPIC}, {"name": "missing"}, {"name": "bad name"}]})
        for version in (8, 12)
    ),
    (ApiKey.METADATA, 12, "topic_", {"topics": [{"name": None, "topic_id": MISSING_ID}]}),
    (ApiKey.METADATA, 8, "cluster_", {"topics": []}),
    (ApiKey.METADATA, 10, "cluster_", {"topics": []}),
    (ApiKey.DESCRIBE_CLUSTER, 1, "cluster_", {}),
]


def _operations(answer: Any) -> Any:
    """All fields with authorized operations, and whose they are."""
    if isinstance(answer, tuple):
        return sorted((_operations(each) for each in answer), key=repr)
    found: dict[str, Any] = {}
    for name in getattr(answer, "__dataclass_fields__", {}):
        value = getattr(answer, name)
        if name.endswith("authorized_operations"):
            found[name] = int(value)
        elif name in ("name", "group_id"):
            found[name] = value
        elif name in ("groups", "topics"):
            found[name] = _operations(value)
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize(("api", "version", "kind", "values"), OPERATIONS)
def test_authorized_operations_are_kafkas(
    pair: Pair, api: ApiKey, version: int, kind: str, values: dict[str, Any], is_asked: bool
) -> None:
    asked = {f"include_{kind}authorized_operations": is_asked, **values}
    if api is ApiKey.METADATA:
        asked["allow_auto_topic_creation"] = False
    told = pair.same_of(lambda each: _operations(each.ask(api, version, **asked)))
    assert "authorized_operations" in repr(told)


def test_authorized_operations_of_paged_topics(pair: Pair) -> None:
    asked = {"topics": [{"name": TOPIC}, {"name": "missing"}], "response_partition_limit": 10}
    pair.same_of(lambda each: _operations(each.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **asked)))
