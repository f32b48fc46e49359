"""Each administrative API of topics, records, configs and transactions with each of its errors: Kafka's codes.

Every request is sent to kshare and to Apache Kafka 4.3.1, which have the same topics. Versions at both ends of a range
where the answers differ are asked. Left out is what Kafka answers with UNKNOWN_SERVER_ERROR: the partitions of a topic
without a name, and an operation on a config that there is none of.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer

from kshare_wire.generated.api_keys import ApiKey
from support.kafka.same_answers import (
    BUSY,
    MEMBERLESS,
    OTHER_TOPIC,
    PARTITIONS,
    SIMPLE,
    TOPIC,
    Asked,
    Pair,
    TopicId,
    asked_pair,
    codes,
    wait_for_coordinator,
)

MISSING_ID = uuid.UUID("11111111-2222-3333-4444-555555555555")
ZERO_ID = uuid.UUID(int=0)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
OF_TOPIC, OF_BROKER, OF_GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OPEN, ENDED = "open", "ended"
"""Transactional ids: one with an open transaction, one whose transaction was committed."""
TIMEOUT_S = 60.0
LONG_MS = 900_000
"""The open transaction outlives all tests: each system ends it at a time of its own."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with asked_pair(tmp_path_factory.mktemp) as pair, ExitStack() as stack:
        for asked in (pair.kshare, pair.kafka):
            wait_for_coordinator(asked.requests, 1, OPEN)
            stack.callback(_open_transaction(asked).abort_transaction, TIMEOUT_S)
        yield pair


def _open_transaction(asked: Asked) -> Producer:
    for name in (ENDED, OPEN):
        settings = {"transactional.id": name, "transaction.timeout.ms": LONG_MS, "log_level": 0}
        producer = Producer({"bootstrap.servers": asked.bootstrap, **settings})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(OTHER_TOPIC, b"in a transaction")
        assert producer.flush(TIMEOUT_S) == 0
        if name == ENDED:
            producer.commit_transaction(TIMEOUT_S)
    return producer


def records(name: str, **offsets_of: int) -> dict[str, Any]:
    parts = [{"partition_index": int(number[1:]), "offset": offset} for number, offset in offsets_of.items()]
    return {"topics": [{"name": name, "partitions": parts}], "timeout": 5000}


def listing(name: str, timestamp: int, number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"replica_id": -1, "topics": [{"name": name, "partitions": [_listed(timestamp, number, **fields)]}]}


def _listed(timestamp: int, number: int, **fields: Any) -> dict[str, Any]:
    return {"partition_index": number, "timestamp": timestamp, **fields}


def describing(kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]}


def altering(kind: int, name: str, *configs: tuple[str, int, str | None]) -> dict[str, Any]:
    wanted = [{"name": config, "config_operation": how, "value": value} for config, how, value in configs]
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": wanted}]}


def replacing(kind: int, name: str, **configs: str | None) -> dict[str, Any]:
    wanted = [{"name": config.replace("_", "."), "value": value} for config, value in configs.items()]
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": wanted}]}


def by_id(topic_id: Any, name: str | None = None) -> dict[str, Any]:
    return {"topic_id": topic_id, "name": name}


def creating(name: str, **fields: Any) -> dict[str, Any]:
    return {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1, **fields}], "timeout": 5000}


def adding(name: str, producer_id: int, *topics: tuple[str, list[int]], **fields: Any) -> dict[str, Any]:
    named = [{"name": topic, "partitions": numbers} for topic, numbers in topics]
    return {"transactional_id": name, "producer_id": producer_id, "producer_epoch": 0, "topics": named, **fields}


RECORDS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *((ApiKey.DELETE_RECORDS, version, records(TOPIC, p0=3, p1=1, p9=0)) for version in (0, 2)),
    (ApiKey.DELETE_RECORDS, 2, records(TOPIC, p0=-2)),
    (ApiKey.DELETE_RECORDS, 2, records("none", p0=0)),
    (ApiKey.DELETE_RECORDS, 2, records("bad name", p0=0)),
    (ApiKey.DELETE_RECORDS, 2, records("", p0=0)),
    (ApiKey.DELETE_RECORDS, 2, records("__consumer_offsets", p0=0)),
    (ApiKey.DELETE_RECORDS, 2, {"topics": [], "timeout": 5000}),
    (ApiKey.DELETE_RECORDS, 2, records(TOPIC, p0=0)),
    *(
        (ApiKey.LIST_OFFSETS, version, listing(name, LATEST, number))
        for version in (1, 3, 10)
        for name, number in ((TOPIC, 0), (TOPIC, PARTITIONS), ("none", 0), ("bad name", 0), (TOPIC, -1))
    ),
    *(
        (ApiKey.LIST_OFFSETS, version, listing(TOPIC, timestamp))
        for version in (1, 6, 7, 8, 9, 10, 11)
        for timestamp in (
            EARLIEST,
            LATEST,
            MAX_TIMESTAMP,
            EARLIEST_LOCAL,
            LATEST_TIERED,
            EARLIEST_PENDING,
            -7,
            0,
            1 << 60,
        )
    ),
    *((ApiKey.LIST_OFFSETS, 10, listing(TOPIC, LATEST, current_leader_epoch=epoch)) for epoch in (-1, 1_000_000)),
    (ApiKey.LIST_OFFSETS, 10, {**listing(OTHER_TOPIC, LATEST), "isolation_level": 1}),
    (ApiKey.LIST_OFFSETS, 10, {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": 2 * [_listed(LATEST, 0)]}]}),
    (ApiKey.LIST_OFFSETS, 10, {"replica_id": -1, "topics": []}),
    *(
        (ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": name, "partition_indexes": numbers}]})
        for name, numbers in ((TOPIC, [0, 1, 9, -1]), ("none", [0]), ("bad name", [0]), ("", [0]), (OTHER_TOPIC, [0]))
    ),
    (ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": []}),
]

CATALOG: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *(
        (ApiKey.METADATA, version, {"topics": [{"name": name} for name in names], **extra})
        for version, extra in (
            (1, {}),
            (4, {"allow_auto_topic_creation": False}),
            (9, {"allow_auto_topic_creation": False}),
        )
        for names in ([TOPIC, "none"], ["bad name"], [""], ["n" * 250], [TOPIC, TOPIC])
    ),
    *(
        (ApiKey.METADATA, version, {"topics": [topic], "allow_auto_topic_creation": False})
        for version in (12, 13)
        for topic in (
            by_id(MISSING_ID),
            by_id(ZERO_ID, "none"),
            by_id(ZERO_ID, TOPIC),
            by_id(TopicId(TOPIC)),
        )
    ),
    (ApiKey.METADATA, 12, {"topics": [by_id(MISSING_ID), by_id(TopicId(TOPIC))], "allow_auto_topic_creation": False}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": TOPIC}], "response_partition_limit": 0}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": "n" * 250}], "response_partition_limit": 10}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": 2 * [{"name": TOPIC}], "response_partition_limit": 10}),
    *((ApiKey.CREATE_TOPICS, version, creating(name)) for version in (2, 4, 5) for name in (TOPIC, "bad name", "")),
    (ApiKey.CREATE_TOPICS, 2, creating("new", num_partitions=-1)),
    (ApiKey.CREATE_TOPICS, 4, {**creating("new", num_partitions=-1, replication_factor=-1), "validate_only": True}),
    (ApiKey.CREATE_TOPICS, 7, {"topics": [], "timeout": 5000}),
    *((ApiKey.DELETE_TOPICS, version, {"topic_names": ["none", ""], "timeout": 5000}) for version in (1, 4, 5)),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "", "topic_id": bytes(16)}], "timeout": 5000}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [], "timeout": 5000}),
    *(
        (
            ApiKey.CREATE_PARTITIONS,
            version,
            {"topics": [{"name": "none", "count": 2, "assignments": None}], "timeout": 5000},
        )
        for version in (0, 1, 3)
    ),
    (
        ApiKey.CREATE_PARTITIONS,
        3,
        {"topics": 2 * [{"name": TOPIC, "count": 9, "assignments": None}], "timeout": 5000},
    ),
]

CONFIGS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *(
        (ApiKey.DESCRIBE_CONFIGS, version, describing(kind, name, ["retention.ms", "no.such"]))
        for version in (1, 4)
        for kind, name in (
            (OF_TOPIC, TOPIC),
            (OF_TOPIC, "none"),
            (OF_TOPIC, "bad name"),
            (OF_TOPIC, ""),
            (OF_BROKER, "1"),
            (OF_BROKER, ""),
            (OF_BROKER, "99"),
            (OF_BROKER, "one"),
            (OF_GROUP, MEMBERLESS),
            (OF_GROUP, "nobody"),
            (OF_GROUP, ""),
            (0, "x"),
            (1, "x"),
            (3, "x"),
            (99, "x"),
        )
    ),
    (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": []}),
    (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": 2 * describing(OF_TOPIC, TOPIC, [])["resources"]}),
    *(
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, version, altering(kind, name, ("retention.ms", SET, "1000")))
        for version in (0, 1)
        for kind, name in (
            (OF_TOPIC, "none"),
            (OF_TOPIC, "bad name"),
            (OF_TOPIC, ""),
            (OF_BROKER, "99"),
            (OF_BROKER, "one"),
            (OF_BROKER, "1"),
            (OF_GROUP, "g"),
            (OF_GROUP, ""),
            (0, "x"),
            (3, "x"),
            (99, "x"),
        )
    ),
    *(
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altering(OF_TOPIC, TOPIC, *configs))
        for configs in (
            [("no.such", SET, "1")],
            [("retention.ms", SET, "soon")],
            [("retention.ms", SET, None)],
            [("retention.ms", SET, "-2")],
            [("retention.ms", APPEND, "1")],
            [("retention.ms", SUBTRACT, "1")],
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            [("cleanup.policy", APPEND, "none")],
            [("cleanup.policy", SET, "")],
            [("", SET, "1")],
            [("no.such", DELETE, None)],
            [],
        )
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {"resources": 2 * altering(OF_TOPIC, TOPIC, ("retention.ms", SET, "1000000"))["resources"]},
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {**altering(OF_TOPIC, TOPIC, ("retention.ms", SET, "soon")), "validate_only": True},
    ),
    *(
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altering(OF_GROUP, SIMPLE, config))
        for config in (
            ("share.auto.offset.reset", SET, "sometimes"),
            ("share.session.timeout.ms", SET, "1"),
            ("share.record.lock.duration.ms", SET, "0"),
            ("no.such", SET, "1"),
        )
    ),
    *(
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altering(OF_BROKER, name, config))
        for name in ("1", "")
        for config in (
            ("no.such", SET, "1"),
            ("broker.id", SET, "7"),
            ("log.cleaner.threads", SET, "none"),
            ("log.cleaner.threads", SET, "0"),
        )
    ),
    *(
        (ApiKey.ALTER_CONFIGS, version, replacing(kind, name, retention_ms=value))
        for version in (0, 2)
        for kind, name, value in (
            (OF_TOPIC, "none", "1"),
            (OF_TOPIC, "", "1"),
            (OF_TOPIC, TOPIC, "soon"),
            (OF_TOPIC, TOPIC, None),
            (OF_BROKER, "99", "1"),
            (OF_GROUP, "g", "1"),
            (OF_GROUP, "", "1"),
            (99, "x", "1"),
        )
    ),
    (ApiKey.ALTER_CONFIGS, 2, {**replacing(OF_TOPIC, TOPIC, no_such="1"), "validate_only": True}),
]

TRANSACTIONS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *((ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": ""}) for version in (0, 3, 5)),
    *(
        (ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": "t", "transaction_timeout": timeout})
        for version in (0, 3, 5)
        for timeout in (0, -1, 900_001)
    ),
    *(
        (
            ApiKey.INIT_PRODUCER_ID,
            version,
            {"transactional_id": name, "transaction_timeout": 1000, "producer_id": number, "producer_epoch": epoch},
        )
        for version in (3, 5)
        for name, number, epoch in (
            (None, 5, -1),
            (None, -1, 5),
            ("unused", 5, -1),
            ("unused", -1, 5),
            ("unused", 5, 5),
            (ENDED, 123_456, 0),
            (OPEN, 123_456, 0),
        )
    ),
    *((ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": None}) for version in (0, 1, 5)),
    *(
        (ApiKey.ADD_PARTITIONS_TO_TXN, 3, {f"v3_and_below_{key}": value for key, value in adding(*wanted).items()})
        for wanted in (
            ("", 1, (TOPIC, [0])),
            ("unused", 1, (TOPIC, [0])),
            (OPEN, 123_456, (TOPIC, [0])),
            (OPEN, 123_456, (TOPIC, [0, 9]), ("none", [0])),
            (OPEN, 123_456, ("__consumer_offsets", [0])),
        )
    ),
    *(
        (ApiKey.ADD_OFFSETS_TO_TXN, version, {"transactional_id": name, "producer_id": 123_456, "group_id": group})
        for version in (0, 3, 4)
        for name, group in (("", "g"), ("unused", "g"), (OPEN, "g"), (OPEN, ""), (OPEN, BUSY))
    ),
    *(
        (ApiKey.END_TXN, version, {"transactional_id": name, "producer_id": 123_456, "committed": committed})
        for version in (0, 3, 5)
        for name in ("", "unused", OPEN, ENDED)
        for committed in (True, False)
    ),
    *(
        (
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            {
                "transactional_id": name,
                "group_id": group,
                "producer_id": 123_456,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [{"partition_index": number, "committed_offset": 1, "committed_metadata": ""}],
                    }
                ],
            },
        )
        for version in (0, 3, 5)
        for name, group, topic, number in (
            (OPEN, "", TOPIC, 0),
            (OPEN, BUSY, TOPIC, 0),
            (OPEN, "g", "none", 0),
            (OPEN, "g", TOPIC, 9),
        )
    ),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [OPEN, "never used", ""]}),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": []}),
    (ApiKey.LIST_TRANSACTIONS, 0, {}),
    *(
        (ApiKey.LIST_TRANSACTIONS, 2, filters)
        for filters in (
            {"state_filters": ["Ongoing"]},
            {"state_filters": ["ongoing", "none"]},
            {"state_filters": ["CompleteCommit", "Empty"]},
            {"producer_id_filters": [123_456]},
            {"duration_filter": 10_000_000},
            {"duration_filter": 0},
            {"transactional_id_pattern": "op.*"},
            {"transactional_id_pattern": "("},
            {"transactional_id_pattern": ""},
        )
    ),
    (ApiKey.LIST_TRANSACTIONS, 1, {"duration_filter": 10_000_000}),
]


def reassigned(name: str, partition: int, replicas: list[int] | None, **fields: Any) -> dict[str, Any]:
    parts = [{"partition_index": partition, "replicas": replicas}]
    return {"topics": [{"name": name, "partitions": parts}], "timeout": 5000, **fields}


REPLICAS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    *(
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, reassigned(TOPIC, 0, replicas))
        for replicas in ([1], [9], [1, 9], [1, 1], [-1], [], None)
    ),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, reassigned(TOPIC, 0, [1], allow_replication_factor_change=False)),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, reassigned(TOPIC, 9, [1])),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, reassigned("none", 0, None)),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": [], "timeout": 5000}),
    *(
        (
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            version,
            {"dirs": [{"path": "/nowhere", "topics": [{"name": name, "partitions": [0, 9]}]}]},
        )
        for version in (1, 2)
        for name in (TOPIC, "none")
    ),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": []}),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("api", "version", "values"), [*RECORDS, *CATALOG, *CONFIGS, *TRANSACTIONS, *REPLICAS])
def test_the_codes_are_kafkas(pair: Pair, api: ApiKey, version: int, values: dict[str, Any]) -> None:
    pair.same(api, version, **values)


@pytest.mark.timeout(240)
def test_a_transaction_step_by_step(pair: Pair) -> None:
    """One that is there, with its own producer id and with others."""
    pair.same_of(_transaction)


def _transaction(asked: Asked) -> list[Any]:
    name = "steps"
    answer = asked.ask(ApiKey.INIT_PRODUCER_ID, 5, transactional_id=name, transaction_timeout=60_000)
    me = {"transactional_id": name, "producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
    stale = {**me, "producer_epoch": 99}
    group = f"group-{name}"
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    offsets = {"group_id": group, "topics": [{"name": TOPIC, "partitions": [offset]}]}
    partitions = {"topics": [{"name": TOPIC, "partitions": [1]}]}

    def old(wanted: dict[str, Any]) -> dict[str, Any]:
        return {f"v3_and_below_{key}": value for key, value in {**wanted, **partitions}.items()}

    steps: list[tuple[ApiKey, int, dict[str, Any]]] = [
        (ApiKey.END_TXN, 4, {**me, "committed": True}),
        (ApiKey.TXN_OFFSET_COMMIT, 3, {**me, **offsets}),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 3, old(stale)),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 3, old(me)),
        (ApiKey.ADD_OFFSETS_TO_TXN, 3, {**stale, "group_id": group}),
        (ApiKey.ADD_OFFSETS_TO_TXN, 3, {**me, "group_id": group}),
        (ApiKey.TXN_OFFSET_COMMIT, 3, {**stale, **offsets}),
        (ApiKey.TXN_OFFSET_COMMIT, 3, {**me, **offsets, "generation_id": 3, "member_id": "m"}),
        (ApiKey.TXN_OFFSET_COMMIT, 3, {**me, **offsets}),
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["none of these"]}),
        (ApiKey.END_TXN, 4, {**stale, "committed": True}),
        (ApiKey.END_TXN, 4, {**me, "committed": False}),
        (ApiKey.END_TXN, 4, {**me, "committed": True}),
    ]
    found = []
    for api, version, values in steps:
        said = codes(asked.ask(api, version, **values))
        while said.get("error_code") == "concurrent_transactions":  # the end before is under way
            said = codes(asked.ask(api, version, **values))
        found.append(said)
    return found
