"""`kshare groups in-flight`: a record that a worker holds is found with its client, and a released one without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from support.clients.administration import create_topic, read_from_earliest
from support.clients.workload import produce_numbered
from support.clusters.kshare_cluster import KshareCluster

KSHARE = str(Path(sys.executable).parent / "kshare")
RECORDS = 10
LOCK_MS = 30_000
POLLS = 60


def in_flight(cluster: KshareCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [KSHARE, "groups", "in-flight", *arguments, "--bootstrap", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def told(cluster: KshareCluster, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    done = in_flight(cluster, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def polled(consumer: ShareConsumer, wanted: int) -> list[Any]:
    for _ in range(POLLS):
        messages = [message for message in consumer.poll(1.0) if message.error() is None]
        if messages:
            assert len(messages) == wanted
            return messages
    raise AssertionError("no records came")


@pytest.mark.parametrize("single_process", [False, True], ids=["processes", "single-process"])
def test_who_holds_what(tmp_path: Path, single_process: bool) -> None:
    with KshareCluster(tmp_path, single_process=single_process) as cluster:
        create_topic(cluster.bootstrap, "orders", 1)
        read_from_earliest(cluster.bootstrap, "workers")
        produce_numbered(cluster.bootstrap, "orders", range(RECORDS), 1)
        settings = {"share.acknowledgement.mode": "explicit", "client.id": "worker-1"}
        consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": "workers", **settings})
        consumer.subscribe(["orders"])
        messages = polled(consumer, RECORDS)

        (held,) = told(cluster, "workers", "--held")["runs"]
        assert (held["first_offset"], held["last_offset"]) == (0, RECORDS - 1)
        assert (held["state"], held["client"], held["delivery_count"]) == ("Acquired", "worker-1", 1)
        assert 0 < held["lock_remaining_ms"] <= LOCK_MS

        for message in messages:
            kind = AcknowledgeType.RELEASE if message.offset() >= RECORDS - 2 else AcknowledgeType.ACCEPT
            consumer.acknowledge(message, kind)
        consumer.commit_sync(30.0)
        consumer.close()
        found = told(cluster, "workers")
        (partition,) = found["share_partitions"]
        # The last session is over, so the leader may have unloaded the share-partition by now.
        if partition["start_offset"] is not None:
            assert (partition["start_offset"], partition["held"]) == (RECORDS - 2, 0)
            assert [(run["first_offset"], run["state"], run["client"]) for run in found["runs"]] == [
                (RECORDS - 2, "Available", None)
            ]
        else:
            assert (partition["note"], found["runs"]) == ("not loaded; no records are held", [])


def test_bad_input_says_what_to_do(tmp_path: Path) -> None:
    with KshareCluster(tmp_path) as cluster:
        unknown = in_flight(cluster, "nobody")
        assert unknown.returncode == 1
        assert "group nobody has no share-partitions; kshare groups list shows all groups" in unknown.stderr
        create_topic(cluster.bootstrap, "orders", 1)
        read_from_earliest(cluster.bootstrap, "workers")
        consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": "workers"})
        consumer.subscribe(["orders"])
        produce_numbered(cluster.bootstrap, "orders", range(1), 1)
        polled(consumer, 1)
        elsewhere = in_flight(cluster, "workers", "--topic", "payments")
        assert elsewhere.returncode == 1
        assert "group workers has no share-partitions in topic payments" in elsewhere.stderr
        check_release(cluster)
        consumer.close()


def check_release(cluster: KshareCluster) -> None:
    """`kshare groups release` counts, asks back, and frees the one record that is held."""

    def release(offsets: str, *more: str, topic: str = "orders", answer: str = "n\n") -> tuple[int, str]:
        where = ("--topic", topic, "--partition", "0", "--offsets", offsets, "--bootstrap", cluster.bootstrap)
        command = [KSHARE, "groups", "release", "workers", *where, *more]
        done = subprocess.run(command, capture_output=True, text=True, input=answer, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    assert release("0-9", "--dry-run") == (0, "would release 1 record of orders:0:0-9 in group workers\n")
    code, text = release("0-9")
    assert (code, "release 1 record of orders:0:0-9?" in text, "nothing was changed" in text) == (1, True, True)
    assert release("0-9", answer="")[1].endswith("kshare: nothing was changed\n"), "stdin has no answer"
    assert release("0-9", "--yes") == (0, "released 1 record of orders:0:0-9 in group workers\n")
    code, text = release("0-9", "--yes")
    assert (code, "INVALID_RECORD_STATE" in text) == (1, True), text
    assert "offsets 0-9 of share-partition workers:orders:0 is acquired" in text
    assert "--offsets 5-4: the last offset is below the first" in release("5-4")[1]
    assert "group workers has no share-partition payments-0" in release("0", topic="payments")[1]
