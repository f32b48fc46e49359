"""Each API denied and allowed: alice's answers from kshare and from Apache Kafka 4.3.1 are the same with the same ACLs.

A row has a request and the rights that it needs, in an order in which each further one can change the answer. Alice
asks without any of them, then with one more each time. `test_every_api_has_a_row` fails for an API without one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import topic_id_text
from kshare_core.security.acls import Operation as Op
from kshare_core.security.acls import PatternType, PermissionType
from kshare_core.security.acls import ResourceType as On
from kshare_gateway.dispatch import SERVED_APIS
from kshare_wire.generated.api_keys import ApiKey
from support.clients.raw_kafka import one_record_batch
from support.kafka.authorized_pair import EVERY_ACL, AuthorizedPair, AuthorizedSystem, Right, authorized_pair
from support.kafka.same_answers import (
    BUSY,
    MEMBERLESS,
    OTHER_TOPIC,
    SIMPLE,
    TOPIC,
    UNREADY,
    Asked,
    TopicId,
    codes,
    wait_for_coordinator,
)
from support.kafka.tools import Printed, ToolPair

Values = dict[str, Any]
READY_WITHIN_S = 60.0


DENIED_PREFIX = (PatternType.PREFIXED, PermissionType.DENY)
STATES, TRANSACTION = "states", "transaction-of-root"
"""A group with state that no leader knows, and a transactional id with a producer id."""


class Row(NamedTuple):
    api: ApiKey
    version: int
    values: Values
    rights: tuple[Right, ...]


def on_cluster(operation: Op) -> Right:
    return Right(operation, On.CLUSTER)


def on_topic(operation: Op, name: str = TOPIC) -> Right:
    return Right(operation, On.TOPIC, name)


def on_group(operation: Op, name: str = MEMBERLESS) -> Right:
    return Right(operation, On.GROUP, name)


def on_transaction(operation: Op, name: str = TRANSACTION) -> Right:
    return Right(operation, On.TRANSACTIONAL_ID, name)


def partitions(name: str = TOPIC, field: str = "partitions", **values: Any) -> list[Values]:
    return [{"name": name, field: [{"partition_index": 0, **values}]}]


def state(group: str = STATES, **values: Any) -> Values:
    topics = [{"topic_id": TopicId(TOPIC), "partitions": [{"partition": 0, **values}]}]
    return {"group_id": group, "topics": topics}


def configs(kind: int, name: str, *changes: Values, described: bool = False) -> Values:
    resource: Values = {"resource_type": kind, "resource_name": name}
    resource |= {"configuration_keys": None} if described else {"configs": list(changes)}
    return {"resources": [resource]}


def fetching(**topic: Any) -> Values:
    partition = {"partition": 0, "current_leader_epoch": -1, "last_fetched_epoch": -1, "partition_max_bytes": 1000}
    return {"session_id": 0, "session_epoch": -1, "topics": [{**topic, "partitions": [partition]}], "max_bytes": 1000}


def sharing(epoch: int = 0, **values: Any) -> Values:
    topics = [{"topic_id": TopicId(TOPIC), "partitions": [{"partition_index": 0}]}]
    return {
        "group_id": MEMBERLESS,
        "member_id": "alice",
        "share_session_epoch": epoch,
        "topics": topics,
        **values,
    }


TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG = 2, 4, 32
SET_RETENTION = {"name": "retention.ms", "config_operation": 0, "value": "1000000"}
ONE_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": "nothing",
    "pattern_type_filter": 3,
    "operation": 1,
    "permission_type": 1,
}
A_PRODUCE = {
    "acks": -1,
    "timeout": 5000,
    "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": bytes(one_record_batch())}]}],
}
A_QUOTA = {"key": "producer_byte_rate", "value": 1000.0, "remove": False}
READ_TOPIC, DESCRIBE_TOPIC, WRITE_TOPIC = on_topic(Op.READ), on_topic(Op.DESCRIBE), on_topic(Op.WRITE)
READ_GROUP, DESCRIBE_GROUP = on_group(Op.READ), on_group(Op.DESCRIBE)
WRITE_TRANSACTION = on_transaction(Op.WRITE)

ROWS = [
    Row(ApiKey.PRODUCE, 9, A_PRODUCE, (WRITE_TOPIC,)),
    Row(ApiKey.PRODUCE, 9, {**A_PRODUCE, "transactional_id": TRANSACTION}, (WRITE_TOPIC,)),
    Row(ApiKey.FETCH, 12, fetching(topic=TOPIC), (READ_TOPIC,)),
    Row(ApiKey.FETCH, 13, fetching(topic_id=TopicId(TOPIC)), (READ_TOPIC,)),
    Row(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": partitions(timestamp=-1)}, (DESCRIBE_TOPIC,)),
    Row(ApiKey.METADATA, 12, {"topics": None, "include_topic_authorized_operations": True}, (DESCRIBE_TOPIC,)),
    Row(
        ApiKey.METADATA,
        12,
        {
            "topics": [
                {"topic_id": bytes(16), "name": TOPIC},
                {"topic_id": bytes(16), "name": "nothing"},
            ],
            "include_topic_authorized_operations": True,
        },
        (DESCRIBE_TOPIC, on_topic(Op.ALTER_CONFIGS), on_topic(Op.DESCRIBE, "nothing"), on_topic(Op.READ)),
    ),
    Row(ApiKey.METADATA, 12, {"topics": [{"topic_id": TopicId(TOPIC), "name": None}]}, (DESCRIBE_TOPIC,)),
    Row(
        ApiKey.METADATA,
        9,
        {"topics": [{"name": "made-by-metadata"}, {"name": TOPIC}], "allow_auto_topic_creation": True},
        (on_topic(Op.DESCRIBE, "made-by-metadata"), DESCRIBE_TOPIC),
    ),
    Row(
        ApiKey.OFFSET_COMMIT,
        8,
        {
            "group_id": SIMPLE,
            "generation_id_or_member_epoch": -1,
            "topics": [*partitions(committed_offset=1), *partitions(OTHER_TOPIC, committed_offset=1)],
        },
        (on_group(Op.READ, SIMPLE), READ_TOPIC, on_topic(Op.READ, OTHER_TOPIC)),
    ),
    Row(
        ApiKey.OFFSET_FETCH,
        8,
        {
            "groups": [
                {"group_id": SIMPLE, "topics": [{"name": TOPIC, "partition_indexes": [0]}]},
                {"group_id": SIMPLE, "topics": None},
            ]
        },
        (on_group(Op.DESCRIBE, SIMPLE), DESCRIBE_TOPIC),
    ),
    Row(
        ApiKey.OFFSET_FETCH,
        7,
        {"group_id": SIMPLE, "topics": [{"name": TOPIC, "partition_indexes": [0]}]},
        (on_group(Op.READ, SIMPLE), DESCRIBE_TOPIC),
    ),
    Row(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [MEMBERLESS]}, (DESCRIBE_GROUP,)),
    Row(ApiKey.FIND_COORDINATOR, 3, {"key_type": 0, "key": MEMBERLESS}, (DESCRIBE_GROUP,)),
    Row(
        ApiKey.JOIN_GROUP,
        5,
        {
            "group_id": "joined",
            "session_timeout": 10000,
            "rebalance_timeout": 10000,
            "member_id": "m",
            "protocol_type": "consumer",
        },
        (on_group(Op.READ, "joined"),),
    ),
    Row(ApiKey.HEARTBEAT, 4, {"group_id": "joined", "member_id": "m"}, (on_group(Op.READ, "joined"),)),
    Row(
        ApiKey.LEAVE_GROUP,
        4,
        {"group_id": "joined", "members": [{"member_id": "m"}]},
        (on_group(Op.READ, "joined"),),
    ),
    Row(ApiKey.SYNC_GROUP, 4, {"group_id": "joined", "member_id": "m"}, (on_group(Op.READ, "joined"),)),
    Row(
        ApiKey.DESCRIBE_GROUPS,
        5,
        {"groups": [SIMPLE], "include_authorized_operations": True},
        (on_group(Op.DESCRIBE, SIMPLE), on_group(Op.DELETE, SIMPLE)),
    ),
    Row(ApiKey.LIST_GROUPS, 4, {}, (on_group(Op.DESCRIBE, SIMPLE), on_cluster(Op.DESCRIBE))),
    Row(
        ApiKey.CREATE_TOPICS,
        7,
        {
            "topics": [{"name": "made-by-alice", "num_partitions": 1, "replication_factor": 1}],
            "timeout": 5000,
            "validate_only": True,
        },
        (on_topic(Op.CREATE, "made-by-alice"), on_topic(Op.DESCRIBE_CONFIGS, "made-by-alice")),
    ),
    Row(
        ApiKey.CREATE_TOPICS,
        7,
        {
            "topics": [{"name": "made-by-all", "num_partitions": 1, "replication_factor": 1}],
            "timeout": 5000,
            "validate_only": True,
        },
        (on_cluster(Op.CREATE),),
    ),
    Row(
        ApiKey.DELETE_TOPICS,
        6,
        {"topics": [{"name": "nothing"}, {"name": None, "topic_id": TopicId(OTHER_TOPIC)}], "timeout": 5000},
        (on_topic(Op.DESCRIBE, "nothing"), on_topic(Op.DESCRIBE, OTHER_TOPIC), on_topic(Op.DELETE, "nothing")),
    ),
    Row(ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "nothing"}], "timeout": 5000}, (on_cluster(Op.DELETE),)),
    Row(
        ApiKey.CREATE_PARTITIONS,
        3,
        {"topics": [{"name": TOPIC, "count": 3}], "timeout": 5000, "validate_only": True},
        (on_topic(Op.ALTER),),
    ),
    Row(
        ApiKey.DELETE_RECORDS,
        2,
        {"topics": partitions(OTHER_TOPIC, offset=0), "timeout": 5000},
        (on_topic(Op.DELETE, OTHER_TOPIC),),
    ),
    Row(ApiKey.INIT_PRODUCER_ID, 4, {"producer_id": -1, "producer_epoch": -1}, (on_cluster(Op.IDEMPOTENT_WRITE),)),
    Row(ApiKey.INIT_PRODUCER_ID, 4, {"producer_id": -1, "producer_epoch": -1}, (on_topic(Op.WRITE, "anything"),)),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        4,
        {"transactional_id": TRANSACTION, "transaction_timeout": 10000, "producer_id": -1, "producer_epoch": -1},
        (WRITE_TRANSACTION,),
    ),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {
            "v3_and_below_transactional_id": "tx-none",
            "v3_and_below_topics": [
                {"name": TOPIC, "partitions": [0]},
                {"name": OTHER_TOPIC, "partitions": [0]},
                {"name": "nothing", "partitions": [0]},
            ],
        },
        (
            on_transaction(Op.WRITE, "tx-none"),
            WRITE_TOPIC,
            on_topic(Op.WRITE, "nothing"),
            on_topic(Op.WRITE, OTHER_TOPIC),
        ),
    ),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        {"transactions": [{"transactional_id": "tx-none", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
        (on_cluster(Op.CLUSTER_ACTION),),
    ),
    Row(
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        {"transactional_id": "tx-none", "group_id": MEMBERLESS},
        (on_transaction(Op.WRITE, "tx-none"), READ_GROUP),
    ),
    Row(ApiKey.END_TXN, 3, {"transactional_id": "tx-none"}, (on_transaction(Op.WRITE, "tx-none"),)),
    Row(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        {
            "transactional_id": "tx-none",
            "group_id": SIMPLE,
            "producer_id": 1,
            "generation_id": -1,
            "topics": partitions("nothing", committed_offset=1),
        },
        (on_transaction(Op.WRITE, "tx-none"), on_group(Op.READ, SIMPLE), on_topic(Op.READ, "nothing")),
    ),
    Row(
        ApiKey.DESCRIBE_ACLS,
        3,
        {**ONE_FILTER, "pattern_type_filter": 2},
        (on_cluster(Op.DESCRIBE), Right(Op.READ, On.TOPIC, "noth", PatternType.PREFIXED)),
    ),
    Row(
        ApiKey.CREATE_ACLS,
        3,
        {"creations": [{**on_topic(Op.READ).creation(), "resource_name": ""}]},
        (on_cluster(Op.ALTER),),
    ),
    *(
        Row(ApiKey.CREATE_ACLS, 3, {"creations": [{**right.creation(), **wrong}]}, (on_cluster(Op.ALTER),))
        for right, wrong in ((on_cluster(Op.READ), {"resource_name": "other"}),)
    ),
    Row(ApiKey.DELETE_ACLS, 3, {"filters": [ONE_FILTER]}, (on_cluster(Op.ALTER),)),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        configs(TOPIC_CONFIG, TOPIC)
        and {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configuration_keys": ["none"]}
                for kind, name in ((TOPIC_CONFIG, TOPIC), (BROKER_CONFIG, "1"), (GROUP_CONFIG, MEMBERLESS))
            ]
        },
        (on_topic(Op.DESCRIBE_CONFIGS), on_cluster(Op.DESCRIBE_CONFIGS), on_group(Op.DESCRIBE_CONFIGS)),
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        configs(TOPIC_CONFIG, TOPIC)
        and {"resources": [{"resource_type": TOPIC_CONFIG, "resource_name": TOPIC, "configuration_keys": ["none"]}]},
        (on_topic(Op.ALTER_CONFIGS),),
    ),
    Row(
        ApiKey.ALTER_CONFIGS,
        1,
        {**configs(TOPIC_CONFIG, TOPIC, {"name": "retention.ms", "value": "100000"}), "validate_only": True},
        (on_topic(Op.ALTER_CONFIGS),),
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {
            "resources": [
                *configs(TOPIC_CONFIG, TOPIC, SET_RETENTION)["resources"],
                *configs(BROKER_CONFIG, "", {**SET_RETENTION, "name": "log.retention.ms"})["resources"],
                *configs(
                    GROUP_CONFIG, MEMBERLESS, {**SET_RETENTION, "name": "share.session.timeout.ms", "value": "45000"}
                )["resources"],
            ],
            "validate_only": True,
        },
        (on_topic(Op.ALTER_CONFIGS), on_cluster(Op.ALTER_CONFIGS), on_group(Op.ALTER_CONFIGS)),
    ),
    Row(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        {"dirs": [{"path": "/nowhere", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
        (on_cluster(Op.ALTER),),
    ),
    Row(ApiKey.DESCRIBE_LOG_DIRS, 3, {"topics": []}, (on_cluster(Op.DESCRIBE),)),
    Row(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None}, ()),
    Row(
        ApiKey.DELETE_GROUPS,
        2,
        {"groups_names": ["nothing", BUSY]},
        (on_group(Op.DELETE, "nothing"), on_group(Op.DELETE, BUSY)),
    ),
    Row(
        ApiKey.ELECT_LEADERS,
        2,
        {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": 5000},
        (on_cluster(Op.ALTER),),
    ),
    Row(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        {
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}],
            "timeout": 5000,
        },
        (on_cluster(Op.ALTER),),
    ),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None, "timeout": 5000}, (on_cluster(Op.DESCRIBE),)),
    Row(
        ApiKey.OFFSET_DELETE,
        0,
        {"group_id": SIMPLE, "topics": partitions("nothing")},
        (on_group(Op.DELETE, SIMPLE), on_topic(Op.READ, "nothing")),
    ),
    Row(
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        {
            "entries": [
                {"entity": [{"entity_type": "user", "entity_name": "bob"}], "ops": [A_QUOTA]},
                {"entity": [{"entity_type": "user", "entity_name": "bob"}], "ops": [{**A_QUOTA, "key": "none"}]},
                {"entity": [{"entity_type": "user", "entity_name": "eve"}], "ops": [{**A_QUOTA, "value": -1.0}]},
                {"entity": [{"entity_type": "ip", "entity_name": "10.0.0.1"}], "ops": [A_QUOTA]},
                {"entity": [{"entity_type": "nobody", "entity_name": "eve"}], "ops": [A_QUOTA]},
            ],
            "validate_only": True,
        },
        (on_cluster(Op.ALTER_CONFIGS),),
    ),
    Row(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": []}, (on_cluster(Op.DESCRIBE_CONFIGS),)),
    Row(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        {"deletions": [{"name": "nobody", "mechanism": 1}]},
        (on_cluster(Op.ALTER),),
    ),
    Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": "bob"}]}, (on_cluster(Op.DESCRIBE),)),
    Row(
        ApiKey.DESCRIBE_QUORUM,
        1,
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        (on_cluster(Op.DESCRIBE),),
    ),
    Row(
        ApiKey.DESCRIBE_CLUSTER,
        1,
        {"include_cluster_authorized_operations": True, "endpoint_type": 1},
        (on_cluster(Op.ALTER), on_cluster(Op.CREATE)),
    ),
    Row(
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
        (DESCRIBE_TOPIC, READ_TOPIC),
    ),
    Row(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        {
            "replica_id": -1,
            "topics": [
                {"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
            ],
        },
        (DESCRIBE_TOPIC,),
    ),
    *(
        Row(
            ApiKey.WRITE_TXN_MARKERS,
            1,
            {"markers": [{"producer_id": 999_999, "topics": [{"name": TOPIC, "partition_indexes": [99]}]}]},
            (on_cluster(operation),),
        )
        for operation in (Op.ALTER, Op.CLUSTER_ACTION)
    ),
    Row(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        {"transactional_ids": ["tx-none"]},
        (on_transaction(Op.DESCRIBE, "tx-none"),),
    ),
    Row(ApiKey.LIST_TRANSACTIONS, 1, {"duration_filter": -1}, (on_transaction(Op.DESCRIBE),)),
    Row(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        {
            "group_id": "modern",
            "member_id": "m",
            "member_epoch": 7,
            "subscribed_topic_names": [TOPIC],
            "rebalance_timeout": 10000,
            "topic_partitions": [],
        },
        (on_group(Op.READ, "modern"), DESCRIBE_TOPIC),
    ),
    Row(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        1,
        {"group_ids": ["nothing"], "include_authorized_operations": True},
        (on_group(Op.DESCRIBE, "nothing"),),
    ),
    Row(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [32]}, (on_cluster(Op.DESCRIBE_CONFIGS),)),
    Row(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": TOPIC}, {"name": "nothing"}], "response_partition_limit": 10},
        (DESCRIBE_TOPIC, on_topic(Op.DESCRIBE, "nothing")),
    ),
    Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [], "response_partition_limit": 10}, (DESCRIBE_TOPIC,)),
    Row(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        1,
        {"group_id": MEMBERLESS, "member_id": "m", "member_epoch": 7, "subscribed_topic_names": [TOPIC]},
        (READ_GROUP, DESCRIBE_TOPIC),
    ),
    Row(
        ApiKey.SHARE_GROUP_DESCRIBE,
        1,
        {"group_ids": [BUSY, "nothing"], "include_authorized_operations": True},
        (on_group(Op.DESCRIBE, BUSY), DESCRIBE_TOPIC, on_group(Op.DESCRIBE, "nothing")),
    ),
    Row(
        ApiKey.SHARE_FETCH,
        1,
        sharing(max_records=1, max_bytes=1000, max_wait=1000, min_bytes=1),
        (READ_GROUP, READ_TOPIC),
    ),
    Row(ApiKey.SHARE_ACKNOWLEDGE, 1, sharing(3), (READ_GROUP, READ_TOPIC)),
    Row(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, state(), (on_cluster(Op.CLUSTER_ACTION),)),
    Row(ApiKey.READ_SHARE_GROUP_STATE, 0, state(leader_epoch=0), (on_cluster(Op.CLUSTER_ACTION),)),
    Row(ApiKey.WRITE_SHARE_GROUP_STATE, 0, state(state_epoch=0), (on_cluster(Op.CLUSTER_ACTION),)),
    Row(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, state(leader_epoch=0), (on_cluster(Op.CLUSTER_ACTION),)),
    Row(ApiKey.DELETE_SHARE_GROUP_STATE, 0, state("no-states"), (on_cluster(Op.CLUSTER_ACTION),)),
    Row(ApiKey.STREAMS_GROUP_DESCRIBE, 0, {"group_ids": ["nothing"]}, (on_group(Op.DESCRIBE, "nothing"),)),
    Row(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        0,
        {
            "groups": [
                {"group_id": MEMBERLESS, "topics": None},
                {"group_id": MEMBERLESS, "topics": [{"topic_name": TOPIC, "partitions": [0]}]},
            ]
        },
        (DESCRIBE_GROUP, DESCRIBE_TOPIC),
    ),
    Row(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        0,
        {
            "group_id": BUSY,
            "topics": [{"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 0}]}],
        },
        (on_group(Op.READ, BUSY), READ_TOPIC),
    ),
    Row(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        0,
        {"group_id": BUSY, "topics": [{"topic_name": TOPIC}]},
        (on_group(Op.DELETE, BUSY), READ_TOPIC),
    ),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizedPair]:
    with authorized_pair(tmp_path_factory.mktemp("acls")) as pair:
        for system in pair:
            _prepare(system.root)
        yield pair


def _prepare(root: Asked) -> None:
    wait_for_coordinator(root.requests, 1, TRANSACTION)
    begun = {"transactional_id": TRANSACTION, "transaction_timeout": 10000, "producer_id": -1, "producer_epoch": -1}
    deadline = time.monotonic() + READY_WITHIN_S
    while int(root.ask(ApiKey.INIT_PRODUCER_ID, 4, **begun).error_code):
        assert time.monotonic() < deadline
    wait_for_coordinator(root.requests, 2, f"{STATES}:{topic_id_text(root.topic_id(TOPIC).bytes)}:0", version=6)
    while int(root.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, **state()).results[0].partitions[0].error_code):
        assert time.monotonic() < deadline


def told(answer: Any) -> Any:
    """The codes of an answer, with the authorized operations; how records are acquired is of no matter here."""
    found = _without_records(codes(answer))
    return (found, sorted(_operations(answer)))


def _without_records(found: Any) -> Any:
    if isinstance(found, list):
        return [_without_records(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {name: _without_records(each) for name, each in found.items() if name != "acquired_records"}


def _operations(answer: Any) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for name in getattr(answer, "__dataclass_fields__", {}):
        value = getattr(answer, name)
        if name.endswith("authorized_operations"):
            found.append((str(getattr(answer, "name", getattr(answer, "group_id", ""))), int(value)))
        elif isinstance(value, tuple):
            found += [each for part in value for each in _operations(part)]
    return found


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.api.api_name}-{at}" for at, row in enumerate(ROWS)])
def test_an_api_is_denied_and_allowed_as_by_kafka(pair: AuthorizedPair, row: Row) -> None:
    def ask(system: AuthorizedSystem) -> Any:
        return told(system.alice.ask(row.api, row.version, **row.values))

    answers = []
    for count in range(len(row.rights) + 1):
        pair.grant(*row.rights[:count])
        answers.append(pair.same(ask))
    assert not row.rights or answers[0] != answers[-1], f"the rights change nothing: {answers[0]}"


TOKENS: list[tuple[ApiKey, int, Values]] = [
    (ApiKey.CREATE_DELEGATION_TOKEN, 3, {"max_lifetime": 1}),
    (ApiKey.RENEW_DELEGATION_TOKEN, 2, {"hmac": b"x", "renew_period": 1}),
    (ApiKey.EXPIRE_DELEGATION_TOKEN, 2, {"hmac": b"x", "expiry_time_period": 1}),
]


@pytest.mark.parametrize(("api", "version", "values"), TOKENS, ids=lambda each: getattr(each, "name", ""))
def test_delegation_tokens_are_refused_as_by_kafka(
    pair: AuthorizedPair, api: ApiKey, version: int, values: Values
) -> None:
    pair.grant()
    code = pair.same(lambda system: system.alice.requests.ask_raw(api, version, **values)[:2])
    assert code == struct.pack(">h", ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)


def test_every_api_has_a_row() -> None:
    with_row = {row.api for row in ROWS} | {api for api, *_ in TOKENS}
    needing = {key for key, served in SERVED_APIS.items() if not served.access.open_to_all}
    without = needing - with_row
    assert not without, f"no row says what {', '.join(key.api_name for key in without)} needs"


@pytest.mark.parametrize(
    "rights",
    [
        [Right(Op.ALL, On.TOPIC, TOPIC)],
        [Right(Op.READ, On.TOPIC, "*")],
        [Right(Op.READ, On.TOPIC, TOPIC[:2], PatternType.PREFIXED)],
        [Right(Op.READ, On.TOPIC, TOPIC, principal="User:*")],
        [Right(Op.READ, On.TOPIC, TOPIC, principal="User:bob")],
        [Right(Op.READ, On.TOPIC, TOPIC, host="127.0.0.1")],
        [Right(Op.READ, On.TOPIC, TOPIC, host="10.0.0.1")],
        [READ_TOPIC, Right(Op.READ, On.TOPIC, "*", permission_type=PermissionType.DENY)],
        [READ_TOPIC, Right(Op.ALL, On.TOPIC, TOPIC[:1], PatternType.PREFIXED, PermissionType.DENY)],
        [READ_TOPIC, Right(Op.WRITE, On.TOPIC, TOPIC, permission_type=PermissionType.DENY)],
        [
            Right(Op.WRITE, On.TOPIC, "a", PatternType.PREFIXED),
            Right(Op.WRITE, On.TOPIC, "a", PatternType.PREFIXED, PermissionType.DENY),
        ],
        [Right(Op.WRITE, On.TOPIC, "ab"), Right(Op.WRITE, On.TOPIC, "a", PatternType.PREFIXED, PermissionType.DENY)],
        [
            Right(Op.WRITE, On.TOPIC, "a", PatternType.PREFIXED),
            Right(Op.WRITE, On.TOPIC, "ab", permission_type=PermissionType.DENY),
        ],
        [Right(Op.WRITE, On.TOPIC, "*"), Right(Op.WRITE, On.TOPIC, "*", permission_type=PermissionType.DENY)],
        [Right(Op.DELETE, On.TOPIC, TOPIC)],
        [Right(Op.ALTER_CONFIGS, On.TOPIC, TOPIC)],
    ],
    ids=repr,
)
def test_patterns_denials_and_implied_operations_are_kafkas(pair: AuthorizedPair, rights: list[Right]) -> None:
    pair.grant(*rights)
    pair.same(lambda system: told(system.alice.ask(ApiKey.FETCH, 12, **fetching(topic=TOPIC))))
    topics = [{"topic_id": bytes(16), "name": TOPIC}]
    pair.same(
        lambda system: told(
            system.alice.ask(ApiKey.METADATA, 12, topics=topics, include_topic_authorized_operations=True)
        )
    )
    pair.same(lambda system: told(system.alice.ask(ApiKey.INIT_PRODUCER_ID, 4, producer_id=-1, producer_epoch=-1)))


@pytest.mark.parametrize(
    ("regex", "rights"),
    [
        (".*", [DESCRIBE_TOPIC]),
        (".*", [Right(Op.READ, On.TOPIC, "*"), on_topic(Op.READ), Right(Op.ALL, On.TOPIC, "_", *DENIED_PREFIX)]),
        ("o.*", [on_topic(Op.READ, "o"), on_topic(Op.READ, OTHER_TOPIC)]),
        ("o.*", [Right(Op.READ, On.TOPIC, TOPIC[:2], PatternType.PREFIXED)]),
    ],
    ids=["one", "all-but-internal", "other", "prefix"],
)
def test_a_regular_expression_finds_the_topics_that_it_finds_in_kafka(
    pair: AuthorizedPair, request: pytest.FixtureRequest, regex: str, rights: list[Right]
) -> None:
    """Those that alice may describe. Kafka looks them up in the background, so the first answers may have none."""
    group = f"by-regex-{request.node.callspec.id}"
    pair.grant(on_group(Op.READ, group), *rights)
    found = pair.same(lambda system: topics_assigned(system, group, regex))
    assert found, "alice has a right on one of them"


def topics_assigned(system: AuthorizedSystem, group: str, regex: str) -> list[str]:
    """The names of the topics that alice gets as the only member of the group."""
    wait_for_coordinator(system.root.requests, 0, group)
    deadline = time.monotonic() + READY_WITHIN_S

    def beat(**values: Any) -> Any:
        while True:
            answer = system.alice.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id="m", **values)
            if int(answer.error_code) not in UNREADY:
                assert not int(answer.error_code), answer
                return answer
            assert time.monotonic() < deadline, answer

    answer = beat(member_epoch=0, rebalance_timeout=10000, topic_partitions=[], subscribed_topic_regex=regex)
    while answer.assignment is None or not answer.assignment.topic_partitions:
        assert time.monotonic() < deadline, answer
        answer = beat(member_epoch=answer.member_epoch, rebalance_timeout=-1, topic_partitions=None)
    beat(member_epoch=-1, rebalance_timeout=-1)
    ids = {topic.topic_id for topic in answer.assignment.topic_partitions}
    topics = system.root.ask(ApiKey.METADATA, 12, topics=None).topics
    return sorted(topic.name for topic in topics if topic.topic_id in ids)


CONFIGS, CAROL = ("kafka-configs",), ("--entity-type", "users", "--entity-name", "carol")
ALL, DEFAULT = ("--operation", "All"), ("--entity-default",)
CLIENT, LOCAL = ("--entity-type", "clients", "--entity-name", "tool"), ("--entity-name", "127.0.0.9")
ACL = ("--allow-principal", "User:carol", "--operation", "Read")
TOOLS = {
    "acls": [
        ("kafka-acls", "--add", *ACL, "--topic", "orders", "--group", "workers"),
        ("kafka-acls", "--add", *ACL, "--topic", "ord", "--resource-pattern-type", "prefixed"),
        (
            "kafka-acls",
            "--add",
            "--deny-principal",
            "User:*",
            "--deny-host",
            "10.0.0.1",
            "--operation",
            "All",
            "--cluster",
        ),
        ("kafka-acls", "--add", "--allow-principal", "User:carol", "--producer", "--topic", "made", "--idempotent"),
        ("kafka-acls", "--list"),
        ("kafka-acls", "--list", "--topic", "orders", "--resource-pattern-type", "match"),
        ("kafka-acls", "--list", "--principal", "User:carol"),
        ("kafka-acls", "--remove", *ACL, "--topic", "orders", "--force"),
        ("kafka-acls", "--remove", "--cluster", "--force"),
        ("kafka-acls", "--list"),
    ],
    "quotas": [
        (*CONFIGS, "--alter", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048", *CAROL),
        (*CONFIGS, "--alter", "--add-config", "request_percentage=12.5", *CAROL, *CLIENT),
        (*CONFIGS, "--alter", "--add-config", "controller_mutation_rate=5", "--entity-type", "clients", *DEFAULT),
        (*CONFIGS, "--alter", "--add-config", "connection_creation_rate=7", "--entity-type", "ips", *LOCAL),
        (*CONFIGS, "--describe", *CAROL),
        (*CONFIGS, "--describe", *CAROL, *CLIENT),
        (*CONFIGS, "--describe", "--entity-type", "clients"),
        (*CONFIGS, "--describe", "--entity-type", "clients", *DEFAULT),
        (*CONFIGS, "--describe", "--entity-type", "ips"),
        (*CONFIGS, "--alter", "--delete-config", "producer_byte_rate", *CAROL),
        (*CONFIGS, "--describe", *CAROL),
        (*CONFIGS, "--alter", "--add-config", "producer_byte_rate=0", *CAROL),
        (*CONFIGS, "--alter", "--add-config", "connection_creation_rate=7", *CAROL),
    ],
    "users": [
        (*CONFIGS, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=carols]", *CAROL),
        (*CONFIGS, "--alter", "--add-config", "SCRAM-SHA-512=[password=carols]", *CAROL),
        (*CONFIGS, "--describe", *CAROL),
        (*CONFIGS, "--describe", "--entity-type", "users"),
        (*CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-256", *CAROL),
        (*CONFIGS, "--describe", *CAROL),
        (*CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-256", *CAROL),
        (*CONFIGS, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=100,password=carols]", *CAROL),
    ],
}


def in_any_order(printed: Printed) -> Printed:
    """Kafka keeps the ACLs of a resource, and the credentials of a user, in a set."""
    words = [" ".join(sorted(line.replace(",", " ").split())) for line in printed.lines]
    return printed._replace(lines=tuple(sorted(words)))


@pytest.mark.parametrize("steps", TOOLS.values(), ids=TOOLS)
def test_kafkas_tools_say_the_same(pair: AuthorizedPair, steps: list[tuple[str, ...]]) -> None:
    pair.grant()
    with ToolPair((pair.kshare.root.bootstrap, pair.kafka.root.bootstrap)) as tools:
        for step in steps:
            tools.same(*step, view=in_any_order)


def test_a_stranger_learns_nothing_and_changes_nothing(pair: AuthorizedPair) -> None:
    """Every version of every API, asked by alice without any right: the plainest request, and that of each row."""
    pair.grant()
    kshare = pair.kshare
    secrets = [name.encode() for name in (OTHER_TOPIC, MEMBERLESS, BUSY, SIMPLE, TRANSACTION)]
    secrets += [kshare.root.topic_id(name).bytes for name in (TOPIC, OTHER_TOPIC)]
    before = seen(kshare.root)
    for api, served in sorted(SERVED_APIS.items()):
        if api in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            continue
        for version in range(served.versions.minimum, served.versions.maximum + 1):
            with kshare.stranger() as alice:
                answer = alice.ask_plainest(api, version, **({"acks": 1} if api is ApiKey.PRODUCE else {}))
            found = [secret for secret in secrets if answer is not None and secret in answer]
            assert not found, f"{api.api_name} version {version} told {found}"
    for row in ROWS:
        kshare.alice.ask(row.api, row.version, **row.values)
    assert seen(kshare.root) == before


def seen(root: Asked) -> Any:
    """What an administrator sees of the cluster."""
    topics = root.ask(ApiKey.METADATA, 12, topics=None).topics
    groups = root.ask(ApiKey.LIST_GROUPS, 4).groups
    offsets = root.ask(ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": SIMPLE, "topics": None}]).groups
    ends = root.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=partitions(timestamp=-1)).topics
    users = root.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None).results
    configs_of_topic = root.ask(ApiKey.DESCRIBE_CONFIGS, 4, **configs(TOPIC_CONFIG, TOPIC, described=True)).results
    return (
        sorted((topic.name, len(topic.partitions)) for topic in topics),
        sorted(group.group_id for group in groups),
        [str(each) for each in (offsets, ends, users, configs_of_topic)],
        root.ask(ApiKey.DESCRIBE_ACLS, 3, **EVERY_ACL).resources,
    )
