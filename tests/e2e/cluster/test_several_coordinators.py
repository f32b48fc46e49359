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
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.partitions import describe_state_partitions
from support.clients.delivery import new_group, new_topic
from support.clients.several_coordinator_load import (
    Consuming,
    Coordinators,
    OrdinaryConsuming,
    Producing,
    ShareConsuming,
    several_coordinators,
    wait_until,
)
from support.clusters.kshare_cluster import KshareCluster
from support.clusters.role_processes import RoleProcess, running
from support.environment.etcd import EtcdServer
from support.environment.machine_stalls import MachineStalls

PARTITIONS = 4
GOES_ON_WITHIN_S = 10.0
PATIENCE_S = 40.0
"""How long a test waits at all, so that a machine that stood still can be told from kshare that did."""
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


class Clients(ExitStack):
    """A producer, and consumers of all kinds of one topic, each in a group of its own."""

    def __init__(self, cluster: KshareCluster) -> None:
        super().__init__()
        self.bootstrap = cluster.bootstrap
        self.stalls: MachineStalls = self.enter_context(MachineStalls())
        self.topic = new_topic(self.bootstrap, PARTITIONS)
        self.share_group = new_group(self.bootstrap)
        self.groups = {protocol: f"{protocol}-{uuid.uuid4().hex[:8]}" for protocol in ("classic", "consumer")}
        self.producing: Producing = self.enter_context(Producing(self.bootstrap, self.topic, PARTITIONS))
        self.share: ShareConsuming = self.enter_context(ShareConsuming(self.bootstrap, self.share_group, self.topic))
        self.ordinary: dict[str, OrdinaryConsuming] = {
            protocol: self.enter_context(OrdinaryConsuming(self.bootstrap, group, self.topic, protocol))
            for protocol, group in self.groups.items()
        }

    @property
    def all(self) -> list[Consuming]:
        return [self.share, *self.ordinary.values()]

    def wait_until_all_consume(self) -> None:
        wait_until(lambda: all(len(each.came) > 20 for each in self.all), 30, "every consumer has its first records")
        wait_until(
            lambda: all(set(each.committed) == set(range(PARTITIONS)) for each in self.ordinary.values()), 30, "commits"
        )

    def wait_until_all_go_on(self, since: float) -> None:
        """Every consumer gets a record that was produced after `since`."""
        number = len(self.producing.confirmed)
        self._wait_in_time(lambda: len(self.producing.confirmed) > number + 5, since, "records are produced")
        newest = self.producing.confirmed[-1]
        for each in self.all:
            self._wait_in_time(lambda each=each: newest in each.came, since, f"{each.name} goes on")  # type: ignore[misc]

    def _wait_in_time(self, condition: Callable[[], bool], since: float, what: str) -> None:
        wait_until(condition, PATIENCE_S, what)
        now = time.monotonic()
        took_s, credit_s = now - since, self.stalls.credit_s(since, now, GOES_ON_WITHIN_S)
        assert took_s <= GOES_ON_WITHIN_S + credit_s, f"{what}: {took_s:.1f} s, {credit_s:.1f} s of them the machine's"

    def join_new_groups(self) -> None:
        """Whoever comes now is served as well."""
        name = uuid.uuid4().hex[:8]
        newcomers = [
            OrdinaryConsuming(self.bootstrap, f"new-{name}-{protocol}", self.topic, protocol)
            for protocol in self.groups
        ]
        for each in [*newcomers, ShareConsuming(self.bootstrap, new_group(self.bootstrap), self.topic)]:
            with each:
                self._wait_in_time(lambda each=each: bool(each.came), time.monotonic(), f"{each.name} joins")  # type: ignore[misc]

    def finish(self) -> None:
        """Everything that was confirmed reached everybody, and no group went back behind what it had."""
        self.producing.finish()
        values = self.producing.confirmed
        assert len(values) > 20
        for each in self.all:
            each.wait_for(values)
        wait_until(lambda: set(self.share.accepted) >= set(values), 40, "the share consumer accepts everything")
        for each in self.all:
            each.finish()
        assert self.share.came_again == []
        for consumer in self.ordinary.values():
            assert consumer.went_back == []

    def assert_committed(self) -> None:
        """The offsets that the groups have are not before those whose commits were confirmed."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for protocol, group in self.groups.items():
            known = dict(self.ordinary[protocol].committed)
            wanted = ConsumerGroupTopicPartitions(group)
            found = admin.list_consumer_group_offsets([wanted], require_stable=True)[group].result(20)
            stored = {at.partition: at.offset for at in found.topic_partitions}
            assert all(stored[partition] >= offset for partition, offset in known.items()), (protocol, known, stored)

    def epochs(self, coordinators: Coordinators) -> list[tuple[int, int]]:
        """Of the share group and of the group of the consumer protocol."""
        groups = (("share", self.share_group), ("consumer", self.groups["consumer"]))
        return [coordinators.epochs(group, kind) for kind, group in groups]


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
