"""SASL with real clients: each mechanism over SASL_SSL, wrong credentials, tokens that run out, and Kafka's tools.

The cluster has an authorizer, so a client that works was authenticated as the user that the ACLs are about.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, ResourceType
from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic, read_from_earliest
from support.clients.console_client import ConsoleClient
from support.clients.delivery import wait_for
from support.clients.kafka_requests import KafkaRequests
from support.clusters.kshare_cluster import COMMAND, KshareCluster, children_of
from support.environment.certificates import Authority
from support.environment.free_ports import free_port
from support.kafka.authorized_pair import Right
from support.kafka.java_clients import JavaClients, JavaError, JavaRecord

TIMEOUT_S = 30.0
METRICS_TOKEN = "planted-token-of-scrapers"
PASSWORD = 'a "secret"; of\\alice'
"""With every sign that a JAAS value has to escape."""
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER")
MODULES = "org.apache.kafka.common.security"
VALUES = [f"value-{number}".encode() for number in range(20)]
SIGNED = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Secured:
    """The running cluster, its ports, and the key that signs tokens."""

    cluster: KshareCluster
    port: int
    unsecured_port: int
    signed_port: int
    authority_file: Path
    key: rsa.RSAPrivateKey

    def token(self, user: str, lifetime_s: float = 3600, **claims: Any) -> str:
        now = time.time()
        found = {"sub": user, "iat": int(now) - 1, "exp": int(now + lifetime_s), "aud": "kshare", "iss": "tests"}
        return jwt.encode({**found, **claims}, self.key, algorithm="RS256", headers={"kid": "one"})

    def client(self, mechanism: str, user: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
        """Settings of a confluent-kafka client over SASL_SSL."""
        settings: dict[str, Any] = {
            "bootstrap.servers": f"localhost:{self.port}",
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.authority_file),
            "sasl.mechanism": mechanism,
        }
        if mechanism != "OAUTHBEARER":
            return {**settings, "sasl.username": user, "sasl.password": password}
        settings["bootstrap.servers"] = f"localhost:{self.signed_port}"
        return {**settings, "oauth_cb": lambda _: (self.token(user), time.time() + 3600)}

    def topic(self) -> str:
        name = f"sasl-{uuid.uuid4().hex[:8]}"
        create_topic(self.cluster.bootstrap, name, 1)
        return name


def settings_of(folder: Path, ports: list[int]) -> dict[str, str]:
    names = ("PLAINTEXT", "SECURE", "UNSECURED", "SIGNED")
    bearer = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
    return {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)),
        "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in zip(names, ports, strict=True)),
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,UNSECURED:SASL_PLAINTEXT,SIGNED:SASL_SSL"
        ),
        "group.initial.rebalance.delay.ms": "0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.secure.sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "listener.name.secure.plain.sasl.jaas.config": (
            f'{MODULES}.plain.PlainLoginModule required username="x" user_alice={quoted(PASSWORD)} user_bob="b";'
        ).replace("\\", "\\\\"),  # as a property file needs it
        **{
            f"listener.name.secure.{name.lower()}.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;"
            for name in SCRAM
        },
        "listener.name.unsecured.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.unsecured.oauthbearer.sasl.jaas.config": f'{bearer} unsecuredValidatorRequiredScope="work";',
        "listener.name.signed.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.signed.oauthbearer.sasl.jaas.config": f"{bearer};",
        "listener.name.signed.oauthbearer.sasl.server.callback.handler.class": SIGNED,
        "listener.name.signed.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "listener.name.signed.sasl.oauthbearer.expected.audience": "kshare,other",
        "listener.name.signed.sasl.oauthbearer.expected.issuer": "tests",
        "kshare.metrics.bearer.token": METRICS_TOKEN,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("sasl")
    authority, ports = Authority("kshare"), [free_port() for _ in range(4)]
    authority.issue("localhost").write_combined(folder / "server.pem")
    key = rsa.generate_private_key(65537, 2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    (folder / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]}))
    options = ("--metrics-listen", "127.0.0.1:0")
    with KshareCluster(folder / "kshare", settings_of(folder, ports), port=ports[0], options=options) as cluster:
        found = Secured(cluster, ports[1], ports[2], ports[3], authority.write(folder / "ca.pem"), key)
        with KafkaRequests(cluster.bootstrap) as root:
            rights = [
                Right(operation, kind, "*")
                for operation, kind in (
                    (Operation.ALL, ResourceType.TOPIC),
                    (Operation.READ, ResourceType.GROUP),
                    (Operation.DESCRIBE, ResourceType.GROUP),
                )
            ]
            answer = root.ask(ApiKey.CREATE_ACLS, 3, creations=[right.creation() for right in rights])
            assert not any(int(result.error_code) for result in answer.results)
        set_passwords(cluster.bootstrap, alice=PASSWORD)
        yield found


def set_passwords(bootstrap: str, **passwords: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    changes: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
        for user, password in passwords.items()
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for future in admin.alter_user_scram_credentials(changes).values():
        future.result(TIMEOUT_S)


def produce(settings: dict[str, Any], topic: str) -> None:
    producer = Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def consumed(consumer: Any, count: int = len(VALUES)) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count and time.monotonic() < deadline:
        polled = consumer.poll(0.2)
        messages = [polled] if isinstance(polled, Message) else polled or []
        found += [message.value() or b"" for message in messages if message.error() is None]
    consumer.close()
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_clients(secured: Secured, mechanism: str) -> None:
    settings, topic = secured.client(mechanism), secured.topic()
    produce(settings, topic)
    consumer = Consumer({**settings, "group.id": f"c-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumed(consumer) == VALUES
    read_from_earliest(secured.cluster.bootstrap, f"s-{topic}")
    sharing: Any = ShareConsumer({**settings, "group.id": f"s-{topic}", "share.acknowledgement.mode": "implicit"})
    sharing.subscribe([topic])
    assert sorted(consumed(sharing)) == sorted(VALUES)
    admin = AdminClient(settings)
    admin.poll(0)
    assert topic in admin.list_topics(timeout=TIMEOUT_S).topics


def refusal(settings: dict[str, Any]) -> str:
    """The first error of a client that cannot authenticate."""
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append, "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_S
    while not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < deadline, errors
        producer.poll(0.1)
    return next(error.str() for error in errors if error.code() == KafkaError._AUTHENTICATION)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_an_unknown_user_and_a_wrong_password_are_the_same(secured: Secured, mechanism: str) -> None:
    wrong = refusal(secured.client(mechanism, password="wrong"))
    unknown = refusal(secured.client(mechanism, user="nobody"))
    told = [re.sub(r"\(after .*", "", text.partition("error: ")[2]) for text in (wrong, unknown)]
    assert told[0] == told[1] != ""
    assert "uthentication failed" in wrong
    log = secured.cluster.log_text()
    assert "its authentication failed" in log and PASSWORD not in log


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"aud": "someone-else"},
        {"iss": "someone-else"},
        {"sub": ""},
        {"iat": 2**33},
    ],
    ids=lambda claims: next(iter(claims)),
)
def test_a_token_with_a_wrong_claim_is_refused(secured: Secured, claims: dict[str, Any]) -> None:
    token = secured.token("alice", **claims)
    settings = {**secured.client("OAUTHBEARER"), "oauth_cb": lambda _: (token, time.time() + 3600)}
    assert "invalid_token" in refusal(settings)


def test_a_token_of_another_key_and_an_unsigned_one_are_refused(secured: Secured) -> None:
    other = rsa.generate_private_key(65537, 2048)
    claims = {"sub": "alice", "iat": int(time.time()), "exp": int(time.time()) + 100, "aud": "kshare", "iss": "tests"}
    for token in (
        jwt.encode(claims, other, algorithm="RS256", headers={"kid": "one"}),
        jwt.encode(claims, other, algorithm="RS256", headers={"kid": "two"}),
        jwt.encode(claims, "", algorithm="none"),
        jwt.encode(claims, "secret" * 10, algorithm="HS256", headers={"kid": "one"}),
    ):
        settings = {**secured.client("OAUTHBEARER"), "oauth_cb": lambda _, token=token: (token, time.time() + 3600)}
        assert "invalid_token" in refusal(settings)


def test_unsecured_tokens_need_their_scope(secured: Secured) -> None:
    def settings(scope: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"localhost:{secured.unsecured_port}",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal=alice scope={scope}",
        }

    topic = secured.topic()
    produce(settings("work"), topic)
    assert "insufficient_scope" in refusal(settings("play"))


def test_a_mechanism_that_is_not_enabled_is_refused(secured: Secured) -> None:
    settings = {**secured.client("PLAIN"), "bootstrap.servers": f"localhost:{secured.signed_port}"}
    assert "OAUTHBEARER" in refusal(settings)


def test_a_token_that_runs_out_is_renewed_without_a_lost_record(secured: Secured) -> None:
    """Tokens last six seconds; producer, consumer and share consumer go on over several of them.

    A client that is late, as on a busy machine, is refused with its old token, and comes again with a new one.
    """
    tokens = threading.Semaphore(0)

    def renewed(_: str) -> tuple[str, float]:
        tokens.release()
        ends_at_s = int(time.time() + 6)
        return secured.token("alice", exp=ends_at_s), float(ends_at_s)

    settings = {**secured.client("OAUTHBEARER"), "oauth_cb": renewed}
    topic = secured.topic()
    read_from_earliest(secured.cluster.bootstrap, f"s-{topic}")
    producer = Producer(settings)
    consumer = Consumer({**settings, "group.id": f"c-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    sharing: Any = ShareConsumer({**settings, "group.id": f"s-{topic}", "share.acknowledgement.mode": "implicit"})
    sharing.subscribe([topic])
    sent = 0
    received: set[bytes | None] = set()
    shared: set[bytes | None] = set()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        producer.produce(topic, b"%d" % sent)
        sent += 1
        producer.poll(0.02)
        message = consumer.poll(0.02)
        if message is not None and message.error() is None:
            received.add(message.value())
        shared.update(message.value() for message in sharing.poll(0.02) or [] if message.error() is None)
    assert producer.flush(TIMEOUT_S) == 0
    deadline = time.monotonic() + TIMEOUT_S
    while (len(received) < sent or len(shared) < sent) and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            received.add(message.value())
        shared.update(message.value() for message in sharing.poll(0.1) or [] if message.error() is None)
    consumer.close()
    sharing.close()
    assert len(received) == len(shared) == sent
    assert all(tokens.acquire(blocking=False) for _ in range(6)), "the tokens were not renewed"


def java_settings(secured: Secured, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    port = secured.port
    module = f"{MODULES}.{'plain.Plain' if mechanism == 'PLAIN' else 'scram.Scram'}LoginModule"
    jaas = f'{module} required username="alice" password={quoted(password)};'
    settings: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        port = secured.unsecured_port
        settings["security_protocol"] = "SASL_PLAINTEXT"
        module = f"{MODULES}.oauthbearer.OAuthBearerLoginModule"
        claims = 'unsecuredLoginStringClaim_sub="alice" unsecuredLoginListClaim_scope=",work"'
        jaas = f"{module} required {claims};"
    return {
        **settings,
        "bootstrap": f"localhost:{port}",
        "sasl_jaas_config": jaas,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(secured.authority_file),
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_clients(secured: Secured, mechanism: str) -> None:
    """Producer, consumer, share consumer and administrator."""
    topic = secured.topic()
    read_from_earliest(secured.cluster.bootstrap, f"java-{topic}")
    settings = java_settings(secured, mechanism)
    bootstrap = settings.pop("bootstrap")
    with JavaClients() as java:
        producer = java.producer(bootstrap, **settings)
        assert producer.send(topic, [JavaRecord(value) for value in VALUES]) == list(range(len(VALUES)))
        producer.close()
        assert [record.value for record in java.consume(bootstrap, topic, len(VALUES), **settings)] == VALUES
        member = java.member(bootstrap, f"java-{topic}", [topic], **settings)
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            records = member.take()
            found += [record.value for record in records]
            member.acknowledge(records, "ACCEPT")
        assert member.commit_sync() == {f"{topic}-0": "ok"}
        member.close()
        offsets = java.share_group_offsets(bootstrap, f"java-{topic}", **settings)
    assert sorted(value for value in found if value) == sorted(VALUES)
    assert offsets == {f"{topic}-0": (len(VALUES), 0)}


def test_the_java_share_consumer_with_a_wrong_password(secured: Secured) -> None:
    topic = secured.topic()
    settings = java_settings(secured, "SCRAM-SHA-512", "wrong")
    with JavaClients() as java:
        member = java.member(settings.pop("bootstrap"), f"java-{topic}", [topic], **settings)
        with pytest.raises(JavaError, match="SaslAuthenticationException"):
            member.take()


def test_a_user_is_changed_and_deleted(secured: Secured) -> None:
    user = f"user-{uuid.uuid4().hex[:8]}"
    settings = secured.client("SCRAM-SHA-256", user=user, password="first")
    set_passwords(secured.cluster.bootstrap, **{user: "first"})
    assert AdminClient(settings).list_topics(timeout=TIMEOUT_S).topics is not None
    set_passwords(secured.cluster.bootstrap, **{user: "second"})
    assert "uthentication failed" in refusal(settings)
    admin = AdminClient({"bootstrap.servers": secured.cluster.bootstrap})
    futures: Any = admin.describe_user_scram_credentials([user])
    described = futures[user].result(TIMEOUT_S)
    assert [(info.mechanism, info.iterations) for info in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096),
        (ScramMechanism.SCRAM_SHA_512, 4096),
    ]
    deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])[user].result(TIMEOUT_S)
    assert "uthentication failed" in refusal({**settings, "sasl.password": "second"})
    with pytest.raises(KafkaException, match="credential that does not exist"):
        admin.alter_user_scram_credentials([deletion])[user].result(TIMEOUT_S)


def test_before_authentication_there_is_nothing(secured: Secured) -> None:
    """On a SASL listener every request but three closes the connection, and those tell nothing of the cluster."""
    for api, version in ((ApiKey.METADATA, 12), (ApiKey.DESCRIBE_CLUSTER, 0), (ApiKey.PRODUCE, 9)):
        with KafkaRequests(f"127.0.0.1:{secured.unsecured_port}") as stranger:
            assert int(stranger.ask(ApiKey.API_VERSIONS, 0).error_code) == 0
            with pytest.raises(AssertionError, match="the connection was closed"):
                stranger.ask(api, version)


def test_the_first_version_of_the_handshake_has_messages_without_a_header(secured: Secured) -> None:
    """Clients before Kafka 1.0 send them as frames of their own."""
    token = jwt.encode({"sub": "alice", "scope": "work", "iat": 1, "exp": 2**32}, "", algorithm="none")
    with KafkaRequests(f"127.0.0.1:{secured.unsecured_port}") as old:
        answer = old.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="OAUTHBEARER")
        assert int(answer.error_code) == 0 and answer.mechanisms == ("OAUTHBEARER",)
        assert old.ask_frame(f"n,,\x01auth=Bearer {token}\x01\x01".encode()) == b""
        assert int(old.ask(ApiKey.METADATA, 12, topics=None).topics is not None)
    with KafkaRequests(f"127.0.0.1:{secured.unsecured_port}") as old:
        old.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="OAUTHBEARER")
        assert old.ask_frame(b"nonsense") is None


def test_listeners_without_sasl_say_so(secured: Secured) -> None:
    with KafkaRequests(secured.cluster.bootstrap) as plain:
        codes = [
            int(plain.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code),
            int(plain.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"x").error_code),
        ]
    assert codes == [ErrorCode.ILLEGAL_SASL_STATE] * 2


@contextmanager
def console(secured: Secured, folder: Path) -> Iterator[str]:
    """A console with HTTPS whose users sign in by SCRAM over TLS; its address."""
    ready, log, clients = folder / "console.ready", folder / "console.log", folder / "clients.properties"
    wanted = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.authority_file),
        "sasl.mechanism": SCRAM[1],
    }
    clients.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
    run = secured.cluster.data_dir / "run/coordinator.ready"
    flags = {
        "--bootstrap-servers": f"localhost:{secured.port}",
        "--coordinator-address": re.findall("^address=(.*)$", run.read_text(), re.MULTILINE)[0],
        "--config": str(secured.cluster.data_dir / "certificates/administrator.properties"),
        "--client-config": str(clients),
        "--console-listen": "127.0.0.1:0",
        "--console-certificate": str(secured.authority_file.with_name("server.pem")),
        "--console-admin": "true",
        "--ready-file": str(ready),
    }
    command = [sys.executable, "-m", "kshare_console", *(part for flag in flags.items() for part in flag)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(ready.exists, "the console is ready")
        yield re.findall("^address=(.*)$", ready.read_text(), re.MULTILINE)[0]
    finally:
        process.terminate()
        assert process.wait(20) == 0, log.read_text()[-2000:]
    assert PASSWORD not in log.read_text()


def test_the_console_with_https_and_scram(secured: Secured, tmp_path: Path) -> None:
    """Its own connections and the clients of a redrive are those of the user who signed in."""
    topic = secured.topic()
    produce(secured.client(SCRAM[1]), topic)
    with console(secured, tmp_path) as address:
        browser = ConsoleClient(address, ssl.create_default_context(cafile=str(secured.authority_file)))
        refused = browser.sign_in("alice", "wrong")
        assert (refused.status, refused.body["code"]) == (401, "SASL_AUTHENTICATION_FAILED")
        assert browser.request("GET", "/api/topics").status == 401
        answer = browser.sign_in("alice", PASSWORD)
        assert (answer.status, answer.body["principal"]) == (200, "User:alice")
        assert {"Secure", "HttpOnly", "SameSite=Strict"} <= set(answer.headers["Set-Cookie"].split("; "))
        record = browser.get(f"/api/records/{topic}/0/{len(VALUES) - 1}")
        assert record["value"]["text"].encode() == VALUES[-1]
        tried = browser.request("POST", "/api/dead-letters/redrive", {"dead_letter_topic": topic, "dry_run": True})
        assert (tried.status, tried.body["would_redrive"]) == (200, 0), tried
        with browser.stream("view=overview") as events:
            assert next(events)[0] == "state"
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ConsoleClient(address).request("GET", "/api/session")


def test_secrets_are_told_nowhere(secured: Secured) -> None:
    """Not in logs after failures, nor in configs, environments and command lines of any process."""
    refusal(secured.client("PLAIN", password="planted-by-a-client"))
    with KafkaRequests(secured.cluster.bootstrap) as root:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        told = root.ask_raw(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True)
        named = [
            {**resource, "configuration_keys": ["listener.name.secure.plain.sasl.jaas.config", "sasl.jaas.config"]}
        ]
        told += root.ask_raw(ApiKey.DESCRIBE_CONFIGS, 4, resources=named, include_synonyms=True)
    places = {
        "logs": secured.cluster.log_text().encode(),
        "DescribeConfigs": told,
        "metrics": metrics_of(secured.cluster),
    }
    for path in secured.cluster.data_dir.rglob("*"):
        if path.is_file() and "certificates" not in path.parts:  # of their owner only: test_strangers_at_every_port
            places[f"{path}"] = path.read_bytes()
    for pid in (secured.cluster.pid, *children_of(secured.cluster.pid)):
        for file in ("cmdline", "environ"):
            places[f"{file} of {pid}"] = Path(f"/proc/{pid}/{file}").read_bytes()
    secrets = [PASSWORD.encode(), quoted(PASSWORD).encode(), b"planted-by-a-client", b"PlainLoginModule"]
    secrets += [METRICS_TOKEN.encode(), b"PRIVATE KEY", *private_key_lines(secured.cluster)]
    found = [place for place, content in places.items() if any(secret in content for secret in secrets)]
    assert not found and len(places) > 20


def metrics_of(cluster: KshareCluster) -> bytes:
    """What all roles tell Prometheus."""
    urls = [line.partition("http://")[2] for line in cluster.log_text().splitlines() if "metrics of " in line]
    found = b""
    for url in urls:
        request = urllib.request.Request(f"http://{url}", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            found += answer.read()
    assert found.count(b"# HELP python_info") == 4
    return found


def private_key_lines(cluster: KshareCluster) -> Iterator[bytes]:
    """Lines of the roles' and the listeners' keys."""
    for file in (*(cluster.data_dir / "certificates").glob("*.pem"), cluster.folder.parent / "server.pem"):
        _, found, key = file.read_bytes().partition(b"PRIVATE KEY-----\n")
        if found:
            yield key.splitlines()[0]


@pytest.mark.parametrize(
    "value",
    [
        f'{MODULES}.plain.PlainLoginModule required username="x" user_alice="planted-secret"',
        f'{MODULES}.plain.PlainLoginModule sometimes user_alice="planted-secret";',
        'user_alice="planted-secret";',
        f'{MODULES}.plain.PlainLoginModule required user_alice="planted-secret;',
        f'{MODULES}.scram.ScramLoginModule required user_alice="planted-secret";',
    ],
)
@pytest.mark.parametrize("name", ["listener.name.secure.plain.sasl.jaas.config", "sasl.jaas.config"])
def test_a_refusal_to_start_names_the_setting_and_not_its_value(tmp_path: Path, name: str, value: str) -> None:
    config = tmp_path / "server.properties"
    texts = {
        "listeners": f"SECURE://127.0.0.1:{free_port()}",
        "listener.security.protocol.map": "SECURE:SASL_PLAINTEXT",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        name: value,
    }
    config.write_text("".join(f"{key}={text}\n" for key, text in texts.items()))
    command = [str(COMMAND), "up", "--data-dir", str(tmp_path / "data"), "--config", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    told = result.stdout + result.stderr
    assert result.returncode != 0 and "sasl.jaas.config" in told
    assert "planted-secret" not in told and "Traceback" not in told


@pytest.mark.parametrize("after_handshake", [False, True])
def test_a_long_message_before_authentication_is_not_read(secured: Secured, after_handshake: bool) -> None:
    """The connection is closed by the length alone, before its bytes come."""
    with KafkaRequests(f"127.0.0.1:{secured.unsecured_port}") as stranger:
        if after_handshake:
            stranger.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="OAUTHBEARER")
        assert stranger.ask_length(40_000_000) is None
    secured.cluster.wait_for_log("sasl.server.max.receive.size")
