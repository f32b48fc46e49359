"""All of kshare ends, and starts in another folder, as on another machine: groups go on where they were, and soon.

A pause is from the start of the new processes to the first record that a worker gets of them. It includes the start of
Python, the examination of the cluster, and the leases of what was killed. The time from the last record before is only
printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.clients.administration import create_topic, read_from_earliest
from support.clients.rolling_load import ArrivalAccount
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster
from support.environment.machine_stalls import MachineStalls
from support.kafka.existing_cluster import ExistingCluster

pytestmark = pytest.mark.attached_faults

PARTITIONS = 4
WORKERS = 3
RECORDS = 30_000
AFTER_KILL_S = 15.0
AFTER_CLEAN_STOP_S = 3.0
SLOW = {"max.poll.records": "100"}
"""So that records are left when kshare ends."""


def kill(cluster: KshareCluster) -> None:
    cluster.kill_everything()


def stop(cluster: KshareCluster) -> None:
    assert cluster.stop() == 0


@pytest.mark.quiet
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("end", "bound_s"), [(kill, AFTER_KILL_S), (stop, AFTER_CLEAN_STOP_S)])
def test_groups_go_on_where_they_were(tmp_path: Path, end: Callable[[KshareCluster], None], bound_s: float) -> None:
    (tmp_path / "existing").mkdir()
    with ExistingCluster(tmp_path / "existing") as existing, ExitStack() as stack:
        here = KshareCluster(tmp_path / "here", engine=TestEngine.KAFKA_SHARE, upstream=existing)
        stack.callback(here.stop)
        here.start()
        create_topic(existing.bootstrap, "load", PARTITIONS)
        read_from_earliest(here.bootstrap, "workers")
        produce_numbered(existing.bootstrap, "load", range(RECORDS), PARTITIONS)
        tasks = [
            WorkerTask(bootstrap=here.bootstrap, topic="load", group="workers", index=index, settings=SLOW)
            for index in range(WORKERS)
        ]
        stalls, pool = stack.enter_context(MachineStalls()), stack.enter_context(WorkerPool(tasks))
        pool.account = account = ArrivalAccount()
        pool.run_until(lambda so_far: len(so_far.accepted_at) >= RECORDS // 20, timeout_s=60)
        end(here)
        ended = time.monotonic()
        elsewhere = KshareCluster(
            tmp_path / "elsewhere", engine=TestEngine.KAFKA_SHARE, upstream=existing, port=here.port
        )
        stack.enter_context(elsewhere)
        ready = time.monotonic()
        pool.run_until(lambda _: any(at > ended for at in all_arrivals(account)), timeout_s=60)
        arrivals = all_arrivals(account)
        last, first = max(at for at in arrivals if at <= ended), min(at for at in arrivals if at > ended)
        print(
            f"{end.__name__}: first record {first - ended:.2f} s after the start of the new processes, which were "
            f"ready after {ready - ended:.2f} s; {first - last:.2f} s after the last record before"
        )
        pool.run_until(lambda so_far: len(so_far.accepted) >= RECORDS, timeout_s=100)
        pool.run_until_drained(elsewhere.bootstrap, "workers", "load", timeout_s=60)
        assert account.finish(range(RECORDS)) == []
        assert first - ended < bound_s + stalls.credit_s(ended, first, bound_s)


def all_arrivals(account: ArrivalAccount) -> list[float]:
    return [at for times in account.arrivals.values() for at in times]
