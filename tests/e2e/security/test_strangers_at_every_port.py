"""With an authorizer and nothing else configured, `kshare up` shows strangers of its machine that it is there, no more.

A stranger has no certificate, one of another authority, or the certificate of a role that may not make the call. Every
RPC method is tried at every role's port. Every version of every API at the clients' port: test_acls_like_kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from typer.testing import CliRunner

from kshare.main import app
from kshare_core.configs import process_configs
from kshare_core.health_services import CLUSTER
from kshare_rpc.exchange.tls import EVERY_ROLE, ExchangeTls
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallFailed, Method
from kshare_servicekit.properties import parse_properties
from kshare_servicekit.tls.between_roles import exchange_tls
from kshare_servicekit.tls.role_authority import LIFETIME, RoleAuthority
from support.clients.administration import read_from_earliest
from support.clients.delivery import Reader, new_topic, produce, set_group, wait_for
from support.clusters.kshare_cluster import KshareCluster, children_of
from support.environment.free_ports import free_port
from support.environment.listening_sockets import listening_ports, listening_unix_sockets
from support.kafka.authorized_pair import AUTHORIZER
from support.servicekit.scraped import Scraped

CALL_TIMEOUT_MS = 3_000
CALLED_ROLES = ("coordinator", "share-coordinator", "leader")
METRICS_TOKEN = "scraper-token"
METHODS = [method for method in vars(methods).values() if isinstance(method, Method)]
TOPIC = "of-the-owner"


@pytest.fixture(scope="module", params=["processes", "single process"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    folder = tmp_path_factory.mktemp("strangers")
    settings = {**AUTHORIZER, "kshare.metrics.bearer.token": METRICS_TOKEN}
    is_single = request.param == "single process"
    options = ("--metrics-listen", "127.0.0.1:0")
    with KshareCluster(folder, settings, single_process=is_single, options=options) as cluster:
        new_topic(cluster.bootstrap, name=TOPIC)
        yield cluster


def is_told(answer: object) -> bool:
    return not isinstance(answer, CallFailed)


def test_clients_and_commands_find_nothing_missing(cluster: KshareCluster) -> None:
    topic = new_topic(cluster.bootstrap)
    produce(cluster.bootstrap, topic, ["one", "two"])
    set_group(cluster.bootstrap, topic, auto_offset_reset="earliest")
    reader = Reader(cluster.bootstrap, topic, topic)
    reader.accept(2)
    reader.close()
    read_from_earliest(cluster.bootstrap, topic)
    assert "may be called by" not in cluster.log_text()
    for command in (["nodes"], ["state", "partitions"], ["partitions", "list"], ["state", "verify"]):
        result = CliRunner().invoke(app, [*command, "--data-dir", str(data(cluster))])
        assert result.exit_code == 0, (command, result.output, result.exception)


def test_what_is_written_is_for_its_owner_only(cluster: KshareCluster) -> None:
    folder = data(cluster) / "certificates"
    assert folder.stat().st_mode & 0o077 == 0
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert not any("CERTIFICATE AUTHORITY" in file.read_text() for file in folder.iterdir())
    assert "PRIVATE KEY" not in (folder / "authority.pem").read_text()


@pytest.mark.parametrize("kind", ["without a certificate", "of another authority"])
def test_no_method_is_answered_to_who_is_no_role(cluster: KshareCluster, kind: str, tmp_path: Path) -> None:
    tls = None if kind == "without a certificate" else certificate_of_another_authority(cluster, tmp_path)
    for role, address in role_addresses(cluster).items():
        answers = asyncio.run(call_all(address, tls, METHODS))
        told = [method.path for method, answer in answers if is_told(answer)]
        assert not told, f"{role} answered {told}"


def test_nor_where_clients_authenticate_and_no_authorizer_is_set(tmp_path: Path) -> None:
    """A password at the clients' port is worth nothing if the ports behind it ask for none."""
    port = free_port()
    settings = {
        "listeners": f"USERS://127.0.0.1:{port}",
        "listener.security.protocol.map": "USERS:SASL_PLAINTEXT",
        "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
        ),
    }
    with KshareCluster(tmp_path, settings, port=port) as cluster:
        for role, address in role_addresses(cluster).items():
            told = [each.path for each, answer in asyncio.run(call_all(address, None, METHODS)) if is_told(answer)]
            assert not told, f"{role} answered {told}"


@pytest.mark.parametrize("role", [*CALLED_ROLES, "gateway", "administrator"])
def test_a_role_may_call_what_is_for_it_and_nothing_else(cluster: KshareCluster, role: str) -> None:
    tls = certificate_of(cluster, role)
    name = role.replace("-", "_")
    denied = [method for method in METHODS if method.callers and name not in method.callers]
    assert denied
    for called, address in role_addresses(cluster).items():
        service = "".join(word.capitalize() for word in called.split("-"))
        expected = [method for method in denied if method.service == service]
        for method, answer in asyncio.run(call_all(address, tls, expected)):
            assert isinstance(answer, CallFailed) and "may be called by" in str(answer), (method.path, answer)


def test_commands_and_refusals_are_in_the_audit_log(cluster: KshareCluster) -> None:
    command = ["partitions", "move", f"{TOPIC}:0", "--to", "1", "--data-dir", str(data(cluster))]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, (result.output, result.exception)
    # The coordinator writes the line before it answers, and `kshare up` passes it on to its output after that.
    wait_for(lambda: bool(audit_lines(cluster, "operation", "MovePartitions")), "the move is in the audit log")
    (moved,) = audit_lines(cluster, "operation", "MovePartitions")
    who = {"principal": "CN=administrator", "roles": ["administrator"], "client_host": "127.0.0.1"}
    assert {**moved, **who, "role": "coordinator", "outcome": "succeeded"} == moved
    assert TOPIC in json.dumps(moved["request"])

    def is_denied() -> bool:
        """Denials beyond ten within a second have no line of their own."""
        address = role_addresses(cluster)["coordinator"]
        asyncio.run(call_all(address, certificate_of(cluster, "leader"), [methods.GIVE_UP_NODE]))
        found = audit_lines(cluster, "denied", "GiveUpNode")
        return any(line["principal"] == "CN=leader" for line in found)

    wait_for(is_denied, "the leader's attempt is in the audit log")


def test_every_method_says_who_may_call_it() -> None:
    assert [method.path for method in METHODS if not method.callers] == []
    assert all(set(method.callers) <= EVERY_ROLE for method in METHODS)


def test_operations_addresses_show_health_and_nothing_else(cluster: KshareCluster) -> None:
    addresses = [address for address in operations_addresses(cluster) if address]
    assert len(addresses) >= 2
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            wait_for(partial(is_serving, health), f"{address} says that it serves")
            _, call = health.Check.with_call(health_pb2.HealthCheckRequest(service=""), timeout=5)
            with contextlib.suppress(grpc.RpcError):  # of roles that do not know the cluster
                _, call = health.Check.with_call(health_pb2.HealthCheckRequest(service=CLUSTER), timeout=5)
            assert "kshare-problems-bin" not in {key for key, _ in call.trailing_metadata() or ()}
            for method in METHODS:
                assert unary_status(channel, f"/kshare.v1.{method.path}") is grpc.StatusCode.UNIMPLEMENTED
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            with pytest.raises(grpc.RpcError):
                next(reflection)


def test_metrics_need_the_token(cluster: KshareCluster) -> None:
    for url in metrics_urls(cluster):
        assert http_status(url, None) == http_status(url, "wrong") == (401, False)
        assert http_status(url, METRICS_TOKEN) == (200, True)


def test_each_process_tells_when_its_certificate_for_other_roles_expires(cluster: KshareCluster) -> None:
    for url in metrics_urls(cluster):
        request = urllib.request.Request(f"http://{url}", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            expires_at_s = Scraped(answer.read().decode()).value("role_certificate_expiry_timestamp_seconds")
        assert time.time() + 86_400 < expires_at_s < time.time() + 2 * LIFETIME.total_seconds()


def test_a_stranger_that_connects_and_says_nothing_holds_nothing(cluster: KshareCluster) -> None:
    """The handshake has a time limit, so an idle connection ends."""
    with contextlib.ExitStack() as stack:
        addresses = [address.rpartition(":") for address in role_addresses(cluster).values()]
        idle = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30)) for host, _, port in addresses
        ]
        assert [each.recv(1) for each in idle] == [b""] * len(idle)


def test_nothing_else_listens(cluster: KshareCluster) -> None:
    """Every TCP port and Unix socket of all processes is one of those that the tests above or the ACLs' tests scan."""
    pids = [cluster.pid, *children_of(cluster.pid)]
    scanned = {cluster.port, *ports_of_roles(cluster).values()}
    scanned |= {int(address.rpartition(":")[2]) for address in operations_addresses(cluster) if address}
    lines = cluster.log_text().splitlines()
    scanned |= {int(line.rpartition(":")[2].partition("/")[0]) for line in lines if "metrics of " in line}
    assert listening_ports(pids) <= scanned
    assert listening_unix_sockets(pids) == set()
    found = {port for port in listening_ports(pids) if port in scanned}
    assert len(found) >= 4


def data(cluster: KshareCluster) -> Path:
    return cluster.data_dir


def audit_lines(cluster: KshareCluster, event: str, api: str) -> list[dict[str, Any]]:
    texts = [text for text in cluster.log_text().splitlines() if '"logger": "kshare.audit"' in text]
    found = [json.loads(text[text.index("{") :]) for text in texts]
    return [line for line in found if line["event"] == event and line.get("api") == api]


def ports_of_roles(cluster: KshareCluster) -> dict[str, int]:
    found: dict[str, int] = json.loads((data(cluster) / "ports.json").read_text())
    return found


def role_addresses(cluster: KshareCluster) -> dict[str, str]:
    """The addresses of the roles that take calls of other processes."""
    listening = listening_ports([cluster.pid, *children_of(cluster.pid)])
    ports = {role: ports_of_roles(cluster)[role] for role in CALLED_ROLES}
    found = {role: f"127.0.0.1:{port}" for role, port in ports.items() if port in listening}
    assert set(found) >= {"coordinator", "share-coordinator"}
    return found


def operations_addresses(cluster: KshareCluster) -> list[str]:
    """As the roles' ready files tell them, or their log lines where there is no file."""
    found = []
    for file in (data(cluster) / "run").glob("*.ready"):
        lines = dict(line.partition("=")[::2] for line in file.read_text().splitlines())
        found.append(lines.get("operations_address", ""))
    return found


def certificate_of(cluster: KshareCluster, role: str) -> ExchangeTls:
    properties = parse_properties((data(cluster) / "certificates" / f"{role}.properties").read_text())
    tls = exchange_tls(process_configs(properties)[0])
    assert tls is not None
    return tls


def certificate_of_another_authority(cluster: KshareCluster, folder: Path) -> ExchangeTls:
    """One that claims all roles; it trusts the cluster's authority, so only the cluster can end the connection."""
    issued = RoleAuthority.create().issue(sorted(EVERY_ROLE), names=["localhost"], addresses=["127.0.0.1"])
    store = folder / "stranger.pem"
    store.write_text(issued.certificate_pem + issued.key_pem)
    texts = {
        "kshare.rpc.ssl.keystore.location": str(store),
        "kshare.rpc.ssl.truststore.location": str(data(cluster) / "certificates" / "authority.pem"),
    }
    tls = exchange_tls(process_configs(texts)[0])
    assert tls is not None
    return tls


async def call_all(
    address: str, tls: ExchangeTls | None, called: list[Method[Any, Any]]
) -> list[tuple[Method[Any, Any], Any]]:
    channel = GrpcNetwork(tls=tls, local_sockets=False).connect(address)
    try:
        answers = await asyncio.gather(*(answer_of(channel, method) for method in called))
        return list(zip(called, answers, strict=True))
    finally:
        await channel.close()


async def answer_of(channel: Any, method: Method[Any, Any]) -> Any:
    try:
        answer, _ = await channel.call(method, method.request_type(), timeout_ms=CALL_TIMEOUT_MS)
    except CallFailed as failure:
        return failure
    return answer


def is_serving(health: Any) -> bool:
    answer = health.Check(health_pb2.HealthCheckRequest(service=""), timeout=5)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def unary_status(channel: grpc.Channel, path: str) -> Any:
    call = channel.unary_unary(
        path,
        request_serializer=coordinator_pb2.DescribeNodesRequest.SerializeToString,
        response_deserializer=empty_pb2.Empty.FromString,
    )
    try:
        call(coordinator_pb2.DescribeNodesRequest(), timeout=5)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def metrics_urls(cluster: KshareCluster) -> list[str]:
    found = [line.partition("http://")[2] for line in cluster.log_text().splitlines() if "metrics of " in line]
    assert found
    return found


def http_status(url: str, token: str | None) -> tuple[int, bool]:
    """The status, and whether the answer has metrics of kshare."""
    request = urllib.request.Request(f"http://{url}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, b"kshare_" in answer.read()
    except urllib.error.HTTPError as error:
        return error.code, TOPIC.encode() in error.read()
