"""A denial of what a client asked for has a line in the audit log, in every API; a check that only filters has none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import MEMBER, TOPIC_ID, GatewayHarness, run

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
GROUP = {"group_id": "open", "member_id": MEMBER}
SHARE_TOPICS = [{"topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, "acknowledgement_batches": []}]}]
ACKNOWLEDGED = [
    {
        "topic_id": TOPIC_ID,
        "partitions": [
            {
                "partition_index": 0,
                "acknowledgement_batches": [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}],
            }
        ],
    }
]
FETCHED = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 100} for number in range(3)]
OFFSETS_OF = {"group_id": "open", "topics": [{"name": "orders", "partition_indexes": [0]}]}
Case = tuple[ApiKey, int, dict[str, Any], list[tuple[str, str, str]]]
READ_ORDERS, DESCRIBE_ORDERS = ("READ", "TOPIC", "orders"), ("DESCRIBE", "TOPIC", "orders")
CASES: dict[str, Case] = {
    "Fetch": (
        ApiKey.FETCH,
        12,
        {"max_wait": 0, "min_bytes": 0, "topics": [{"topic": "orders", "partitions": FETCHED}]},
        [READ_ORDERS],
    ),
    "ShareFetch": (
        ApiKey.SHARE_FETCH,
        1,
        {**GROUP, "share_session_epoch": 0, "topics": SHARE_TOPICS, "max_wait": 0, "max_records": 1, "max_bytes": 1},
        [READ_ORDERS],
    ),
    "Metadata": (ApiKey.METADATA, 12, {"topics": [{"name": "orders"}]}, [DESCRIBE_ORDERS]),
    "Metadata of all topics": (ApiKey.METADATA, 12, {"topics": None}, []),
    "Metadata that creates": (
        ApiKey.METADATA,
        12,
        {"topics": [{"name": "described"}], "allow_auto_topic_creation": True},
        [("CREATE", "TOPIC", "described")],
    ),
    "DescribeTopicPartitions": (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": "orders"}], "cursor": None},
        [DESCRIBE_ORDERS],
    ),
    "DescribeTopicPartitions of all topics": (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [], "cursor": None},
        [],
    ),
    "OffsetFetch": (ApiKey.OFFSET_FETCH, 8, {"groups": [OFFSETS_OF]}, [DESCRIBE_ORDERS]),
    "OffsetFetch of a group": (
        ApiKey.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": "closed", "topics": None}]},
        [("DESCRIBE", "GROUP", "closed")],
    ),
    "FindCoordinator": (
        ApiKey.FIND_COORDINATOR,
        4,
        {"key_type": 0, "coordinator_keys": ["closed"]},
        [("DESCRIBE", "GROUP", "closed")],
    ),
    "InitProducerId": (
        ApiKey.INIT_PRODUCER_ID,
        4,
        {"transactional_id": None, "transaction_timeout": 1},
        [("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster")],
    ),
    "AddPartitionsToTxn": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {
            "v3_and_below_transactional_id": "open",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 1,
            "v3_and_below_topics": [{"name": "orders", "partitions": [0]}],
        },
        [("WRITE", "TOPIC", "orders")],
    ),
    "CreateTopics": (
        ApiKey.CREATE_TOPICS,
        5,
        {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}], "timeout": 1},
        [("CREATE", "TOPIC", "new")],
    ),
    "DeleteTopics": (
        ApiKey.DELETE_TOPICS,
        5,
        {"topic_names": ["orders"], "timeout": 1},
        [("DELETE", "TOPIC", "orders")],
    ),
    "DescribeShareGroupOffsets": (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        0,
        {"groups": [{"group_id": "open", "topics": [{"topic_name": "orders", "partitions": [0]}]}]},
        [DESCRIBE_ORDERS],
    ),
    "ListGroups": (ApiKey.LIST_GROUPS, 4, {}, []),
}


def acl(resource_type: ResourceType, name: str, operation: Operation) -> Acl:
    return Acl(
        resource_type=resource_type,
        resource_name=name,
        pattern_type=PatternType.LITERAL,
        principal="User:*",
        host="*",
        operation=operation,
        permission_type=PermissionType.ALLOW,
    )


@pytest.fixture(autouse=True)
def _captured(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the test begins: pytest captures a logger that does not propagate then by itself, too."""
    caplog.set_level("INFO", "kshare.audit")
    monkeypatch.setattr("kshare_core.security.audit_log.log.propagate", True)


@pytest.mark.parametrize("name", CASES)
def test_a_denial_of_what_was_asked_for_has_one_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    api_key, version, fields, expected = CASES[name]

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.acls += [
            acl(ResourceType.GROUP, "open", Operation.ALL),
            acl(ResourceType.TRANSACTIONAL_ID, "open", Operation.ALL),
            acl(ResourceType.TOPIC, "described", Operation.DESCRIBE),
        ]
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        await harness.client().ask(api_key, version, **fields)

    run(scenario, AUTHORIZER)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "kshare.audit"]
    denied = [line for line in lines if line["event"] == "denied"]
    assert [(line["operation"], line["resource_type"], line["resource_name"]) for line in denied] == expected
    assert all(line["principal"] == "User:ANONYMOUS" for line in denied)


def test_an_acknowledgement_without_read_has_a_line(caplog: pytest.LogCaptureFixture) -> None:

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.acls.append(acl(ResourceType.GROUP, "open", Operation.ALL))
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        client = harness.client()
        opened = {"share_session_epoch": 0, "topics": [], "max_wait": 0, "max_records": 1, "max_bytes": 1}
        await client.ask(ApiKey.SHARE_FETCH, 1, **GROUP, **opened)
        await client.ask(ApiKey.SHARE_ACKNOWLEDGE, 1, **GROUP, share_session_epoch=1, topics=ACKNOWLEDGED)

    run(scenario, AUTHORIZER)
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == "kshare.audit"]
    assert (line["event"], line["operation"], line["resource_name"]) == ("denied", "READ", "orders")
