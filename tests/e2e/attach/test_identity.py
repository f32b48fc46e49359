"""SASL passes through kshare, so the cluster knows each client, and its ACLs hold for share groups."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from typer.testing import CliRunner

from kshare.main import app
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import DESCRIBE_NODES
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import ChannelUnavailable
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.share_group_heartbeat import ShareGroupHeartbeatRequest
from kshare_wire.messages import encode_request
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.kafka.existing_cluster import ExistingCluster

JAAS = "org.apache.kafka.common.security.{}.{}LoginModule required"
PLAIN = JAAS.format("plain", "Plain")
USERS = ("admin", "kshare", "alice", "bob")
LISTED = " ".join(f'user_{name}="{name}-s3cret"' for name in USERS)
GUARDED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": f'{PLAIN} username="admin" password="admin-s3cret" {LISTED};',
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config": f"{JAAS.format('scram', 'Scram')};",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}
DEADLINE_S = 60
CACHE_MS = 500
TOPIC, GROUP = "orders", "workers"


def as_user(bootstrap: str, name: str, mechanism: str = "PLAIN", secret: str = "") -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": secret or f"{name}-s3cret",
        "log_level": 0,
    }


def acl(kind: ResourceType, name: str, user: str, *operations: AclOperation, prefix: bool = False) -> list[AclBinding]:
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    return [
        AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]


ALICE_READS = acl(ResourceType.TOPIC, TOPIC, "alice", AclOperation.READ)
ACLS = [
    *acl(ResourceType.TOPIC, "__kshare_", "kshare", AclOperation.ALL, prefix=True),
    *acl(ResourceType.TOPIC, TOPIC, "kshare", AclOperation.READ),
    *acl(ResourceType.BROKER, "kafka-cluster", "kshare", AclOperation.DESCRIBE),
    *ALICE_READS,
    *acl(ResourceType.GROUP, GROUP, "alice", AclOperation.READ),
    *acl(ResourceType.TOPIC, TOPIC, "carol", AclOperation.WRITE),
]


def wait(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(DEADLINE_S)


class Running(NamedTuple):
    kshare: KshareCluster
    producers: str
    """The address that producers use."""


@pytest.fixture(scope="module", params=["proxy", "share"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, mode = tmp_path_factory.mktemp("identity"), request.param
    with ExistingCluster(folder / "kafka", settings=GUARDED) as kafka:
        admin = AdminClient(as_user(kafka.bootstrap, "admin"))
        wait(admin.create_topics([NewTopic(TOPIC, 2, 1)]))
        wait(admin.create_acls(ACLS))
        settings = {
            "kshare.engine": "kafka",
            "kshare.metadata.store": "kafka",
            "kshare.upstream.mode": mode,
            "kshare.upstream.bootstrap.servers": kafka.bootstrap,
            "kshare.upstream.security.protocol": "SASL_PLAINTEXT",
            "kshare.upstream.sasl.mechanism": "PLAIN",
            "kshare.upstream.sasl.jaas.config": f'{PLAIN} username="kshare" password="kshare-s3cret";',
            "kshare.upstream.authorization.cache.ms": str(CACHE_MS),
        }
        with KshareCluster(folder / "kshare", settings, single_process=True, engine=TestEngine.EMBEDDED) as kshare:
            config = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
            group = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=[config])
            through = AdminClient(as_user(kshare.bootstrap, "admin"))
            wait(through.incremental_alter_configs([group]))
            carol = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            made: list[UserScramCredentialAlteration] = [UserScramCredentialUpsertion("carol", carol, b"carol-s3cret")]
            wait(through.alter_user_scram_credentials(made))
            yield Running(kshare, kshare.bootstrap if mode == "proxy" else kafka.bootstrap)


@pytest.fixture
def addresses(running: Running) -> tuple[str, str]:
    """kshare's address, and the one that producers use."""
    return running.kshare.bootstrap, running.producers


def produced(bootstrap: str, user: str, mechanism: str, count: int) -> list[str]:
    """The names of the errors of so many records."""
    errors: list[str] = []
    producer = Producer({**as_user(bootstrap, user, mechanism), "message.timeout.ms": DEADLINE_S * 1000})

    def delivered(error: Any, _: Any) -> None:
        errors.extend([] if error is None else [error.name()])

    for number in range(count):
        producer.produce(TOPIC, b"%d" % number, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return errors


class Consumer:
    """A share consumer of one user, and what it got: values and the names of errors."""

    def __init__(self, bootstrap: str, user: str, secret: str = "") -> None:
        self.errors: list[str] = []
        settings = as_user(bootstrap, user, secret=secret)
        self._consumer = ShareConsumer({**settings, "group.id": GROUP, "error_cb": self._failed})
        self._consumer.subscribe([TOPIC])
        self.values: list[bytes] = []

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _failed(self, error: Any) -> None:
        self.errors.append(error.name())

    def until(self, values: int = 0, error: str = "") -> None:
        """Polls until it has so many values, or has seen this error."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.values) < values or (error and error not in self.errors):
            assert time.monotonic() < deadline, (self.values, self.errors)
            try:
                polled: Any = self._consumer.poll(0.3)
                for message in polled:
                    if message.error() is not None:
                        self.errors.append(message.error().name())
                    else:
                        self.values.append(message.value())
            except KafkaException as problem:
                self.errors.append(problem.args[0].name())


def test_who_may_produce_and_who_may_consume_is_what_the_cluster_says(addresses: tuple[str, str]) -> None:
    kshare, producers = addresses
    assert produced(producers, "carol", "SCRAM-SHA-256", 20) == []
    assert set(produced(producers, "alice", "PLAIN", 1)) == {"TOPIC_AUTHORIZATION_FAILED"}
    with Consumer(kshare, "alice") as alice:
        alice.until(values=20)
        assert not alice.errors
    with Consumer(kshare, "bob") as bob:
        bob.until(error="GROUP_AUTHORIZATION_FAILED")
        assert not bob.values


def test_a_wrong_password_is_refused_by_the_cluster(addresses: tuple[str, str]) -> None:
    kshare, _ = addresses
    with Consumer(kshare, "alice", secret="guessed") as stranger:
        stranger.until(error="_AUTHENTICATION")
        assert not stranger.values


def test_a_permission_that_is_taken_back_ends_within_the_time_of_the_cache(addresses: tuple[str, str]) -> None:
    kshare, producers = addresses
    admin = AdminClient(as_user(kshare, "admin"))
    with Consumer(kshare, "alice") as alice:
        assert produced(producers, "carol", "SCRAM-SHA-256", 5) == []
        alice.until(values=5)
        wait(admin.delete_acls([_filter(each) for each in ALICE_READS]))
        try:
            alice.until(error="TOPIC_AUTHORIZATION_FAILED")
        finally:
            wait(admin.create_acls(ALICE_READS))


def kshare_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_commands_on_two_places_authenticate_at_each(addresses: tuple[str, str], tmp_path: Path) -> None:
    """`kshare migrate` and `kshare detach` have a property file for each of their addresses."""
    kshare, cluster = addresses
    assert produced(cluster, "carol", "SCRAM-SHA-256", 1) == []
    with Consumer(kshare, "alice") as alice:
        alice.until(values=1)
    file = tmp_path / "admin.properties"
    file.write_text(
        "security.protocol=sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username=admin\nsasl.password=admin-s3cret\n"
    )
    places = ["--from", kshare, "--to", cluster, "--from-config", str(file)]
    refused = kshare_command("migrate", *places, "--status")
    assert refused.returncode != 0 and "--to-config" in refused.stderr, refused.stderr
    places += ["--to-config", str(file)]
    shown = kshare_command("migrate", *places, "--kshare", kshare, "--kshare-config", str(file), "--status", "--json")
    assert shown.returncode == 0, shown.stderr
    (topic,) = (row for row in json.loads(shown.stdout)["topics"] if row["topic"] == TOPIC)
    assert (topic["partitions"], topic["at_new"]) == (2, "there")
    detached = kshare_command("detach", *places, "--group", GROUP, "--dry-run")
    if cluster == kshare:
        assert detached.returncode == 0, "at the address of mode proxy are share groups"
    else:
        assert f"{cluster} cannot set offsets of share groups" in detached.stderr, "Kafka 3.9.1 has none"


def _filter(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def test_a_client_that_did_not_authenticate_gets_no_answer_but_the_versions(addresses: tuple[str, str]) -> None:
    kshare, _ = addresses
    host, _, port = kshare.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as client:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=0, subscribed_topic_names=[TOPIC]
        )
        client.sendall(b"".join(map(bytes, encode_request(request, 1, 7, "stranger"))))
        assert client.recv(1) == b"", "the connection is closed without an answer"
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as client:
        header = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 7, -1)
        client.sendall(struct.pack(">i", len(header)) + header)
        assert client.recv(8)[4:] == struct.pack(">i", 7)


def test_roles_answer_holders_of_certificates_only(running: Running) -> None:
    """The cluster's ACLs are asked at gateways; other users of the machine reach the roles' ports as well."""
    ports = json.loads((running.kshare.data_dir / "ports.json").read_text())
    with pytest.raises(ChannelUnavailable):
        asyncio.run(_describe_nodes(f"127.0.0.1:{ports['coordinator']}"))
    result = CliRunner().invoke(app, ["nodes", "--data-dir", str(running.kshare.data_dir)])
    assert result.exit_code == 0 and "share-coordinator" in result.stdout, (result.output, result.exception)


async def _describe_nodes(address: str) -> None:
    channel = GrpcNetwork(local_sockets=False).connect(address)
    try:
        await channel.call(DESCRIBE_NODES, coordinator_pb2.DescribeNodesRequest(), timeout_ms=5_000)
    finally:
        await channel.close()
