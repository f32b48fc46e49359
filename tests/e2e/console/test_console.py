"""The console in front of a live cluster with SASL and ACLs: its figures, who may see and change what, its audit log.

One cluster with two consoles serves all tests: that of `kshare up --console --console-admin`, and a read-only one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from support.clients.console_client import ConsoleClient
from support.clusters.kshare_cluster import KshareCluster
from support.environment.free_ports import free_port

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECRETS = {"root": "root-s3cret", "alice": "alice-s3cret", "bob": "bob-s3cret"}
RECORDS = 6
STRIP = "/api/groups/billing/topics/orders/partitions/0"
ACTIONS: dict[str, dict[str, object]] = {
    f"{STRIP}/release": {"first_offset": 0, "last_offset": 9},
    f"{STRIP}/reject": {"first_offset": 0, "last_offset": 9},
    "/api/groups/billing/configs": {"configs": {"share.record.lock.duration.ms": "20000"}},
    "/api/placement/drain": {"role": "leader", "name": "leader-1"},
    "/api/dead-letters/redrive": {"dead_letter_topic": "orders"},
}
VIEWS = (
    "/api/overview",
    "/api/groups",
    "/api/groups/billing",
    "/api/groups/billing/share-partitions",
    STRIP,
    "/api/groups/billing/poison",
    "/api/records/orders/0/0",
    "/api/dead-letters",
    "/api/topics",
    "/api/topics/orders",
    "/api/placement",
    "/api/stream?view=overview",
)


class Stack(NamedTuple):
    """The cluster, and the addresses of its consoles."""

    cluster: KshareCluster
    admin_console: str
    read_only_console: str


def settings(port: int) -> dict[str, str]:
    users = " ".join(f'user_{name}="{secret}"' for name, secret in SECRETS.items())
    return {
        "listeners": f"ONLY://127.0.0.1:{port}",
        "listener.security.protocol.map": "ONLY:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.only.plain.sasl.jaas.config": f"{PLAIN} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root",
    }


def credentials(cluster: KshareCluster, user: str) -> dict[str, Any]:
    protocol = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    return {
        "bootstrap.servers": cluster.bootstrap,
        **protocol,
        "sasl.username": user,
        "sasl.password": SECRETS[user],
    }


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder, port = tmp_path_factory.mktemp("console"), free_port()
    options = ("--console", "127.0.0.1:0", "--console-admin")
    with KshareCluster(folder, settings(port), port=port, options=options) as cluster:
        address = ready(cluster.data_dir / "run/console.ready")
        with read_only(cluster) as other:
            prepare(cluster)
            yield Stack(cluster, address, other)


def ready(path: Path) -> str:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.02)
    return dict(line.partition("=")[::2] for line in path.read_text().splitlines())["address"]


@contextmanager
def read_only(cluster: KshareCluster) -> Iterator[str]:
    """A console as a container would run it, without --console-admin."""
    ready_file = cluster.folder / "read-only.ready"
    coordinator = dict(
        line.partition("=")[::2] for line in (cluster.data_dir / "run/coordinator.ready").read_text().splitlines()
    )
    flags = {
        "--bootstrap-servers": cluster.bootstrap,
        "--coordinator-address": coordinator["address"],
        "--console-listen": "127.0.0.1:0",
        "--ready-file": str(ready_file),
        "--config": str(cluster.data_dir / "certificates/administrator.properties"),
        "--client-config": str(cluster.data_dir / "console.properties"),
        "--streams-limit": "1",
    }
    command = [sys.executable, "-m", "kshare_console", *(part for flag in flags.items() for part in flag)]
    with (cluster.folder / "read-only.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield ready(ready_file)
    finally:
        process.terminate()
        assert process.wait(20) == 0, (cluster.folder / "read-only.log").read_text()[-2000:]


def prepare(cluster: KshareCluster) -> None:
    """Topics with records; alice may read them in group billing, bob may do nothing."""
    admin = AdminClient(credentials(cluster, "root"))
    for future in admin.create_topics([NewTopic("orders", 2, 1), NewTopic("secret", 1, 1)]).values():
        future.result(30)
    allowed = [
        (ResourceType.TOPIC, "orders", AclOperation.READ),
        (ResourceType.GROUP, "billing", AclOperation.READ),
    ]
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in allowed
    ]
    for acl in admin.create_acls(bindings).values():
        acl.result(30)
    producer = Producer(credentials(cluster, "root"))
    for number in range(RECORDS):
        producer.produce("orders", json.dumps({"order": number}), key=f"k{number}", partition=0, headers={"h": b"\xff"})
    producer.produce("secret", "x")
    producer.flush(30)
    client = ConsoleClient(ready(cluster.data_dir / "run/console.ready"))
    client.sign_in("root", SECRETS["root"])
    answer = client.request(
        "POST",
        "/api/groups/billing/configs",
        {"configs": {"share.auto.offset.reset": "earliest", "share.isolation.level": None}, "confirmed": True},
    )
    assert (answer.status, answer.body) == (
        200,
        {"altered": ["share.auto.offset.reset", "share.isolation.level"]},
    ), answer


def holder(cluster: KshareCluster, name: str, wanted: int) -> tuple[ShareConsumer, list[Any]]:
    """A worker of alice that holds `wanted` records."""
    own = {"group.id": "billing", "client.id": name, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({**credentials(cluster, "alice"), **own})
    consumer.subscribe(["orders"])
    held: list[Any] = []
    deadline = time.monotonic() + 60
    while len(held) < wanted:
        assert time.monotonic() < deadline, f"{name} got {len(held)} of {wanted} records"
        held += [message for message in consumer.poll(1.0) if message.error() is None]
    return consumer, held


def client_of(address: str, user: str) -> ConsoleClient:
    client = ConsoleClient(address)
    answer = client.sign_in(user, SECRETS[user])
    assert (answer.status, answer.body["principal"]) == (200, f"User:{user}")
    return client


def test_a_stuck_record_is_found_and_released(stack: Stack) -> None:
    stuck, held = holder(stack.cluster, "stuck-worker", RECORDS)
    alice = client_of(stack.admin_console, "alice")
    admin = AdminClient(credentials(stack.cluster, "root"))
    latest = admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.latest()})  # type: ignore[no-untyped-call]
    (end,) = [future.result(30).offset for future in latest.values()]
    check_figures(alice, end)
    release_and_reject(alice, end)
    second, redelivered = holder(stack.cluster, "second-worker", 2)
    assert [(each.offset(), each.delivery_count()) for each in redelivered] == [(0, 2), (1, 2)]
    (poison,) = alice.get("/api/groups/billing/poison")["items"]
    assert (poison["offset"], poison["last_offset"], poison["delivery_count"]) == (0, 1, 2)
    assert poison["client_id"] == "second-worker"
    for message in held:
        stuck.acknowledge(message)
    try:
        results = stuck.commit_sync(30.0) or {}
        assert any(result is not None for result in results.values())
    except KafkaException as refused:
        assert refused.args[0].name() == "INVALID_RECORD_STATE"
    second.close()
    stuck.close()
    check_audit_logs(stack.cluster.data_dir / "logs")


def check_figures(alice: ConsoleClient, end: int) -> None:
    """The console shows what the cluster has: all records up to `end` are held by one worker."""
    strip = alice.get(STRIP)
    assert [strip[name] for name in ("start_offset", "end_offset", "log_end_offset", "acquired")] == [0, end, end, end]
    (run,) = strip["runs"]
    assert [run[name] for name in ("first_offset", "last_offset", "delivery_count")] == [0, end - 1, 1]
    assert (run["state"], run["client_id"]) == ("Acquired", "stuck-worker")
    assert abs(run["lock_ends_ms"] - run["acquired_ms"] - strip["lock_duration_ms"]) <= 1
    assert 0 <= strip["time_ms"] - run["acquired_ms"] < 30_000
    group = alice.get("/api/groups/billing")
    assert [(each["client_id"], each["in_flight"]) for each in group["members"]] == [("stuck-worker", end)]
    assert group["lag_records"] == end
    record = alice.get("/api/records/orders/0/3")
    assert (record["key"]["text"], record["value"]["text"], record["value"]["json"]) == ("k3", '{"order": 3}', True)
    header = record["headers"][0]["value"]
    assert (header["text"], header["hex"], header["truncated"]) == (None, "ff", False)
    deadline = time.monotonic() + 30
    wanted = ["billing", 1, end, end]
    listed: list[Any] = []
    while listed != wanted:  # it is read every 2 s
        assert time.monotonic() < deadline, f"{listed} is listed, not {wanted}"
        time.sleep(0.05)
        for each in alice.get("/api/groups")["items"]:
            listed = [each[name] for name in ("group_id", "members", "lag_records", "in_flight")]


def release_and_reject(alice: ConsoleClient, end: int) -> None:
    """The first two records are released and the third is rejected, once the question is answered; seen live."""
    with alice.stream("view=strip&group=billing&topic=orders&partition=0") as events:
        assert next(events)[1]["acquired"] == end
        asked = alice.request("POST", f"{STRIP}/release", {"first_offset": 0, "last_offset": 1})
        assert (asked.status, asked.body["code"]) == (400, "CONFIRMATION_NEEDED")
        assert "release 2 records of orders-0 at offsets 0 to 1" in asked.body["question"]
        assert alice.get(STRIP)["acquired"] == end
        body = {"first_offset": 0, "last_offset": 1, "confirmed": True}
        done = alice.request("POST", f"{STRIP}/release", body)
        assert (done.status, done.body) == (200, {"released": 2})
        body = {"first_offset": 2, "last_offset": 2, "confirmed": True}
        assert alice.request("POST", f"{STRIP}/reject", body).body == {"rejected": 1}
        assert any(state["acquired"] == end - 3 and name == "state" for name, state in events)
    again = alice.request("POST", f"{STRIP}/reject", body)
    assert (again.status, again.body["code"]) == (400, "INVALID_RECORD_STATE")


def check_audit_logs(logs: Path) -> None:
    """Console and leader say who did what; questions that were asked back have no line."""
    log = (logs / "console.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    ended = [each for each in lines if each["api"].endswith("Acquisitions") and each["principal"] == "User:alice"]
    told = [(each["principal"], each["api"], each["outcome"]) for each in ended]
    assert told == [
        ("User:alice", "ReleaseAcquisitions", "succeeded"),
        ("User:alice", "RejectAcquisitions", "succeeded"),
        ("User:alice", "RejectAcquisitions", "failed"),
    ]
    audited = (logs / "leader.log").read_text()
    assert '"api": "EndAcquisitions"' in audited
    assert '"principal": "User:alice"' in audited


def test_nobody_sees_or_changes_anything_without_signing_in(stack: Stack) -> None:
    nobody = ConsoleClient(stack.admin_console)
    session = nobody.get("/api/session")
    assert (session["principal"], session["sign_in"], session["csrf_token"]) == (None, "sasl", None)
    for path in VIEWS:
        assert nobody.request("GET", path).status == 401, path
    for path, body in ACTIONS.items():
        assert nobody.request("POST", path, {**body, "confirmed": True}).status == 401, path
    refused = nobody.sign_in("alice", "wrong")
    assert (refused.status, refused.body["code"]) == (401, "SASL_AUTHENTICATION_FAILED")
    nobody.cookie = "kshare_console=guessed"
    assert nobody.request("GET", "/api/groups").status == 401


def test_the_authorizer_decides(stack: Stack) -> None:
    alice, bob = client_of(stack.admin_console, "alice"), client_of(stack.admin_console, "bob")
    root = client_of(stack.admin_console, "root")
    assert [each["group_id"] for each in bob.get("/api/groups")["items"]] == []
    assert [each["topic"] for each in alice.get("/api/topics")["items"]] == ["orders"]
    assert "secret" in [each["topic"] for each in root.get("/api/topics")["items"]]
    for path in ("/api/groups/billing", STRIP, "/api/records/orders/0/0", "/api/topics/orders", "/api/placement"):
        assert bob.request("GET", path).status == 403, path
    assert alice.request("GET", "/api/records/secret/0/0").status == 403
    for path in ("/api/records/orders/9/0", "/api/records/orders/0/999", "/api/records/none/0/0"):
        assert root.request("GET", path).status == 404, path
    overview = alice.get("/api/overview")
    assert (overview["roles"], overview["partitions"]) == ([], {"total": None, "offline": None})
    overview = root.get("/api/overview")
    assert {each["state"] for each in overview["roles"]} == {"healthy"}
    assert {each["role"] for each in overview["roles"]} == {"coordinator", "share-coordinator", "leader", "gateway"}
    before = root.request("GET", "/api/groups/billing").body.get("configs")
    for path, body in ACTIONS.items():
        answer = bob.request("POST", path, {**body, "confirmed": True})
        assert answer.status in (403, 503), f"{path}: {answer}"
    for path in ("/api/groups/billing/configs", "/api/placement/drain"):
        assert alice.request("POST", path, {**ACTIONS[path], "confirmed": True}).status == 403, path
    assert root.request("GET", "/api/groups/billing").body.get("configs") == before
    assert not any(each["draining"] for each in root.get("/api/placement")["leaders"])


def test_read_only_means_read_only(stack: Stack) -> None:
    root = client_of(stack.read_only_console, "root")
    assert root.get("/api/session")["admin"] is False
    for path, body in ACTIONS.items():
        for sent in ({**body, "confirmed": True}, body, {}, b"no JSON"):
            answer = root.request("POST", path, sent)
            assert (answer.status, answer.body["code"]) == (403, "READ_ONLY"), path
        for method in ("PUT", "PATCH", "DELETE"):
            assert root.request(method, path, body).status == 405, path
    assert all(root.request("GET", path).status in (200, 404) for path in VIEWS[:-1])


def test_other_sites_and_floods_are_kept_out(stack: Stack) -> None:
    root = client_of(stack.admin_console, "root")
    path, body = "/api/placement/drain", {**ACTIONS["/api/placement/drain"], "confirmed": True}
    assert root.request("GET", "/api/groups", headers={"Host": "evil.example.com"}).status == 421
    assert root.request("POST", path, body, headers={"Origin": "http://evil.example.com"}).status == 403
    assert root.request("POST", path, body, headers={"X-Kshare-Csrf": ""}).body["code"] == "CSRF_TOKEN_MISSING"
    assert root.request("POST", path, body, headers={"Content-Type": "text/plain"}).status == 415
    assert root.request("POST", path, b"[" * 70_000).status == 413
    page = root.request("GET", "/")
    assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "HttpOnly" in root.sign_in("root", SECRETS["root"]).headers["Set-Cookie"]
    assert root.request("GET", "/../node.py").status == 404
    assert root.request("GET", "/api/groups?limit=5000").status == 400
    other = client_of(stack.read_only_console, "root")
    with other.stream("view=overview") as events:
        assert next(events)[0] == "state"
        assert other.request("GET", "/api/stream?view=overview").body["code"] == "TOO_MANY_STREAMS"
    root.request("DELETE", "/api/session")
    assert root.request("GET", "/api/groups").status == 401


def test_dead_letters_are_found_and_redriven(stack: Stack) -> None:
    """A rejected record becomes a dead letter, which the console finds by its reason and produces again, once."""
    as_root = credentials(stack.cluster, "root")
    admin = AdminClient(as_root)
    dlq = NewTopic("dlq.workers", 1, 1, config={"errors.deadletterqueue.group.enable": "true"})
    for future in admin.create_topics([NewTopic("jobs", 1, 1), dlq]).values():
        future.result(30)
    root = client_of(stack.admin_console, "root")
    configs = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.workers",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    body: dict[str, object] = {"configs": configs, "confirmed": True}
    assert root.request("POST", "/api/groups/workers/configs", body).status == 200
    producer = Producer(as_root)
    producer.produce("jobs", "broken", key="k")
    producer.flush(30)
    own = {"group.id": "workers", "client.id": "worker", "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({**as_root, **own})
    consumer.subscribe(["jobs"])
    deadline = time.monotonic() + 60
    while not consumer.poll(1.0):
        assert time.monotonic() < deadline, "the record did not come"
    path = "/api/groups/workers/topics/jobs/partitions/0/reject"
    rejected = root.request("POST", path, {"first_offset": 0, "last_offset": 0, "confirmed": True})
    assert rejected.body == {"rejected": 1}, rejected

    while root.get("/api/topics/dlq.workers")["partitions"][0]["end_offset"] == 0:
        assert time.monotonic() < deadline, "no dead letter was written"
        time.sleep(0.02)
    (letters,) = root.get("/api/dead-letters")["items"]
    assert (letters["group_id"], letters["reason"], letters["count"]) == ("workers", "rejected", 1)
    example = letters["examples"][0]
    assert (example["source_topic"], example["source_partition"], example["source_offset"]) == ("jobs", 0, 0)
    copy = root.get(f"/api/records/dlq.workers/0/{example['offset']}")
    assert (copy["key"]["text"], copy["value"]["text"]) == ("k", "broken")

    path = "/api/dead-letters/redrive"
    tried = root.request("POST", path, {"group_id": "workers", "dry_run": True})
    assert (tried.status, tried.body["would_redrive"]) == (200, 1), tried
    asked = root.request("POST", path, {"group_id": "workers"})
    assert (asked.status, asked.body["code"]) == (400, "CONFIRMATION_NEEDED")
    done = root.request("POST", path, {"group_id": "workers", "confirmed": True})
    assert (done.body["redriven"], done.body["moved"]) == (1, {"jobs": {"rejected": 1}}), done
    again = root.request("POST", path, {"group_id": "workers", "confirmed": True})
    assert (again.body["redriven"], again.body["already_redriven"]) == (0, 1), again
    assert root.get("/api/records/jobs/0/1")["value"]["text"] == "broken"
    consumer.close()


def test_a_drain_is_asked_back(stack: Stack) -> None:
    root = client_of(stack.admin_console, "root")
    path = "/api/placement/drain"
    asked = root.request("POST", path, {"role": "leader", "name": "leader-1"})
    assert (asked.status, asked.body["code"]) == (400, "CONFIRMATION_NEEDED")
    unknown = root.request("POST", path, {"role": "leader", "name": "leader-9", "confirmed": True})
    assert (unknown.status, unknown.body["code"]) == (404, "NOT_FOUND")
    for name in ("gateway-1", "leader-x", "share-coordinator-1"):
        assert root.request("POST", path, {"role": "leader", "name": name, "confirmed": True}).status == 400, name
    assert not any(each["draining"] for each in root.get("/api/placement")["leaders"])
