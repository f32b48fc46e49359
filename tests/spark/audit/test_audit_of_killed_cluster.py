"""`kshare audit` reads the topic of a real cluster whose leader was killed under load.

The kill tests (tests/e2e/failures/test_kill.py) audit their histories in memory; here Spark reads the topic.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kshare.main import app
from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery_history import HISTORY_ON, assert_history_is_sound
from support.clients.state_of_group import wait_until_drained
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.kshare_cluster import KshareCluster
from support.pipeline.spark import shared_spark

RECORDS = 2_000
PARTITIONS = 2
GROUP, TOPIC = "workers", "load"


@pytest.mark.timeout(280)
def test_the_audit_reads_the_topic_and_finds_no_fault(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, HISTORY_ON) as cluster:
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        read_from_earliest(cluster.bootstrap, GROUP)
        tasks = [
            WorkerTask(bootstrap=cluster.bootstrap, topic=TOPIC, group=GROUP, index=index, release_every=7)
            for index in range(2)
        ]
        with WorkerPool(tasks) as pool:
            produce_numbered(cluster.bootstrap, TOPIC, range(RECORDS // 2), PARTITIONS)
            pool.run_until(lambda account: bool(account.accepted), timeout_s=60)
            cluster.wait_until_gone(cluster.kill_role("leader"))
            produce_numbered(cluster.bootstrap, TOPIC, range(RECORDS // 2, RECORDS), PARTITIONS)
            pool.run_until(lambda account: len(account.accepted) >= RECORDS, timeout_s=90)
            pool.run_until_drained(cluster.bootstrap, GROUP, TOPIC, timeout_s=60)
            ends = [RECORDS // PARTITIONS] * PARTITIONS
            wait_until_drained(cluster, GROUP, TOPIC, ends, timeout_s=60)
        audits = assert_history_is_sound(cluster.bootstrap, GROUP, TOPIC, ends, 5)
        shared_spark()
        result = CliRunner().invoke(app, ["audit", "--bootstrap", cluster.bootstrap, "--delivery-count-limit", "5"])
    assert result.exception is None, result.stdout
    assert f"share-partitions: {PARTITIONS}\n" in result.stdout
    assert f"events: {sum(audit.events for audit in audits)}\n" in result.stdout
    assert f"deliveries: {sum(audit.deliveries for audit in audits)}\n" in result.stdout
    assert "faults: 0" in result.stdout
    assert pool.account.finish(range(RECORDS)) == []
