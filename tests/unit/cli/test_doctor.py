"""`kshare doctor`: what each check finds, and what it says to do."""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kshare.addresses import Address, parse_address
from kshare.commands.cluster.doctor import (
    Finding,
    SetUp,
    Severity,
    check_advertised_addresses,
    check_client_library,
    check_data_directory,
    check_partitions,
    check_roles,
    check_with_coordinator,
    show_findings,
)
from kshare.main import main
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import COORDINATOR, DESCRIBE_NODES, DESCRIBE_PARTITIONS
from kshare_rpc.network import Method, Service
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker
from support.servicekit.grpc_serving import grpc_serving


@contextmanager
def coordinator(nodes: pb.DescribeNodesResponse, partitions: pb.DescribePartitionsResponse) -> Iterator[Address]:
    """The address of a coordinator that gives these answers."""

    async def describe_nodes(_: pb.DescribeNodesRequest, __: memoryview) -> pb.DescribeNodesResponse:
        return nodes

    async def describe_partitions(_: pb.DescribePartitionsRequest, __: memoryview) -> pb.DescribePartitionsResponse:
        return partitions

    handlers: dict[Method[Any, Any], Any] = {DESCRIBE_NODES: describe_nodes, DESCRIBE_PARTITIONS: describe_partitions}
    with grpc_serving(Service(COORDINATOR, handlers)) as address:
        yield parse_address(str(address), what="address")


def nodes_of(*roles: pb.Role.ValueType, lease_ms: int = 1_000) -> list[pb.DescribeNodesResponse.DescribedNode]:
    return [
        pb.DescribeNodesResponse.DescribedNode(node=pb.Node(role=role, node_id=1), lease_remaining_ms=lease_ms)
        for role in roles
    ]


ALL_ROLES = (pb.ROLE_GATEWAY, pb.ROLE_SHARE_COORDINATOR, pb.ROLE_LEADER)


def severities(findings: list[Finding]) -> list[Severity]:
    return [finding.severity for finding in findings]


def test_all_roles_are_live() -> None:
    with coordinator(pb.DescribeNodesResponse(nodes=nodes_of(*ALL_ROLES)), pb.DescribePartitionsResponse()) as address:
        (finding,) = check_roles(address)
    assert finding.severity is Severity.OK and "1 gateway, 1 share-coordinator, 1 leader" in finding.text


def test_a_role_without_a_live_node_and_a_problem_of_the_cluster() -> None:
    nodes = [*nodes_of(pb.ROLE_GATEWAY, pb.ROLE_LEADER), *nodes_of(pb.ROLE_SHARE_COORDINATOR, lease_ms=0)]
    answer = pb.DescribeNodesResponse(nodes=nodes, cluster_problems=["two coordinators are active"])
    with coordinator(answer, pb.DescribePartitionsResponse()) as address:
        missing, problem = check_roles(address)
    assert missing.text == "no share-coordinator is live" and "start a share-coordinator" in missing.advice
    assert problem.text == "two coordinators are active"
    assert severities([missing, problem]) == [Severity.PROBLEM, Severity.PROBLEM]


def test_partitions_of_a_leader_that_is_gone() -> None:
    answer = pb.DescribePartitionsResponse()
    answer.leaders.add(node_id=1, is_live=True, partition_count=2)
    answer.leaders.add(node_id=2, is_live=False, partition_count=3)
    with coordinator(pb.DescribeNodesResponse(), answer) as address:
        (finding,) = check_partitions(address)
    assert finding.severity is Severity.PROBLEM and "leader 2 is gone, and 3 partitions with it" in finding.text
    assert "start leader 2 again" in finding.advice and "kshare partitions give-up 2" in finding.advice


@pytest.mark.parametrize(("counts", "is_uneven"), [((9, 4), False), ((10, 4), True), ((1, 0), False), ((5,), False)])
def test_leaders_with_very_different_numbers_of_partitions(counts: tuple[int, ...], is_uneven: bool) -> None:
    answer = pb.DescribePartitionsResponse()
    for node_id, count in enumerate(counts, start=1):
        answer.leaders.add(node_id=node_id, is_live=True, partition_count=count)
    answer.leaders.add(node_id=9, is_live=True, is_draining=True)
    with coordinator(pb.DescribeNodesResponse(), answer) as address:
        found = severities(list(check_partitions(address)))
    assert found == [Severity.WARNING, Severity.OK] if is_uneven else found == [Severity.OK]


def metadata(*addresses: Address) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=address.host, port=address.port)
            for node_id, address in enumerate(addresses)
        ]
    )


def test_advertised_addresses_that_can_and_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        reached = Address("127.0.0.1", server.getsockname()[1])
        closed = Address("127.0.0.1", other.getsockname()[1])
        other.close()
        findings = list(check_advertised_addresses(SetUp("localhost:9092"), metadata(reached, closed)))
        assert severities(findings) == [Severity.OK, Severity.PROBLEM]
        assert f"node 1 at {closed}: cannot connect" in findings[1].text and "--advertised" in findings[1].advice
        (finding,) = check_advertised_addresses(SetUp("kafka.example.com:9092"), metadata(reached))
    assert finding.severity is Severity.PROBLEM and "another machine for each of them" in finding.text


def test_the_data_directory(tmp_path: Path) -> None:
    assert list(check_data_directory(SetUp("localhost:9092"))) == []
    (found,) = check_data_directory(SetUp("localhost:9092", data_dir=tmp_path))
    assert f"are free for {tmp_path}" in found.text
    (missing,) = check_data_directory(SetUp("localhost:9092", data_dir=tmp_path / "other"))
    assert missing.severity is Severity.PROBLEM and "No such file" in missing.text


def test_the_client_library() -> None:
    assert severities(list(check_client_library())) == [Severity.OK]


def test_findings_as_text_and_as_json() -> None:
    findings = [Finding("a", Severity.OK, "fine"), Finding("b", Severity.PROBLEM, "not [fine]", "do this")]
    text, data = io.StringIO(), io.StringIO()
    show_findings(findings, Console(file=text, width=40), as_json=False)
    assert text.getvalue().splitlines() == [
        "ok       fine",
        "problem  not [fine]",
        "         → do this",
        "1 problem, 0 warnings",
    ]
    show_findings(findings, Console(file=data), as_json=True)
    found = json.loads(data.getvalue())
    assert found["problems"] == 1 and found["findings"][1] == {
        "check": "b",
        "severity": "problem",
        "text": "not [fine]",
        "advice": "do this",
    }


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(sys, "argv", ["kshare", "doctor", "--bootstrap", f"127.0.0.1:{port}"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert ended.value.code == 1 and f"problem  cannot connect to 127.0.0.1:{port}" in printed
    assert "→ start kshare up" in printed and "1 problem, 0 warnings" in printed
    assert "kshare doctor" not in printed, "that is this command"


def test_a_data_directory_on_which_no_coordinator_runs_is_one_problem_with_advice(tmp_path: Path) -> None:
    (finding,) = check_with_coordinator(SetUp("localhost:9092", data_dir=tmp_path))
    assert finding.severity is Severity.PROBLEM and f"no coordinator runs on {tmp_path}" in finding.text
    assert "give the --data-dir of a kshare up that runs" in finding.advice


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--bootstrap", "nonsense"], "--bootstrap must be HOST:PORT"),
        (["--bootstrap", "127.0.0.1:1", "--coordinator", "foo"], "--coordinator must be HOST:PORT"),
        (["--bootstrap", "127.0.0.1:1", "--command-config", "client.properties"], "cannot load the certificates"),
    ],
)
def test_a_wrong_option_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("client.properties").write_text("security.protocol=ssl\nssl.ca.location=missing.pem\n")
    monkeypatch.setattr(sys, "argv", ["kshare", "doctor", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 2 and printed.out == ""
    assert printed.err.startswith("kshare: ") and line in printed.err and printed.err.count("\n") == 1
