"""kshare and Apache Kafka 4.3.1 with StandardAuthorizer and the same ACLs, and a client of both without rights: alice.

Clients of the plain listeners are super users. Alice connects with a certificate, which both systems map to User:alice.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kshare_core.security.acls import CLUSTER_NAME, Operation, PatternType, PermissionType, ResourceType
from kshare_wire.generated.api_keys import ApiKey
from support.clients.kafka_requests import KafkaRequests
from support.clusters.kshare_cluster import KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.same_answers import Asked, prepare

ALICE = "User:alice"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:root",
    "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/,DEFAULT",
    "group.initial.rebalance.delay.ms": "0",
}
KNOWN_WITHIN_S = 10.0


class Right(NamedTuple):
    """What an ACL lets alice do; the name may be a prefix."""

    operation: Operation
    resource_type: ResourceType
    name: str = CLUSTER_NAME
    pattern_type: PatternType = PatternType.LITERAL
    permission_type: PermissionType = PermissionType.ALLOW
    host: str = "*"
    principal: str = ALICE

    def creation(self) -> dict[str, Any]:
        """An element of CreateAcls."""
        return {
            "resource_type": self.resource_type,
            "resource_name": self.name,
            "resource_pattern_type": self.pattern_type,
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation,
            "permission_type": self.permission_type,
        }


EVERY_ACL = {
    "resource_type_filter": ResourceType.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": Operation.ANY,
    "permission_type": PermissionType.ANY,
}


class AuthorizedSystem:
    """One of the two: `root` asks as a super user, `alice` with the rights that `grant` gave."""

    def __init__(self, root: Asked, alice: Callable[[], KafkaRequests]) -> None:
        self.root = root
        self._connect = alice
        self._requests: KafkaRequests | None = None

    @property
    def alice(self) -> Asked:
        """She knows the ids of topics that she may not see, as they were told to the super user."""
        if self._requests is None:
            self._requests = self._connect()
        asked = Asked(self.root.bootstrap, self._requests)
        asked.topic_id = self.root.topic_id  # type: ignore[method-assign]
        asked._id = self.root._id  # type: ignore[method-assign]
        return asked

    def stranger(self) -> KafkaRequests:
        """Another connection of alice."""
        return self._connect()

    def grant(self, rights: Sequence[Right]) -> None:
        """Replaces all ACLs; returns when the system decides by them."""
        requests = self.root.requests
        requests.ask(ApiKey.DELETE_ACLS, 3, filters=[EVERY_ACL])
        if rights:
            answer = requests.ask(ApiKey.CREATE_ACLS, 3, creations=[right.creation() for right in rights])
            assert not any(int(result.error_code) for result in answer.results), answer
        deadline = time.monotonic() + KNOWN_WITHIN_S
        while self.acl_count() != len(set(rights)):
            assert time.monotonic() < deadline, "the ACLs are not known"

    def acl_count(self) -> int:
        answer = self.root.requests.ask(ApiKey.DESCRIBE_ACLS, 3, **EVERY_ACL)
        return sum(len(resource.acls) for resource in answer.resources)

    def close(self) -> None:
        if self._requests is not None:
            self._requests.__exit__(None, None, None)


class AuthorizedPair(NamedTuple):
    kshare: AuthorizedSystem
    kafka: AuthorizedSystem

    def grant(self, *rights: Right) -> None:
        for system in self:
            system.grant(rights)

    def same(self, ask: Callable[[AuthorizedSystem], Any]) -> Any:
        """What both told alike; AssertionError where they did not."""
        kshare, kafka = ask(self.kshare), ask(self.kafka)
        assert kshare == kafka, f"kshare: {kshare}\nKafka:  {kafka}"
        return kshare


@contextmanager
def authorized_pair(folder: Path) -> Iterator[AuthorizedPair]:
    """Both systems, running and prepared, without ACLs."""
    authority = Authority("both")
    tls = _client_context(authority, folder)
    authority.issue("server").write_combined(folder / "server.pem")
    with ExitStack() as stack:
        systems = []
        for kind in ("kshare", "kafka"):
            plain, secure = free_port(), free_port()
            settings = {**AUTHORIZER, **_listeners(kind, plain, secure), **_stores(folder)}
            bootstrap = stack.enter_context(_started(kind, folder / kind, settings, plain))
            requests = stack.enter_context(KafkaRequests(bootstrap))

            def connect(port: int = secure) -> KafkaRequests:
                return KafkaRequests(f"127.0.0.1:{port}", tls)

            system = AuthorizedSystem(Asked(bootstrap, requests), connect)
            stack.callback(system.close)
            prepare(bootstrap, requests, stack)
            systems.append(system)
        yield AuthorizedPair(*systems)


@contextmanager
def _started(kind: str, folder: Path, settings: dict[str, str], plain: int) -> Iterator[str]:
    if kind == "kshare":
        with KshareCluster(folder, settings, port=plain) as cluster:
            yield cluster.bootstrap
    else:
        kafka = ApacheKafka(folder, settings, heap="512m", quick=True, port=plain)
        with kafka:
            yield kafka.bootstrap


def _listeners(kind: str, plain: int, secure: int) -> dict[str, str]:
    clients = f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{secure}"
    if kind == "kshare":
        return {"listeners": clients, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL"}
    controller = free_port()
    return {
        "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": clients,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
    }


def _stores(folder: Path) -> dict[str, str]:
    return {
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
    }


def _client_context(authority: Authority, folder: Path) -> ssl.SSLContext:
    authority.write(folder / "ca.pem")
    certificate = authority.issue("alice").write_combined(folder / "alice.pem")
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(certificate)
    return context
