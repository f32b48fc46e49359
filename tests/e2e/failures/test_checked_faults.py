"""Faults of real processes under load, judged by the checker of the simulation (`support.recorded`).

Each role is killed, and stopped for longer than its lease; its disk is full, hangs and is slow, and comes back; its
wall clock steps. Producers, one of them transactional, and members go on all the time. `make test-real-faults` runs all
of it; in the ordinary tests there is one run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.clients.administration import create_topic
from support.clients.delivery import wait_for
from support.clients.delivery_history import HISTORY_ON
from support.clusters.kshare_cluster import ROLES, KshareCluster
from support.environment.small_disk import SmallDisk
from support.environment.stepped_clock import SteppedClock
from support.recorded.run import RecordedRun, RunAccount

PAUSE_S = 12.0
"""Longer than a node's lease (kshare.node.lease.ms)."""
DISK_FAULT_S = 8.0
STARTED_WITHIN_S = 120.0
"""Only a limit: most of a start is the processor time of imports, and depends on what else the machine does."""
RESUMES_WITHIN_S = 10.0
"""From the moment at which the role is there again: clients' back-offs, and the re-reading of what it served."""
AFTER_LEASE_S = 20.0
"""The same of a role whose lease was lost: the leases of those that it serves may have to end, too."""
STEP_S = 3600.0
WITH_DISKS = ("coordinator", "share_coordinator", "leader")
real_faults = pytest.mark.real_faults


def process_of(role: str) -> str:
    """As `kshare up` names it, and the folder of its data."""
    return role.replace("_", "-")


def folder_of(cluster: KshareCluster, role: str) -> Path:
    return cluster.data_dir / process_of(role)


@contextmanager
def recorded(
    folder: Path, *, single_process: bool = False, variables: dict[str, str] | None = None
) -> Iterator[tuple[KshareCluster, RecordedRun]]:
    """A run on a cluster of its own."""
    cluster = KshareCluster(folder, HISTORY_ON, single_process=single_process, variables=variables)
    with cluster, RecordedRun(cluster.bootstrap, cluster.failures) as run:
        yield cluster, run


def fault_of_each_role(
    folder: Path, name: str, fault: Callable[[KshareCluster, str], object], resumes_within_s: float
) -> RunAccount:
    """The fault at one role after the other, in one run."""
    with recorded(folder) as (cluster, run):
        run.work_until_accepted(200)
        for role in ROLES:
            run.during(f"{role} {name}", lambda role=role: fault(cluster, role), resumes_within_s=resumes_within_s)  # type: ignore[misc]
        return run.finish()


@pytest.mark.timeout(120)
def test_the_leader_is_killed(tmp_path: Path) -> None:
    with recorded(tmp_path) as (cluster, run):
        run.work_until_accepted(50)
        run.during("the leader killed", lambda: kill(cluster, "leader"), resumes_within_s=RESUMES_WITHIN_S)
        assert run.finish().produced > 0


def kill(cluster: KshareCluster, role: str) -> None:
    """Returns when the role serves again."""
    position = len(cluster.log_text())
    cluster.kill_role(role)
    wait_until_started(cluster, role, position)


def wait_until_started(cluster: KshareCluster, role: str, position: int) -> None:
    started = re.compile(rf"\] started .*role={process_of(role)}$", re.MULTILINE)
    wait_for(lambda: started.search(cluster.log_text(), position) is not None, f"{role} starts", STARTED_WITHIN_S)


def pause(cluster: KshareCluster, role: str) -> None:
    with cluster.paused(role):
        time.sleep(PAUSE_S)


@real_faults
def test_each_role_is_killed(tmp_path: Path) -> None:
    fault_of_each_role(tmp_path, "killed", kill, RESUMES_WITHIN_S)


@real_faults
def test_each_role_is_stopped_past_its_lease(tmp_path: Path) -> None:
    fault_of_each_role(tmp_path, "stopped", pause, AFTER_LEASE_S)


@real_faults
@pytest.mark.parametrize("single_process", [False, True])
def test_everything_is_killed_again_and_again(tmp_path: Path, single_process: bool) -> None:
    with recorded(tmp_path, single_process=single_process) as (cluster, run):
        for number in range(4):
            run.work_until_accepted(200)
            run.during(f"kill {number} of everything", lambda: kill_all(cluster), resumes_within_s=RESUMES_WITHIN_S)
        run.finish()


def kill_all(cluster: KshareCluster) -> None:
    cluster.kill_everything()
    cluster.start()


# Disks


@contextmanager
def cluster_with_disks(folder: Path) -> Iterator[tuple[KshareCluster, dict[str, SmallDisk]]]:
    """Each role that has a folder has a file system of its own there."""
    cluster = KshareCluster(folder, HISTORY_ON)
    with ExitStack() as entered:
        disks = {role: entered.enter_context(SmallDisk(folder_of(cluster, role))) for role in WITH_DISKS}
        entered.enter_context(cluster)
        assert all(any(disk.folder.iterdir()) for disk in disks.values()), "a role has its files elsewhere"
        yield cluster, disks


def disk_fault(folder: Path, name: str, fault_of: Callable[[SmallDisk], AbstractContextManager[None]]) -> None:
    def stand(disk: SmallDisk) -> None:
        with fault_of(disk):
            time.sleep(DISK_FAULT_S)

    with cluster_with_disks(folder) as (cluster, disks), RecordedRun(cluster.bootstrap, cluster.failures) as run:
        run.work_until_accepted(200)
        for role, disk in disks.items():
            pid = cluster.role_pid(role)
            run.during(
                f"{role}'s disk {name}",
                lambda disk=disk: stand(disk),  # type: ignore[misc]
                resumes_within_s=RESUMES_WITHIN_S,
                failing_disk=process_of(role),
            )
            assert cluster.role_pid(role) == pid, f"{role} was started again, instead of going on"
        run.finish()


@real_faults
def test_the_disk_of_each_role_is_full_and_has_room_again(tmp_path: Path) -> None:
    disk_fault(tmp_path, "full", SmallDisk.full)


@real_faults
def test_the_disk_of_each_role_hangs(tmp_path: Path) -> None:
    disk_fault(tmp_path, "hung", SmallDisk.hung)


@real_faults
def test_the_disk_of_each_role_is_slow(tmp_path: Path) -> None:
    disk_fault(tmp_path, "slow", SmallDisk.slow)


@real_faults
def test_all_processes_are_killed_while_disks_hang(tmp_path: Path) -> None:
    """Writes that were under way are never answered: they are in the log or not, and what was confirmed is."""
    with cluster_with_disks(tmp_path) as (cluster, disks), RecordedRun(cluster.bootstrap, cluster.failures) as run:
        run.work_until_accepted(200)
        for role, disk in disks.items():

            def kill_hung(role: str = role, disk: SmallDisk = disk) -> None:
                position = len(cluster.log_text())
                with disk.hung():
                    time.sleep(1.0)
                    cluster.kill_role(role)
                    time.sleep(1.0)
                wait_until_started(cluster, role, position)

            run.during(
                f"{role} killed in a write",
                kill_hung,
                resumes_within_s=RESUMES_WITHIN_S,
                failing_disk=process_of(role),
            )
        run.finish()


# Clocks


def clock_of_leader_s(bootstrap: str, topic: str) -> float:
    """The time that the leader gives to a record of a topic with LogAppendTime."""
    times: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"what time is it", on_delivery=lambda error, message: times.append(message.timestamp()[1]))
    assert producer.flush(30) == 0
    return times[0] / 1000


@real_faults
@pytest.mark.parametrize("step_s", [STEP_S, -STEP_S])
def test_the_wall_clock_of_all_roles_steps(tmp_path: Path, step_s: float) -> None:
    """Locks, leases and sessions are measured by monotonic clocks: a step changes none of them."""
    clock = SteppedClock(tmp_path / "clock")
    with recorded(tmp_path / "cluster", variables=clock.variables) as (cluster, run):
        create_topic(cluster.bootstrap, "clock", 1, message_timestamp_type="LogAppendTime")
        run.work_until_accepted(200)
        run.during("clock stepped", lambda: clock.step_to(step_s), resumes_within_s=RESUMES_WITHIN_S)
        assert abs(clock_of_leader_s(cluster.bootstrap, "clock") - time.time() - step_s) < 60
        run.work_until_accepted(300)
        run.during("clock back", lambda: clock.step_to(0.0), resumes_within_s=RESUMES_WITHIN_S)
        run.finish()
