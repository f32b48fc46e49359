"""200,000 records of 1 KB over three partitions, four share consumers, a fifth of the first deliveries released."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clients.administration import create_topic, read_from_earliest
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.kshare_cluster import KshareCluster

RECORDS = 200_000
PARTITIONS = 3
WORKERS = 4


@pytest.mark.timeout(240)
def test_every_record_is_accepted_exactly_once(tmp_path: Path) -> None:
    with KshareCluster(tmp_path) as cluster:
        create_topic(cluster.records_bootstrap, "load", PARTITIONS)
        read_from_earliest(cluster.bootstrap, "workers")
        produce_numbered(cluster.records_bootstrap, "load", range(RECORDS), PARTITIONS)
        tasks = [
            WorkerTask(bootstrap=cluster.bootstrap, topic="load", group="workers", index=index, release_every=5)
            for index in range(WORKERS)
        ]
        with WorkerPool(tasks) as pool:
            pool.run_until(lambda account: len(account.accepted_at) == RECORDS, timeout_s=180)
            pool.run_until_drained(cluster.bootstrap, "workers", "load", timeout_s=30)
        account = pool.account
    assert account.finish(range(RECORDS)) == []
    assert set(account.accepted_at) == set(range(RECORDS))
    assert account.released == RECORDS // 5
    assert account.redeliveries == RECORDS // 5
    assert sorted(account.by_worker) == list(range(WORKERS)), f"a worker got nothing: {account.by_worker}"
