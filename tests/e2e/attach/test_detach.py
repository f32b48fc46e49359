"""`kshare detach`: groups of a kshare in front of Apache Kafka 4.3.1 go on as that cluster's own share groups."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.clients.administration import create_topic
from support.clients.delivery import RELEASE, SETTINGS, Reader, produce, set_group, values_of
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.kafka.existing_cluster import ExistingCluster
from support.kafka.java import NEWEST

LIMIT_S = 120
PARTITIONS = 2
IN_EACH = 30
GROUP, BUSY = "billing", "busy"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ExistingCluster]:
    with ExistingCluster(tmp_path / "cluster", settings=SETTINGS, release=NEWEST) as running:
        create_topic(running.bootstrap, "orders", PARTITIONS)
        yield running


@pytest.fixture
def attached(cluster: ExistingCluster, tmp_path: Path) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path / "kshare", SETTINGS, engine=TestEngine.KAFKA_SHARE, upstream=cluster) as running:
        yield running


def detach(attached: KshareCluster, cluster: ExistingCluster, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), "detach", "--from", attached.bootstrap, "--to", cluster.bootstrap, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def groups_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {row["group"]: row for row in json.loads(done.stdout)["groups"]}


def start_offsets(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, int], int]:
    return {(row["topic"], row["partition"]): row["start_offset"] for row in json.loads(done.stdout)["offsets"]}


def accept_some(bootstrap: str, wanted: int, released: set[str]) -> Counter[str]:
    """Accepts so many records, and releases those of `released` each time they come.

    Few polls: a record that is released as often as group.share.delivery.count.limit allows is given up.
    """
    accepted: Counter[str] = Counter()
    with Reader(bootstrap, GROUP, "orders", max_poll_records=20) as reader:
        while sum(accepted.values()) < wanted:
            for message in reader.take():
                value = message.value().decode()
                if value in released:
                    reader.consumer.acknowledge(message, RELEASE)
                else:
                    accepted[value] += 1
                    reader.consumer.acknowledge(message)
            assert not reader.commit()
    return accepted


def test_every_record_is_finished_once_or_was_announced(attached: KshareCluster, cluster: ExistingCluster) -> None:
    everything = {f"{partition}-{number:02}" for partition in range(PARTITIONS) for number in range(IN_EACH)}
    for partition in range(PARTITIONS):
        values = sorted(value for value in everything if value.startswith(f"{partition}-"))
        produce(cluster.bootstrap, "orders", values, partition)
    set_group(attached.bootstrap, GROUP, auto_offset_reset="earliest", record_lock_duration_ms="9000")
    at_kshare = accept_some(attached.bootstrap, 45, {"0-04", "1-02"})
    assert set(at_kshare.values()) == {1}

    with Reader(attached.bootstrap, BUSY, "orders") as busy:
        busy.poll()
        refused = detach(attached, cluster, "--group", BUSY)
        assert refused.returncode == 1
        assert f"not detached: group {BUSY} has members at kshare, stop them first: " in refused.stderr

    planned = detach(attached, cluster, "--group", GROUP, "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    assert groups_of(planned)[GROUP]["result"] == "ready"
    done = detach(attached, cluster, "--group", GROUP, "--json")
    assert done.returncode == 0, done.stderr
    starts, again = start_offsets(done), groups_of(done)[GROUP]["again"]
    assert "share.record.lock.duration.ms=9000" in groups_of(done)[GROUP]["configs"]
    assert starts == start_offsets(planned) == {("orders", 0): 4, ("orders", 1): 2}, "up to the released records"
    assert 4 + 2 + again == sum(at_kshare.values())

    repeated = detach(attached, cluster, "--group", GROUP, "--json")
    assert repeated.returncode == 0 and start_offsets(repeated) == starts, "nothing is left to do"

    with Reader(cluster.bootstrap, GROUP, "orders") as reader:
        at_cluster = Counter(values_of(reader.accept(len(everything) - sum(starts.values()))))
        assert reader.poll(2.0) == []
    assert set(at_cluster.values()) == {1} and set(at_kshare) | set(at_cluster) == everything
    assert len(set(at_kshare) & set(at_cluster)) == again, "as many are delivered again as the command said"
    below = {f"{partition}-{number:02}" for (_, partition), start in starts.items() for number in range(start)}
    assert not below & set(at_cluster)

    for partition in range(PARTITIONS):
        produce(cluster.bootstrap, "orders", ["later"], partition)
    with Reader(cluster.bootstrap, GROUP, "orders") as reader:
        reader.accept(PARTITIONS)
    late = detach(attached, cluster, "--group", GROUP)
    assert late.returncode == 1 and "is further in the cluster than at kshare" in late.stderr
    back = detach(attached, cluster, "--group", GROUP, "--overwrite")
    assert back.returncode == 0, back.stderr
