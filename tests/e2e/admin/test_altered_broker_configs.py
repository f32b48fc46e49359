"""Broker configs altered with Kafka's own tool are in force without a restart, and after one; and `kshare nodes`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from support.clients.administration import create_placed_topic
from support.clients.delivery import TIMEOUT_S, wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_programs import run_tool

CONFIGS = ("kafka.admin.ConfigCommand", "--entity-type", "brokers")


def produces(bootstrap: str, topic: str, size: int) -> bool:
    """Whether a record of so many bytes is taken; every other refusal than its size fails."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, b"v" * size, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    (error,) = errors
    assert error is None or error.code() == KafkaError.MSG_SIZE_TOO_LARGE, error
    return error is None


def becomes(expected: bool, taken: Callable[[], bool]) -> None:
    wait_for(lambda: taken() is expected, f"taken: {expected}")


@pytest.mark.timeout(240)
def test_the_largest_message_is_altered_while_everything_runs(tmp_path: Path) -> None:
    with KshareCluster(tmp_path) as cluster:
        bootstrap = cluster.bootstrap
        topic = "placed"
        create_placed_topic(bootstrap, topic, [[1]], {})  # at the broker whose config is altered

        def taken() -> bool:
            return produces(bootstrap, topic, 5_000)

        assert taken()
        run_tool(bootstrap, *CONFIGS, "--entity-default", "--alter", "--add-config", "message.max.bytes=2000")
        becomes(False, taken)
        told = run_tool(bootstrap, *CONFIGS, "--entity-default", "--describe")
        assert "message.max.bytes=2000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG" in told
        cluster.wait_until_gone(cluster.kill_role("leader"))
        cluster.wait_until_gone(cluster.kill_role("coordinator"))
        becomes(False, taken)
        run_tool(bootstrap, *CONFIGS, "--entity-name", "1", "--alter", "--add-config", "message.max.bytes=20000")
        becomes(True, taken)
        run_tool(bootstrap, *CONFIGS, "--entity-name", "1", "--alter", "--delete-config", "message.max.bytes")
        becomes(False, taken)
        run_tool(bootstrap, *CONFIGS, "--entity-default", "--alter", "--delete-config", "message.max.bytes")
        becomes(True, taken)
        assert "message.max.bytes" not in run_tool(bootstrap, *CONFIGS, "--entity-default", "--describe")


@pytest.mark.timeout(120)
def test_kshare_nodes(cluster: KshareCluster) -> None:
    kshare = str(Path(sys.executable).parent / "kshare")
    command = [kshare, "nodes", "--data-dir", str(cluster.data_dir)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]
    assert [row[0] for row in rows] == ["coordinator", "gateway", "share-coordinator", "leader"]
    assert rows[1][3] == cluster.bootstrap
    for role, node_id, epoch, address, lease in rows[1:]:
        assert (node_id, int(epoch) > 0, ":" in address) == ("1", True, True), role
        assert 0 < float(lease.removesuffix(" s")) <= 10
