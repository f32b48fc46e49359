"""TLS listeners with real clients: confluent-kafka, Apache Kafka's own, and connections by hand.

The cluster listens three times: PLAINTEXT, SSL, and MUTUAL, which is TLS that takes no client without a certificate.
Its roles have TLS between them, too. In front of an existing cluster there is no MUTUAL, because TLS ends here, and who
a client is must be known there.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, ShareConsumer
from typer.testing import CliRunner

from kshare.main import app
from support.clients.administration import create_topic, read_from_earliest
from support.clients.tls_connection import TlsConnection
from support.clusters.engines import TestEngine, engine_of_tests
from support.clusters.kshare_cluster import KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port
from support.kafka.java_clients import JavaClients

TIMEOUT_S = 30.0
VALUES = [f"value-{number}".encode() for number in range(20)]


@dataclass(frozen=True)
class Secured:
    """The running cluster, its ports and the files of its certificates."""

    cluster: KshareCluster
    ssl_port: int
    mutual_port: int | None
    authority: Authority
    folder: Path

    @property
    def port_with_certificates(self) -> int:
        """Where a client may show a certificate, and must if there is a port for that."""
        return self.mutual_port or self.ssl_port

    @property
    def authority_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def keystore(self) -> Path:
        return self.folder / "server.pem"

    def client(self, port: int) -> dict[str, Any]:
        """Settings of a confluent-kafka client."""
        return {
            "bootstrap.servers": f"localhost:{port}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority_file),
        }

    def topic(self) -> str:
        name = f"tls-{uuid.uuid4().hex[:8]}"
        create_topic(self.cluster.bootstrap, name, 1)
        return name


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    names = ["PLAINTEXT", "SSL", "MUTUAL"] if engine_of_tests() is TestEngine.EMBEDDED else ["PLAINTEXT", "SSL"]
    authority, ports = Authority("kshare"), [free_port() for _ in names]
    authority.write(folder / "ca.pem")
    authority.issue("localhost").write_combined(folder / "server.pem")
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)),
        "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in zip(names, ports, strict=True)),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
        "group.initial.rebalance.delay.ms": "0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
    }
    if "MUTUAL" in names:
        settings |= {
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.truststore.location": str(folder / "ca.pem"),
        }
    settings |= {
        "kshare.rpc.ssl.keystore.location": str(authority.issue("role").write_combined(folder / "role.pem")),
        "kshare.rpc.ssl.truststore.location": str(folder / "ca.pem"),
    }
    with KshareCluster(folder / "kshare", settings, port=ports[0]) as cluster:
        yield Secured(cluster, ports[1], dict(zip(names, ports, strict=True)).get("MUTUAL"), authority, folder)


def produce(settings: dict[str, Any], topic: str) -> None:
    producer = Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def consumed(consumer: Any) -> list[bytes]:
    """As many values as were produced."""
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < len(VALUES) and time.monotonic() < deadline:
        polled = consumer.poll(0.2)
        messages = [polled] if isinstance(polled, Message) else polled or []
        found += [message.value() or b"" for message in messages if message.error() is None]
    consumer.close()
    return found


def test_confluent_clients_over_tls(secured: Secured) -> None:
    settings, topic = secured.client(secured.ssl_port), secured.topic()
    produce(settings, topic)
    consumer = Consumer({**settings, "group.id": f"c-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumed(consumer) == VALUES
    read_from_earliest(secured.cluster.bootstrap, f"s-{topic}")
    sharing: Any = ShareConsumer({**settings, "group.id": f"s-{topic}", "share.acknowledgement.mode": "implicit"})
    sharing.subscribe([topic])
    assert sorted(consumed(sharing)) == sorted(VALUES)


def test_each_listener_tells_its_own_addresses(secured: Secured) -> None:
    for port in (secured.ssl_port, secured.port_with_certificates):
        settings = secured.client(port)
        if port == secured.mutual_port:
            settings["ssl.certificate.location"] = settings["ssl.key.location"] = str(client_certificate(secured))
        brokers = Producer(settings).list_topics(timeout=TIMEOUT_S).brokers
        assert [(broker.host, broker.port) for broker in brokers.values()] == [("localhost", port)]
    plain = Producer({"bootstrap.servers": secured.cluster.bootstrap}).list_topics(timeout=TIMEOUT_S).brokers
    assert [broker.port for broker in plain.values()] == [secured.cluster.port]


def test_the_java_share_consumer_over_tls(secured: Secured) -> None:
    topic = secured.topic()
    produce(secured.client(secured.ssl_port), topic)
    read_from_earliest(secured.cluster.bootstrap, f"java-{topic}")
    certificate = client_certificate(secured)
    with JavaClients() as java:
        member = java.member(
            f"localhost:{secured.port_with_certificates}",
            f"java-{topic}",
            [topic],
            security_protocol="SSL",
            ssl_truststore_type="PEM",
            ssl_truststore_location=str(secured.authority_file),
            ssl_keystore_type="PEM",
            ssl_keystore_location=str(certificate),
        )
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            records = member.take()
            found += [record.value for record in records]
            member.acknowledge(records, "ACCEPT")
        assert member.commit_sync() == {f"{topic}-0": "ok"}
    assert sorted(value for value in found if value) == sorted(VALUES)


def client_certificate(secured: Secured) -> Path:
    return secured.authority.issue("a client").write_combined(secured.folder / f"client-{uuid.uuid4().hex}.pem")


def test_a_client_certificate_is_required(secured: Secured) -> None:
    assert secured.mutual_port is not None
    with TlsConnection(secured.mutual_port, secured.authority_file, client_certificate(secured)) as connection:
        assert connection.is_answered()
    with TlsConnection(secured.mutual_port, secured.authority_file) as without, pytest.raises(ssl.SSLError):
        without.is_answered()
    foreign = Authority("foreign").issue("a client").write_combined(secured.folder / "foreign.pem")
    with TlsConnection(secured.mutual_port, secured.authority_file, foreign) as other, pytest.raises(ssl.SSLError):
        other.is_answered()
    secured.cluster.wait_for_log("its certificate was refused")


def test_a_client_refuses_an_authority_that_it_does_not_know(secured: Secured) -> None:
    errors: list[KafkaError] = []
    wrong = Authority("wrong").write(secured.folder / "wrong.pem")
    settings = {**secured.client(secured.ssl_port), "ssl.ca.location": str(wrong), "error_cb": errors.append}
    producer = Producer({**settings, "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_S
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert errors and "certificate verify failed" in errors[0].str()


def test_a_renewed_certificate_is_for_new_connections(secured: Secured) -> None:
    renewed = secured.authority.issue("localhost")
    with TlsConnection(secured.ssl_port, secured.authority_file) as old:
        former = old.serial_number
        before = len(secured.cluster.log_text())
        secured.keystore.write_text("-----BEGIN NONSENSE")
        secured.cluster.wait_for_log("keeps its former certificates", after=before)
        with TlsConnection(secured.ssl_port, secured.authority_file) as meanwhile:
            assert meanwhile.serial_number == former
        renewed.write_combined(secured.keystore)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with TlsConnection(secured.ssl_port, secured.authority_file) as new:
                if new.serial_number == renewed.serial_number:
                    assert new.is_answered()
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert old.is_answered()


def test_what_is_no_tls_is_closed(secured: Secured) -> None:
    pid = secured.cluster.role_pid("gateway")
    files = Path(f"/proc/{pid}/fd")
    with TlsConnection(secured.ssl_port, secured.authority_file) as before:
        assert before.is_answered()
        open_files = len(list(files.iterdir()))
        for sent in (b"\0\0\0\x0c\0\x12\0\0\0\0\0\x01\0\x01t\0", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b""):
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", secured.ssl_port), timeout=TIMEOUT_S) as plain:
                    plain.sendall(sent)
                    plain.shutdown(socket.SHUT_WR)
                    while plain.recv(1000):
                        pass
        assert before.is_answered()
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(files.iterdir())) >= open_files and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(files.iterdir())) < open_files
    assert secured.cluster.role_pid("gateway") == pid


def test_the_commands_of_kshare(secured: Secured) -> None:
    certificate, topic = client_certificate(secured), f"tls-{uuid.uuid4().hex[:8]}"
    config = secured.folder / "client.properties"
    config.write_text(
        f"security.protocol=ssl\nssl.ca.location={secured.authority_file}\n"
        f"ssl.certificate.location={certificate}\nssl.key.location={certificate}\n"
    )
    runner = CliRunner()
    given = ["--bootstrap", f"localhost:{secured.port_with_certificates}", "--command-config", str(config)]
    read_from_earliest(secured.cluster.bootstrap, topic)
    for command, shown in (
        (["topics", "create", topic], "created topic"),
        (["produce", topic, "one"], "produced 1 records"),
        (["topics", "list"], topic),
        (["consume", topic, "--group", topic, "--max", "1"], "one"),
        (["groups", "list"], topic),
        (["groups", "describe", topic], "state"),
    ):
        result = runner.invoke(app, [*command, *given])
        assert result.exit_code == 0 and shown in result.stdout, (command, result.output, result.exception)


def test_roles_have_tls_between_them(secured: Secured) -> None:
    data = ["--data-dir", str(secured.cluster.data_dir)]
    variables = {"KSHARE_CONFIG": str(secured.cluster.folder / "server.properties")}
    for command in (["nodes"], ["state", "partitions"]):
        result = CliRunner().invoke(app, [*command, *data], env=variables)
        assert result.exit_code == 0 and "127.0.0.1:" in result.stdout, (result.output, result.exception)
    without = CliRunner().invoke(app, ["nodes", *data])
    assert without.exit_code != 0
    ports = json.loads((secured.cluster.data_dir / "ports.json").read_text())
    for role in ("coordinator", "share-coordinator", "leader"):
        with TlsConnection(ports[role], secured.authority_file) as stranger:
            try:
                is_answered = stranger.is_answered()
            except OSError:
                is_answered = False
            assert not is_answered
