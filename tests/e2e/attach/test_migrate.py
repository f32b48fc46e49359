"""`kshare migrate`: from a kshare with its own logs to Apache Kafka 3.9.1 with a kshare in front; no record is lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from support.clients.delivery import SETTINGS, Reader, produce, values_of
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.kafka.existing_cluster import ExistingCluster

LIMIT_S = 120
GROUP = "billing"


class Places(NamedTuple):
    """The three clusters of a migration."""

    old: str
    new: str
    attached: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("migrate", "--from", self.old, "--to", self.new, "--kshare", self.attached)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    with (
        KshareCluster(tmp_path / "old", SETTINGS, engine=TestEngine.EMBEDDED) as old,
        KshareCluster(tmp_path / "new", SETTINGS, engine=TestEngine.KAFKA_SHARE) as attached,
    ):
        assert attached.upstream is not None
        yield Places(old.bootstrap, attached.upstream.bootstrap, attached.bootstrap)


def kshare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def succeed(*arguments: str) -> str:
    done = kshare(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def standing(places: Places) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of --status: topics and groups by name."""
    shown = json.loads(succeed(*places.options, "--status", "--json"))
    return {
        "topics": {row["topic"]: row for row in shown["topics"]},
        "groups": {row["group"]: row for row in shown["groups"]},
    }


def topics_at(bootstrap: str) -> dict[str, int]:
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")}


def consumed(bootstrap: str, group: str, count: int) -> list[str]:
    """The values that a consumer of the group accepts."""
    with Reader(bootstrap, group, "orders") as reader:
        return sorted(values_of(reader.accept(count)))


def test_topics_groups_and_every_record(places: Places) -> None:
    old, new, attached = places
    at_old, at_new = ("--bootstrap", old), ("--bootstrap", attached)
    configs = ("--config", "retention.ms=987654321", "--config", "max.message.bytes=500000")
    succeed("topics", "create", "orders", "--partitions", "3", *configs, *at_old)
    succeed("topics", "create", "dlq.letters", "--config", "errors.deadletterqueue.group.enable=true", *at_old)
    before = [f"old-{number:02}" for number in range(40)]
    for partition in range(3):
        produce(old, "orders", before[partition::3], partition)
    succeed("groups", "set", GROUP, "share.record.lock.duration.ms=9000", *at_old)
    succeed("groups", "reset", GROUP, "--topic", "orders", "--to-earliest", *at_old)

    planned = succeed(*places.options, "--dry-run")
    assert "retention.ms=987654321" in planned and topics_at(new) == {}
    created = succeed("migrate", "--from", old, "--to", new)
    replicas = len(new.split(","))  # each broker has one, by the tests' default.replication.factor
    expected = f"3 partitions, {replicas} replicas, max.message.bytes=500000, retention.ms=987654321"
    assert f"created topic orders: {expected}" in created
    assert f"start kshare attach {new}" in created
    assert topics_at(new) == {"orders": 3, "dlq.letters": 1}
    configured = succeed(*places.options)
    expected = "share.auto.offset.reset=earliest, share.record.lock.duration.ms=9000"
    assert f"set configs of group {GROUP}: {expected}" in configured and "created" not in configured
    assert f"group {GROUP} has 40 records left, and 0 members" in configured
    assert "set configs" not in succeed(*places.options), "a second run has nothing to do"

    after = [f"new-{number:02}" for number in range(20)]
    produce(new, "orders", after, 1)
    with subprocess.Popen([str(COMMAND), *places.options, "--wait"], stdout=subprocess.PIPE, text=True) as waiting:
        assert consumed(old, GROUP, 40) == before
        output, _ = waiting.communicate(timeout=LIMIT_S)
        assert waiting.returncode == 0
    assert f"let the consumers of {GROUP} use {attached}" in output
    found = standing(places)
    assert found["groups"][GROUP] | {"left": 0, "stage": "drained"} == found["groups"][GROUP]
    assert found["topics"]["orders"] | {"old_records": 40, "new_records": 20} == found["topics"]["orders"]

    assert consumed(attached, GROUP, 20) == after, "records produced before the first consumer came are delivered"
    switched = succeed(*places.options)
    assert standing(places)["groups"][GROUP]["stage"] == "switched"
    (hint,) = (line for line in switched.splitlines() if "no longer needs share.auto.offset.reset" in line)
    succeed(*hint.split(": kshare ")[1].split())
    assert f"done: no share group needs {old} any more" in succeed(*places.options)
    assert succeed("groups", "describe", GROUP, *at_new) and topics_at(old) == {"orders": 3, "dlq.letters": 1}


def test_a_topic_with_other_partitions_stops_the_migration(tmp_path: Path) -> None:
    with (
        KshareCluster(tmp_path / "old", SETTINGS, engine=TestEngine.EMBEDDED) as old,
        ExistingCluster(tmp_path / "new") as new,
    ):
        for name, partitions in (("orders", "3"), ("payments", "1")):
            succeed("topics", "create", name, "--partitions", partitions, "--bootstrap", old.bootstrap)
        succeed("topics", "create", "orders", "--partitions", "2", "--bootstrap", new.bootstrap)
        refused = kshare("migrate", "--from", old.bootstrap, "--to", new.bootstrap)
        assert refused.returncode == 1 and "differs" in refused.stdout
        assert "topic orders has 3 partitions at --from and 2 at --to; nothing was changed" in refused.stderr
        assert topics_at(new.bootstrap) == {"orders": 2}
        succeed("migrate", "--from", old.bootstrap, "--to", new.bootstrap, "--topic", "payments")
        assert topics_at(new.bootstrap) == {"orders": 2, "payments": 1}
        unknown = kshare("migrate", "--from", old.bootstrap, "--to", new.bootstrap, "--topic", "order")
        assert unknown.returncode == 2 and "did you mean orders?" in unknown.stderr
