"""Three coordinators that share their metadata in an existing Kafka 3.9.1, under the load of real clients.

The active one is killed, stopped for a while, or told to stop; the cluster stands still. Share consumers and
consumers of both protocols go on, and nothing that was confirmed to anybody is lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kshare.addresses import Address
from support.clients.coordinator_clients import Clients
from support.clients.several_coordinator_load import Coordinators, wait_until
from support.clusters.engines import is_attached
from support.clusters.kshare_cluster import KshareCluster
from support.environment.machine_stalls import MachineStalls
from support.kafka.existing_cluster import ExistingCluster

LEASE_S = 5.0
"""The default of kshare.coordinator.lease.ms."""
CLEAN_TAKEOVER_S = 3.0
ALL = set(range(50))


@pytest.fixture
def existing(tmp_path: Path) -> Iterator[ExistingCluster]:
    folder = tmp_path / "existing"
    folder.mkdir()
    with ExistingCluster(folder) as cluster:
        yield cluster


def kshare(folder: Path, existing: ExistingCluster, count: int = 3, *, single_process: bool = False) -> KshareCluster:
    """Attached to the cluster, or with its own logs and only the metadata there."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "kshare.coordinators": str(count),
        "kshare.metadata.store": "kafka",
        "kshare.upstream.bootstrap.servers": existing.bootstrap,
    }
    upstream = existing if is_attached() else None
    return KshareCluster(folder, settings, single_process=single_process, upstream=upstream)


def wait_for_another(coordinators: Coordinators, former: Address) -> float:
    """Until another one than the former answers for the catalog and all groups; how many seconds that took."""

    def is_taken_over() -> bool:
        active = coordinators.active()
        return active is not None and active != former and coordinators.owned(active) == ALL

    return wait_until(is_taken_over, 30, "another coordinator is active")


@pytest.mark.timeout(200)
def test_the_active_coordinator_is_killed_and_then_its_successor_is_stopped(
    tmp_path: Path, existing: ExistingCluster
) -> None:
    with kshare(tmp_path, existing) as cluster, MachineStalls() as stalls:
        coordinators = Coordinators(cluster)
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            epochs = clients.epochs(coordinators)
            killed, at = coordinators.wait_for_active(), time.monotonic()
            pid = coordinators.pid(killed)
            os.kill(pid, signal.SIGKILL)
            took_s = wait_for_another(coordinators, killed)
            bound_s = LEASE_S + 1
            assert took_s < bound_s + stalls.credit_s(at, time.monotonic(), bound_s)
            clients.wait_until_all_go_on(at)
            clients.join_new_groups()
            clients.assert_committed()
            coordinators.assert_not_split()
            stopped, at = coordinators.wait_for_active(), time.monotonic()
            os.kill(coordinators.pid(stopped), signal.SIGTERM)
            took_s = wait_for_another(coordinators, stopped)
            assert took_s < CLEAN_TAKEOVER_S + stalls.credit_s(at, time.monotonic(), CLEAN_TAKEOVER_S)
            clients.wait_until_all_go_on(at)
            assert clients.epochs(coordinators) == epochs, "nobody had to join again"
            clients.finish()
            clients.assert_committed()


@pytest.mark.timeout(200)
def test_an_active_coordinator_that_stood_still_owns_nothing_when_it_wakes(
    tmp_path: Path, existing: ExistingCluster
) -> None:
    with kshare(tmp_path, existing) as cluster:
        coordinators = Coordinators(cluster)
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            paused = coordinators.wait_for_active()
            pid, at = coordinators.pid(paused), time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                others = [address for address in coordinators.addresses() if address != paused]
                wait_until(lambda: any(coordinators.owned(each) == ALL for each in others), 15, "another one took over")
                clients.wait_until_all_go_on(at + LEASE_S)
            finally:
                os.kill(pid, signal.SIGCONT)
            for _ in range(10):
                coordinators.assert_not_split()
                assert coordinators.owned(paused) == set()
            clients.finish()
            clients.assert_committed()


@pytest.mark.timeout(200)
def test_the_existing_cluster_stands_still_for_longer_than_the_lease(tmp_path: Path, existing: ExistingCluster) -> None:
    """For shorter than the sessions of classic members: a member whose session passed must wait for its former self."""
    (broker,) = existing.brokers
    with kshare(tmp_path, existing) as cluster:
        coordinators = Coordinators(cluster)
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: not any(map(coordinators.owned, coordinators.addresses())), 15, "the lease ran out")
                assert coordinators.active() is None
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            wait_until(lambda: coordinators.active() is not None, 40, "one is active again")
            clients.wait_until_all_go_on(time.monotonic())
            coordinators.assert_not_split()
            clients.finish()
            clients.assert_committed()


@pytest.mark.timeout(200)
def test_two_in_a_single_process(tmp_path: Path, existing: ExistingCluster) -> None:
    with kshare(tmp_path, existing, 2, single_process=True) as cluster:
        coordinators = Coordinators(cluster)
        wait_until(coordinators.all_are_owned, 20, "every group partition has an owner")
        with Clients(cluster) as clients:
            clients.wait_until_all_consume()
            coordinators.assert_not_split()
            clients.finish()
            clients.assert_committed()
