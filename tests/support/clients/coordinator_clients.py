"""Clients of a `kshare up` with several coordinators, which go on while its coordinators fail."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from support.clients.delivery import new_group, new_topic
from support.clients.several_coordinator_load import (
    Consuming,
    Coordinators,
    OrdinaryConsuming,
    Producing,
    ShareConsuming,
    wait_until,
)
from support.clusters.engines import is_attached, protocols_of_groups
from support.clusters.kshare_cluster import KshareCluster
from support.environment.machine_stalls import MachineStalls

PARTITIONS = 4
GOES_ON_WITHIN_S = 10.0
PATIENCE_S = 40.0
"""How long a test waits at all, so that a machine that stood still can be told from kshare that did."""


class Clients(ExitStack):
    """A producer, and consumers of all kinds of one topic, each in a group of its own."""

    def __init__(self, cluster: KshareCluster) -> None:
        super().__init__()
        self.bootstrap, self.of_records = cluster.bootstrap, cluster.records_bootstrap
        self.stalls: MachineStalls = self.enter_context(MachineStalls())
        self.topic = new_topic(self.of_records, PARTITIONS)
        self.share_group = new_group(self.bootstrap)
        self.groups = {protocol: f"{protocol}-{uuid.uuid4().hex[:8]}" for protocol in protocols_of_groups()}
        self.producing: Producing = self.enter_context(Producing(self.of_records, self.topic, PARTITIONS))
        self.share: ShareConsuming = self.enter_context(ShareConsuming(self.bootstrap, self.share_group, self.topic))
        self.ordinary: dict[str, OrdinaryConsuming] = {
            protocol: self.enter_context(OrdinaryConsuming(self.of_records, group, self.topic, protocol))
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
            OrdinaryConsuming(self.of_records, f"new-{name}-{protocol}", self.topic, protocol)
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
        assert self.share.came_again == [], self.share.came_again
        for consumer in self.ordinary.values():
            assert consumer.went_back == [], consumer.went_back

    def assert_committed(self) -> None:
        """The offsets that the groups have are not before those whose commits were confirmed."""
        admin = AdminClient({"bootstrap.servers": self.of_records})
        for protocol, group in self.groups.items():
            known = dict(self.ordinary[protocol].committed)
            wanted = ConsumerGroupTopicPartitions(group)
            found = admin.list_consumer_group_offsets([wanted], require_stable=True)[group].result(20)
            stored = {at.partition: at.offset for at in found.topic_partitions}
            assert all(stored[partition] >= offset for partition, offset in known.items()), (protocol, known, stored)

    def epochs(self, coordinators: Coordinators) -> list[tuple[int, int]]:
        """Of the share group, and of the group of the consumer protocol if kshare's coordinators have it."""
        groups = {"share": self.share_group, **({} if is_attached() else self.groups)}
        return [coordinators.epochs(group, kind) for kind, group in groups.items() if kind != "classic"]
