"""The security of a Kafka cluster whose file and ACLs kshare takes over: it is the same here.

- SIX is a listener at an IPv6 address, since Kafka writes such addresses in its own way.
- SSL and SASL_SSL have one ssl.client.auth=required without a prefix, which Kafka applies to SSL only.
"""

from __future__ import annotations

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

from support.clients.administration import create_topic
from support.clients.tls_connection import TlsConnection
from support.clusters.kshare_cluster import KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port

TIMEOUT_S = 30.0
ALICE = "User:alice"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENERS = {"PLAINTEXT": "127.0.0.1", "SIX": "[::1]", "SSL": "127.0.0.1", "SASL_SSL": "127.0.0.1"}
PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "SIX": "SASL_PLAINTEXT", "SSL": "SSL", "SASL_SSL": "SASL_SSL"}


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
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
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
