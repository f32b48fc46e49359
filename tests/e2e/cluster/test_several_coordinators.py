"""Several coordinators that share their metadata in a real etcd, under the load of real clients.

A coordinator is killed, stopped for a while, or cut off from etcd; share consumers and consumers of both protocols go
on, and nothing that was confirmed to anybody is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.partitions import describe_state_partitions
from support.clients.coordinator_clients import Clients
from support.clients.several_coordinator_load import Coordinators, several_coordinators, wait_until
from support.clusters.kshare_cluster import KshareCluster
from support.clusters.role_processes import RoleProcess, running
from support.environment.etcd import EtcdServer

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    folder = tmp_path / "etcd"
    folder.mkdir()
    server = EtcdServer(folder)
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.timeout(200)
def test_the_active_coordinator_is_killed_and_comes_back(tmp_path: Path, etcd: EtcdServer) -> None:
    with KshareCluster(tmp_path, {**SETTINGS, **several_coordinators(etcd.endpoint)}) as cluster:
        coordinators = Coordinators(cluster)
        wait_until(coordinators.all_are_owned, 20, "every group partition has an owner")
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            epochs = clients.epochs(coordinators)
            killed = coordinators.wait_for_active()
            pid, at = coordinators.pid(killed), time.monotonic()
            os.kill(pid, signal.SIGKILL)
            clients.wait_until_all_go_on(at)
            coordinators.wait_for_active()
            clients.join_new_groups()
            clients.assert_committed()
            coordinators.assert_not_split()
            wait_until(lambda: coordinators.owned(killed) != set(), 20, "the one that was killed has its share again")
            assert coordinators.pid(killed) != pid
            wait_until(coordinators.all_are_owned, 20, "every group partition has an owner")
            clients.wait_until_all_go_on(time.monotonic())
            assert clients.epochs(coordinators) == epochs, "nobody had to join again"
            clients.finish()
            clients.assert_committed()


@pytest.mark.timeout(200)
def test_a_coordinator_that_stood_still_owns_nothing_when_it_wakes(tmp_path: Path, etcd: EtcdServer) -> None:
    with KshareCluster(tmp_path, {**SETTINGS, **several_coordinators(etcd.endpoint)}) as cluster:
        coordinators = Coordinators(cluster)
        wait_until(coordinators.all_are_owned, 20, "every group partition has an owner")
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            paused = coordinators.wait_for_active()
            pid, at = coordinators.pid(paused), time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                (other,) = [address for address in coordinators.addresses() if address != paused]
                wait_until(lambda: coordinators.owned(other) == set(range(50)), 15, "the other one took all over")
                clients.wait_until_all_go_on(at + 5)
            finally:
                os.kill(pid, signal.SIGCONT)
            for _ in range(10):
                coordinators.assert_not_split()
            wait_until(lambda: coordinators.owned(paused) != set(), 20, "it has its share again")
            clients.finish()
            clients.assert_committed()


@pytest.mark.timeout(200)
def test_etcd_is_started_again(tmp_path: Path, etcd: EtcdServer) -> None:
    with KshareCluster(tmp_path, {**SETTINGS, **several_coordinators(etcd.endpoint)}) as cluster:
        coordinators = Coordinators(cluster)
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            at = time.monotonic()
            etcd.restart()
            clients.wait_until_all_go_on(at)
            coordinators.assert_not_split()
            clients.finish()
            clients.assert_committed()


@pytest.mark.timeout(200)
def test_no_coordinator_owns_a_partition_without_etcd_for_longer_than_the_lease(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    with KshareCluster(tmp_path, {**SETTINGS, **several_coordinators(etcd.endpoint)}) as cluster:
        coordinators = Coordinators(cluster)
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            etcd.pause()
            try:
                wait_until(lambda: not any(map(coordinators.owned, coordinators.addresses())), 15, "all leases ran out")
                assert coordinators.active() is None
            finally:
                etcd.resume()
            at = time.monotonic()
            for _ in range(5):
                coordinators.assert_not_split()
            clients.wait_until_all_go_on(at + 5)
            wait_until(coordinators.all_are_owned, 20, "every group partition has an owner")
            coordinators.assert_not_split()
            clients.finish()
            clients.assert_committed()


def state_partitions_by_node(folder: Path) -> dict[int, int]:
    """How many each share coordinator owns; those that move count for node -1."""
    counts: dict[int, int] = {}
    answer = describe_state_partitions(coordinator_address(None, folder / "data"))
    for owner in answer.state_partitions:
        node_id = -1 if owner.is_moving else owner.node_id
        counts[node_id] = counts.get(node_id, 0) + 1
    return counts


def drain(folder: Path, node_id: int) -> None:
    command = [str(Path(sys.executable).parent / "kshare"), "state", "drain", str(node_id), "--timeout-s", "40"]
    subprocess.run([*command, "--data-dir", str(folder / "data")], check=True, timeout=60)


@pytest.mark.timeout(200)
def test_share_coordinators_from_one_to_three_and_back_while_the_active_coordinator_dies(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    with KshareCluster(tmp_path, {**SETTINGS, **several_coordinators(etcd.endpoint)}) as cluster, ExitStack() as more:
        coordinators = Coordinators(cluster)
        addresses = ",".join(map(str, coordinators.addresses()))
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            nodes: list[RoleProcess] = [
                more.enter_context(
                    running(
                        "share_coordinator",
                        tmp_path / f"more-{node_id}",
                        coordinator_address=addresses,
                        node_id=node_id,  # type: ignore[arg-type]
                    )
                )
                for node_id in (2, 3)
            ]
            killed, at = coordinators.wait_for_active(), time.monotonic()
            os.kill(coordinators.pid(killed), signal.SIGKILL)
            clients.wait_until_all_go_on(at)
            coordinators.wait_for_active()
            wait_until(lambda: sorted(state_partitions_by_node(tmp_path)) == [1, 2, 3], 30, "each has state partitions")
            for node_id in (2, 3):
                drain(tmp_path, node_id)
            assert state_partitions_by_node(tmp_path) == {1: 50}
            for node in nodes:
                node.kill()
            clients.wait_until_all_go_on(time.monotonic())
            clients.finish()
            clients.assert_committed()


@pytest.mark.timeout(200)
def test_two_in_a_single_process(tmp_path: Path, etcd: EtcdServer) -> None:
    settings = {**SETTINGS, **several_coordinators(etcd.endpoint)}
    with KshareCluster(tmp_path, settings, single_process=True) as cluster:
        coordinators = Coordinators(cluster)
        wait_until(lambda: all(map(coordinators.owned, coordinators.addresses())), 20, "each has group partitions")
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            coordinators.assert_not_split()
            clients.finish()
            clients.assert_committed()
