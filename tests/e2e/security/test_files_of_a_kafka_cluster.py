"""The security of a Kafka cluster whose file and ACLs kshare takes over: it is the same here.

- SIX is a listener at an IPv6 address, since Kafka writes such addresses in its own way.
- CONTROLLER is the listener of a broker that is a controller, too, and has no authentication.
- SSL and SASL_SSL have one ssl.client.auth=required without a prefix, which Kafka applies to SSL only.
"""

from __future__ import annotations

import socket
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic
from support.clients.delivery import wait_for
from support.clients.kafka_requests import KafkaRequests
from support.clients.tls_connection import TlsConnection
from support.clusters.kshare_cluster import KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port

TIMEOUT_S = 30.0
BROKER = 4
SET, DELETE = 0, 1
DYNAMIC = (2, 3)
"""Sources of configs that were altered, for one broker or for all."""
ALICE = "User:alice"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENERS = {
    "CONTROLLER": "127.0.0.1",
    "PLAINTEXT": "127.0.0.1",
    "SIX": "[::1]",
    "SSL": "127.0.0.1",
    "SASL_SSL": "127.0.0.1",
}
PROTOCOLS = {
    "CONTROLLER": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
    "SIX": "SASL_PLAINTEXT",
    "SSL": "SSL",
    "SASL_SSL": "SASL_SSL",
}


@dataclass(frozen=True)
class Taken:
    """The running cluster, and the address of each listener."""

    cluster: KshareCluster
    addresses: dict[str, str]
    folder: Path

    def admin(self, listener: str, **settings: str) -> AdminClient:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return AdminClient({"bootstrap.servers": self.addresses[listener], **given})

    def alice(self, listener: str, protocol: str, **settings: str) -> AdminClient:
        return self.admin(
            listener,
            security_protocol=protocol,
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="pw",
            **settings,
        )


def settings_of(addresses: dict[str, str], folder: Path) -> dict[str, str]:
    jaas = f'{PLAIN_MODULE} required user_alice="pw";'
    sasl = [name for name in LISTENERS if "SASL" in PROTOCOLS[name]]
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{addresses['CONTROLLER']}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "SASL_SSL",
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "advertised.listeners": ",".join(
            f"{name}://{address}" for name, address in addresses.items() if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "sasl.enabled.mechanisms": "PLAIN",
        **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas for name in sasl},
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.client.auth": "required",
    }


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    folder = tmp_path_factory.mktemp("taken")
    ports = {name: free_port() for name in LISTENERS}
    addresses = {name: f"{host}:{ports[name]}" for name, host in LISTENERS.items()}
    authority = Authority("kshare")
    authority.write(folder / "ca.pem")
    for name in ("server", "alice"):
        authority.issue(name).write_combined(folder / f"{name}.pem")
    settings, port = settings_of(addresses, folder), ports["PLAINTEXT"]
    with KshareCluster(folder / "kshare", settings, port=port, single_process=True) as cluster:
        yield Taken(cluster, addresses, folder)


@pytest.mark.parametrize("written", ["0:0:0:0:0:0:0:1", "::1"])
def test_acls_are_about_an_ipv6_address_in_each_spelling(taken: Taken, written: str) -> None:
    topic = f"v6-{uuid.uuid4().hex[:8]}"
    create_topic(taken.cluster.bootstrap, topic, 1)
    root, alice = taken.admin("PLAINTEXT"), taken.alice("SIX", "sasl_plaintext")

    def acl(host: str, permission: AclPermissionType) -> AclBinding:
        pattern = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
        return AclBinding(*pattern, ALICE, host, AclOperation.DESCRIBE, permission)

    def create(*bindings: AclBinding) -> None:
        for created in root.create_acls(list(bindings)).values():
            created.result(TIMEOUT_S)

    def sees() -> bool:
        return topic in alice.list_topics(timeout=TIMEOUT_S).topics

    assert not sees()
    allowed = acl(written, AclPermissionType.ALLOW)
    create(allowed)
    assert sees()
    of_the_topic = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        ALICE,
        written,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert root.describe_acls(of_the_topic).result(TIMEOUT_S) == [allowed], "with the text that it was given"
    create(acl("*", AclPermissionType.ALLOW), acl(written, AclPermissionType.DENY))
    assert not sees()


def test_the_listener_of_controllers_is_not_opened(taken: Taken) -> None:
    host, _, port = taken.addresses["CONTROLLER"].rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), TIMEOUT_S).close()
    assert "controller.listener.names is CONTROLLER: gateways do not listen there" in taken.cluster.log_text()


def test_clients_with_sasl_need_no_certificate_and_those_without_do(taken: Taken) -> None:
    authority, certificate = taken.folder / "ca.pem", taken.folder / "alice.pem"
    alice = taken.alice("SASL_SSL", "sasl_ssl", ssl_ca_location=str(authority))
    assert alice.list_topics(timeout=TIMEOUT_S).brokers
    port = int(taken.addresses["SSL"].rpartition(":")[2])
    with TlsConnection(port, authority, certificate) as connection:
        assert connection.is_answered()
    with pytest.raises((ssl.SSLError, ConnectionError)), TlsConnection(port, authority) as connection:
        connection.is_answered()
    assert "set listener.name.sasl_ssl.ssl.client.auth=required to ask" in taken.cluster.log_text()


REFUSED = [
    ("1", "listeners", "PLAINTEXT://127.0.0.1:1"),
    ("1", "sasl.enabled.mechanisms", "GSSAPI"),
    ("1", "listener.name.six.sasl.enabled.mechanisms", "SCRAM-SHA-512"),
    ("1", "listener.name.six.plain.sasl.jaas.config", f'{PLAIN_MODULE} required user_bob="pw";'),
    ("1", "principal.builder.class", "com.example.Builder"),
    ("1", "listener.name.ssl.principal.builder.class", "com.example.Builder"),
    ("1", "listener.name.ssl.ssl.keystore.location", "/nonexistent.pem"),
    ("1", "listener.name.ssl.ssl.keystore.type", "PKCS12"),
    ("1", "listener.name.nosuch.ssl.client.auth", "required"),
    ("1", "listener.name.six.ssl.client.auth", "required"),
    ("", "listener.name.nosuch.max.connections", "1"),
    ("", "max.connection.creation.rate", "1"),
    ("", "listener.name.six.max.connection.creation.rate", "1"),
    ("", "super.users", "User:evil"),
]


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(("broker", "name", "value"), REFUSED)
def test_altered_configs_without_effect_are_refused(
    taken: Taken, broker: str, name: str, value: str, validate_only: bool
) -> None:
    assert altered(taken, broker, name, value, validate_only=validate_only) == ErrorCode.INVALID_REQUEST
    assert dynamic_configs(taken, broker) == set()


def test_an_altered_config_of_a_listener_counts_for_new_connections(taken: Taken) -> None:
    name, port = "listener.name.sasl_ssl.ssl.client.auth", int(taken.addresses["SASL_SSL"].rpartition(":")[2])

    def is_let_in() -> bool:
        try:
            with TlsConnection(port, taken.folder / "ca.pem") as connection:
                return connection.is_answered()
        except (ssl.SSLError, ConnectionError):
            return False

    assert is_let_in()
    assert altered(taken, "1", name, "required") == ErrorCode.NONE
    assert dynamic_configs(taken, "1") == {name}
    wait_for(lambda: not is_let_in(), "clients need a certificate")
    assert altered(taken, "1", name, None) == ErrorCode.NONE
    wait_for(is_let_in, "clients need no certificate")


def altered(taken: Taken, broker: str, name: str, value: str | None, *, validate_only: bool = False) -> ErrorCode:
    """The answer to the new value of a broker's config; None removes it."""
    change = {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
    resource = {"resource_type": BROKER, "resource_name": broker, "configs": [change]}
    with KafkaRequests(taken.cluster.bootstrap) as root:
        answer = root.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only)
    return ErrorCode(answer.responses[0].error_code)


def dynamic_configs(taken: Taken, broker: str) -> set[str]:
    """The names of the configs that were altered for the broker, or for all."""
    resource = {"resource_type": BROKER, "resource_name": broker, "configuration_keys": None}
    with KafkaRequests(taken.cluster.bootstrap) as root:
        answer = root.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])
    return {config.name for config in answer.results[0].configs if int(config.config_source) in DYNAMIC}
