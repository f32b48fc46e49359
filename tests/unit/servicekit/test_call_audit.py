"""The audit log of calls between processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kshare_core.security.bounded_lines import LINES_PER_SECOND
from kshare_rpc.exchange.tls import Caller
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DRAIN_LEADER, GIVE_UP_NODE
from kshare_servicekit.call_audit import REMEMBERED_CALLS_LIMIT, REPEATED_AFTER_S, CallAudit

CALLER = Caller(frozenset({"administrator"}), "CN=ann", "10.0.0.1")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "kshare.audit"]


@pytest.fixture(autouse=True)
def _captured(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO", "kshare.audit")
    monkeypatch.setattr("kshare_core.security.audit_log.log.propagate", True)


def test_a_command_says_who_what_from_where_and_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    audit = CallAudit("coordinator", 1, Clock())
    request = pb.GiveUpNodeRequest(node_id=3, role=pb.ROLE_LEADER)
    audit.operation(GIVE_UP_NODE, request, CALLER, pb.GiveUpNodeResponse(error_code=42, error_message="it lives"), "")
    (line,) = lines(caplog)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "logger": "kshare.audit",
        "event": "operation",
        "principal": "CN=ann",
        "roles": ["administrator"],
        "client_host": "10.0.0.1",
        "role": "coordinator",
        "node_id": 1,
        "api": "GiveUpNode",
        "request": {"node_id": 3, "role": "ROLE_LEADER"},
        "resource_count": 0,
        "outcome": "failed",
        "problem": "it lives",
    }


def test_a_command_that_waits_has_a_line_for_each_outcome_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    audit = CallAudit("coordinator", 1, clock)

    def ask(node_id: int, response: pb.DrainLeaderResponse | None = None, failure: str = "") -> None:
        audit.operation(DRAIN_LEADER, pb.DrainLeaderRequest(node_id=node_id), CALLER, response, failure)

    for left in (3, 2, 1):
        ask(1, pb.DrainLeaderResponse(partitions_left=left))
    assert len(lines(caplog)) == 1
    ask(1, None, "it stopped")
    ask(2, pb.DrainLeaderResponse())
    assert [line["outcome"] for line in lines(caplog)] == ["succeeded", "failed", "succeeded"]
    clock.now_s = REPEATED_AFTER_S
    ask(1, pb.DrainLeaderResponse())
    assert len(lines(caplog)) == 4
    for node_id in range(10, 10 + 2 * REMEMBERED_CALLS_LIMIT):
        ask(node_id)
    assert len(audit._written) == REMEMBERED_CALLS_LIMIT


def test_denials_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    audit = CallAudit("coordinator", 1, clock)
    for _ in range(3 * LINES_PER_SECOND):
        audit.denial(GIVE_UP_NODE.path, CALLER)
    assert len(lines(caplog)) == LINES_PER_SECOND
    clock.now_s = 1.0
    audit.denial(GIVE_UP_NODE.path, CALLER)
    assert lines(caplog)[-1]["api"] == "GiveUpNode"
    assert lines(caplog)[-1]["left_out_before"] == 2 * LINES_PER_SECOND
