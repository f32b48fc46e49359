"""The audit log: a line for each administrative operation and denial, without any value that could be a secret."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, ResourceType
from kshare_core.security.audit_log import write_audit_line
from kshare_core.security.bounded_lines import LINES_PER_SECOND
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.audit import AUDITED, Audit
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.create_topics import CreatableTopic, CreateTopicsRequest
from kshare_wire.generated.requests.delete_records import DeleteRecordsRequest, DeleteRecordsTopic
from kshare_wire.generated.requests.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kshare_wire.generated.requests.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kshare_wire.generated.responses.create_topics import CreatableTopicResult, CreateTopicsResponse
from kshare_wire.generated.responses.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kshare_wire.generated.responses.incremental_alter_configs import IncrementalAlterConfigsResponse
from kshare_wire.generated.responses.write_txn_markers import WriteTxnMarkersResponse

CONTEXT = cast(
    RequestContext,
    SimpleNamespace(
        principal="User:alice",
        client_host="/10.0.0.1",
        listener="SECURE",
        client_id="tool",
        gateway=SimpleNamespace(node_id=7),
    ),
)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "kshare.audit"]


@pytest.fixture(autouse=True)
def _captured(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO", "kshare.audit")
    monkeypatch.setattr("kshare_core.security.audit_log.log.propagate", True)


def test_an_operation_says_who_what_from_where_and_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name="a"), CreatableTopic(name="b")], timeout_ms=1)
    refused = CreatableTopicResult(name="b", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
    response = CreateTopicsResponse(topics=[CreatableTopicResult(name="a"), refused])
    Audit().operation(CONTEXT, ApiKey.CREATE_TOPICS, request, response)
    (line,) = lines(caplog)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "logger": "kshare.audit",
        "event": "operation",
        "principal": "User:alice",
        "client_host": "10.0.0.1",
        "listener": "SECURE",
        "client_id": "tool",
        "node_id": 7,
        "api": "CreateTopics",
        "resources": [{"name": "a"}, {"name": "b"}],
        "resource_count": 2,
        "outcome": "failed",
        "error_codes": {"TOPIC_ALREADY_EXISTS": 1},
    }


def test_texts_of_clients_have_no_controls_of_terminals(caplog: pytest.LogCaptureFixture) -> None:
    text = "orders\x9b2J\u202e\u2028"
    write_audit_line("operation", {"client_id": text})
    (record,) = [record for record in caplog.records if record.name == "kshare.audit"]
    assert record.getMessage().isascii() and json.loads(record.getMessage())["client_id"] == text


def test_configs_are_named_without_their_values(caplog: pytest.LogCaptureFixture) -> None:
    config = AlterableConfig(name="listener.name.x.ssl.key.password", config_operation=0, value="planted")
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    Audit().operation(CONTEXT, ApiKey.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse(responses=[]))
    (line,) = lines(caplog)
    assert line["resources"] == [
        {"resource_type": 4, "resource_name": "1", "configs": ["listener.name.x.ssl.key.password"]}
    ]
    assert line["outcome"] == "succeeded" and "planted" not in json.dumps(line)


def test_a_transaction_that_an_administrator_ends_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    topic = WritableTxnMarkerTopic(name="orders", partition_indexes=[0])
    marker = WritableTxnMarker(producer_id=7, producer_epoch=3, transaction_result=True, topics=[topic])
    request = WriteTxnMarkersRequest(markers=[marker])
    Audit().operation(CONTEXT, ApiKey.WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse(markers=[]))
    (line,) = lines(caplog)
    assert line["api"] == "WriteTxnMarkers" and line["outcome"] == "succeeded"
    assert line["resources"] == [{"producer_id": 7, "transaction_result": 1, "topics": ["orders"]}]


def _records_deleted(*codes: int) -> DeleteRecordsResponse:
    partitions = [DeleteRecordsPartitionResult(partition_index=n, error_code=code) for n, code in enumerate(codes)]
    return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="a", partitions=partitions)])


def test_what_changed_nothing_has_a_limit_and_what_may_have_changed_something_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 100.0
    audit = Audit(lambda: now_s)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="a")], timeout_ms=1)
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for _ in range(LINES_PER_SECOND + 7):
        audit.operation(CONTEXT, ApiKey.DELETE_RECORDS, request, _records_deleted(unknown, unknown))
    assert len(lines(caplog)) == LINES_PER_SECOND
    for _ in range(LINES_PER_SECOND + 7):
        audit.operation(CONTEXT, ApiKey.DELETE_RECORDS, request, _records_deleted(unknown, 0, unknown))
        audit.operation(CONTEXT, ApiKey.DELETE_RECORDS, request, _records_deleted(0))
    assert len(lines(caplog)) == LINES_PER_SECOND + 2 * (LINES_PER_SECOND + 7)
    now_s = 101.0
    audit.operation(CONTEXT, ApiKey.DELETE_RECORDS, request, _records_deleted(unknown))
    assert lines(caplog)[-1]["left_out_before"] == 7


def test_denials_have_a_limit_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    audit = Audit(lambda: now_s)
    for _ in range(LINES_PER_SECOND + 25):
        audit.denial(CONTEXT, Operation.READ, ResourceType.TOPIC, "t" * 1000)
    assert len(lines(caplog)) == LINES_PER_SECOND
    now_s = 101.0
    audit.denial(CONTEXT, Operation.READ, ResourceType.TOPIC, "t")
    last = lines(caplog)[-1]
    assert (last["event"], last["operation"], last["left_out_before"]) == ("denied", "READ", 25)
    assert len(lines(caplog)[0]["resource_name"]) == 300


def test_denials_of_clients_that_try_again_hide_no_others(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(lambda: 100.0)
    for _ in range(LINES_PER_SECOND + 1):
        audit.denial(CONTEXT, Operation.READ, ResourceType.TOPIC, "t")
    audit.denial(CONTEXT, Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert len(lines(caplog)) == LINES_PER_SECOND + 1 and lines(caplog)[-1]["operation"] == "ALTER"


def test_every_api_that_alters_creates_or_deletes_is_audited() -> None:
    """Save those of a client's own work: its session, its transaction. States of share-partitions are of others."""
    changing = {
        key
        for key in SERVED_APIS
        if key.api_name.startswith(("Alter", "Create", "Delete", "Incremental", "InitializeShare", "WriteShare"))
    }
    assert changing - {ApiKey.CREATE_DELEGATION_TOKEN} <= AUDITED and set(SERVED_APIS) >= AUDITED
