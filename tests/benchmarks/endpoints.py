"""Where clients connect and with which settings, for systems without security and for those with it (`--secured`).

Secured systems, Apache Kafka as well as kshare, have an authorizer and two listeners: SASL_SSL with SCRAM-SHA-256 for
what is measured, by a user whose rights come from ACLs, and one without for administration, by a super user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.existing_cluster import ExistingCluster

USER, PASSWORD = "bench", "bench-password"
TIMEOUT_S = 30.0
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
CLIENTS = "CLIENTS"


class Endpoint(str):
    """A bootstrap address with the settings of its clients, and the address of a listener for administration."""

    settings: dict[str, str]
    administration: str


class System(Protocol):
    bootstrap: str

    @property
    def pid(self) -> int: ...


class SecuredSystem:
    """A system whose `bootstrap` is an Endpoint."""

    def __init__(self, system: System, endpoint: Endpoint) -> None:
        self._system = system
        self.bootstrap: str = endpoint

    @property
    def pid(self) -> int:
        return self._system.pid


def client_settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    """The settings of a confluent-kafka client for this address."""
    return {"bootstrap.servers": str(bootstrap), **(bootstrap.settings if isinstance(bootstrap, Endpoint) else {})}


def administration(bootstrap: str) -> str:
    """Where topics and groups are made."""
    return bootstrap.administration if isinstance(bootstrap, Endpoint) else bootstrap


@contextmanager
def secured(
    start: Callable[[Path, dict[str, str], int], AbstractContextManager[System]], folder: Path, *, is_kafka: bool
) -> Iterator[SecuredSystem]:
    """A system that `start`s with (folder, settings, port of the listener for administration)."""
    folder.mkdir(parents=True)
    plain, encrypted = free_port(), free_port()
    authority = Authority("bench")
    authority.issue("server").write_combined(folder / "server.pem")
    clients = f"PLAINTEXT://127.0.0.1:{plain},{CLIENTS}://127.0.0.1:{encrypted}"
    protocols = f"PLAINTEXT:PLAINTEXT,{CLIENTS}:SASL_SSL"
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        f"listener.name.{CLIENTS.lower()}.scram-sha-256.sasl.jaas.config": SCRAM,
        "listeners": clients,
        "listener.security.protocol.map": protocols,
    }
    if is_kafka:
        controller = free_port()
        settings |= {
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": clients,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
        }
    with start(folder / "system", settings, plain) as system:
        endpoint = Endpoint(f"127.0.0.1:{encrypted}")
        endpoint.administration = system.bootstrap
        endpoint.settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(authority.write(folder / "ca.pem")),
        }
        _let_in(system.bootstrap)
        yield SecuredSystem(system, endpoint)


def secured_kafka(folder: Path) -> AbstractContextManager[System]:
    return secured(lambda path, texts, port: ApacheKafka(path, texts, port=port), folder, is_kafka=True)


def secured_kshare(folder: Path, *, single_process: bool) -> AbstractContextManager[System]:
    return secured(
        lambda path, texts, port: KshareCluster(path, texts, port=port, single_process=single_process),
        folder,
        is_kafka=False,
    )


def _let_in(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    credential = UserScramCredentialUpsertion(
        USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), PASSWORD.encode()
    )
    futures = list(admin.alter_user_scram_credentials([credential], request_timeout=TIMEOUT_S).values())
    kinds = (ResourceType.TOPIC, ResourceType.GROUP)
    rights = [
        AclBinding(
            kind, "*", ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind in kinds
    ]
    futures += list(admin.create_acls(rights, request_timeout=TIMEOUT_S).values())
    for future in futures:
        future.result(TIMEOUT_S)


@contextmanager
def attached_kshare(folder: Path, *, single_process: bool) -> Iterator[KshareCluster]:
    """kshare in mode proxy in front of a broker of its own, which runs as Kafka ships it."""
    with (
        ExistingCluster(folder / "existing", as_shipped=True) as existing,
        KshareCluster(
            folder, engine=TestEngine.KAFKA_PROXY, upstream=existing, single_process=single_process
        ) as cluster,
    ):
        yield cluster
