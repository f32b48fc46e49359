"""Roles killed and paused under load, one by one and all at once: nothing lost, nothing accepted twice.

The leader tells its delivery history, and the audit finds no broken rule in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery_history import HISTORY_ON, assert_history_is_sound
from support.clients.state_of_group import wait_until_drained
from support.clients.workload import Account, WorkerPool, WorkerTask, produce_numbered
from support.clusters.kshare_cluster import ROLES, KshareCluster

PARTITIONS = 3
WORKERS = 4
RECORDS = 30_000
STEP = RECORDS // 6
DELIVERY_COUNT_LIMIT = 5
ENDS = [len(range(partition, RECORDS, PARTITIONS)) for partition in range(PARTITIONS)]
"""Of the partitions' logs."""
PAUSE_S = 12.0
"""Longer than a node's lease (kshare.node.lease.ms)."""


def _tasks(cluster: KshareCluster) -> list[WorkerTask]:
    return [
        WorkerTask(bootstrap=cluster.bootstrap, topic="load", group="workers", index=index, release_every=5)
        for index in range(WORKERS)
    ]


def accepted(wanted: int) -> Callable[[Account], bool]:
    """Whether so many records were accepted; of some nobody may know whether the cluster took it."""
    return lambda account: len(account.accepted) >= wanted


def finish(pool: WorkerPool, cluster: KshareCluster) -> None:
    """Goes on until every record was accepted and the durable state says so, too.

    An acceptance that was stored, but whose answer was lost with a process, is never confirmed to its worker. Then only
    the group's start offsets tell that the record was not lost.
    """
    pool.run_until(accepted(RECORDS), timeout_s=150)
    pool.run_until_drained(cluster.bootstrap, "workers", "load", timeout_s=60)
    wait_until_drained(cluster, "workers", "load", ENDS, timeout_s=60)


def assert_all_is_done(account: Account) -> None:
    assert account.finish(range(RECORDS)) == []
    assert account.highest_delivery_count < DELIVERY_COUNT_LIMIT, "a record may have been archived by the limit"


class _Producing(threading.Thread):
    """Produces while the test kills; its failure is the test's."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for start in range(0, RECORDS, 2_000):
                produce_numbered(self._address, "load", range(start, start + 2_000), PARTITIONS)
        except BaseException as failure:
            self.failure = failure


@pytest.mark.timeout(280)
def test_each_role_killed_in_turn(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, HISTORY_ON) as cluster:
        create_topic(cluster.bootstrap, "load", PARTITIONS)
        read_from_earliest(cluster.bootstrap, "workers")
        producing = _Producing(cluster.bootstrap)
        producing.start()
        killed: dict[str, int] = {}
        with WorkerPool(_tasks(cluster)) as pool:
            for index, role in enumerate(ROLES):
                wanted = STEP * (index + 1)
                pool.run_until(accepted(wanted), timeout_s=60)
                killed[role] = cluster.kill_role(role)
                cluster.wait_until_gone(killed[role])
            finish(pool, cluster)
        producing.join(10)
        assert producing.failure is None
        assert_history_is_sound(cluster.bootstrap, "workers", "load", ENDS, DELIVERY_COUNT_LIMIT)
        log = cluster.log_text()
    assert_all_is_done(pool.account)
    for role, pid in killed.items():
        assert f"{role.replace('_', '-')} (pid {pid}) was killed by SIGKILL" in log


@pytest.mark.timeout(280)
def test_everything_killed_at_once(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, HISTORY_ON) as cluster:
        create_topic(cluster.bootstrap, "load", PARTITIONS)
        read_from_earliest(cluster.bootstrap, "workers")
        producing = _Producing(cluster.bootstrap)
        producing.start()
        with WorkerPool(_tasks(cluster)) as pool:
            pool.run_until(accepted(RECORDS // 3), timeout_s=60)
            cluster.kill_everything()
            cluster.start()
            finish(pool, cluster)
        producing.join(10)
        assert producing.failure is None
        assert_history_is_sound(cluster.bootstrap, "workers", "load", ENDS, DELIVERY_COUNT_LIMIT)
    assert_all_is_done(pool.account)


@pytest.mark.real_faults
@pytest.mark.timeout(280)
def test_each_role_paused_for_longer_than_its_lease(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, HISTORY_ON) as cluster:
        create_topic(cluster.bootstrap, "load", PARTITIONS)
        read_from_earliest(cluster.bootstrap, "workers")
        producing = _Producing(cluster.bootstrap)
        producing.start()
        with WorkerPool(_tasks(cluster)) as pool:
            for index, role in enumerate(ROLES):
                pool.run_until(accepted(STEP * (index + 1)), timeout_s=60)
                with cluster.paused(role):
                    pool.run_for(PAUSE_S)
            finish(pool, cluster)
        producing.join(10)
        assert producing.failure is None
        assert_history_is_sound(cluster.bootstrap, "workers", "load", ENDS, DELIVERY_COUNT_LIMIT)
    assert_all_is_done(pool.account)
