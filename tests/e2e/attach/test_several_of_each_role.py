"""Two of each role in front of Apache Kafka 3.9.1: what one of them served is served by the other when it stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from support.clients.administration import create_topic, read_from_earliest
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster

TIMEOUT_S = 60
PARTITIONS = 8
RECORDS_PER_S = 200
SETTINGS = {
    "kshare.leaders": "2",
    "kshare.share.coordinators": "2",
    "kshare.coordinators": "2",
    "share.coordinator.state.topic.num.partitions": "6",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path, SETTINGS, engine=TestEngine.KAFKA_SHARE) as started:
        create_topic(started.records_bootstrap, "orders", PARTITIONS)
        read_from_earliest(started.bootstrap, "billing")
        yield started


class Load:
    """A producer at a steady rate and a share consumer that accepts everything; a context manager."""

    def __init__(self, cluster: KshareCluster) -> None:
        self._cluster = cluster
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]
        self.produced = 0
        self.delivered: set[str] = set()
        self.accepted: set[str] = set()
        """Values whose acceptance was confirmed; it may be in doubt where a node was killed."""
        self.again: list[str] = []
        """Values that were delivered after their acceptance was confirmed."""
        self.longest_pause_s = 0.0
        """Between two polls that had records, since the first one."""

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def run_for(self, seconds: float) -> None:
        assert not self._is_over.wait(seconds)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._cluster.records_bootstrap})
        while not self._is_over.wait(1 / RECORDS_PER_S):
            producer.produce("orders", str(self.produced).encode(), partition=self.produced % PARTITIONS)
            producer.poll(0)
            self.produced += 1
        assert producer.flush(TIMEOUT_S) == 0

    def _consume(self) -> None:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "group.id": "billing",
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        consumer.subscribe(["orders"])
        got_at = None
        deadline = None
        while deadline is None or (len(self.delivered) < self.produced and time.monotonic() < deadline):
            polled: Any = consumer.poll(0.2)
            values = {message.partition(): [] for message in polled}  # type: dict[int, list[str]]
            for message in polled:
                value = message.value().decode()
                values[message.partition()].append(value)
                self.again += [value] if value in self.accepted else []
                self.delivered.add(value)
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            if polled and deadline is None:
                now = time.monotonic()
                self.longest_pause_s = max(self.longest_pause_s, now - (got_at or now))
                got_at = now
            for at, error in consumer.commit_sync(TIMEOUT_S).items():
                if error is None:
                    self.accepted.update(values.get(at.partition, []))
            if self._is_over.is_set() and deadline is None:
                deadline = time.monotonic() + TIMEOUT_S
        consumer.close()


@pytest.mark.parametrize("role", ["leader", "share_coordinator", "coordinator"])
def test_a_node_that_is_stopped_pauses_nobody_for_long(cluster: KshareCluster, role: str) -> None:
    with Load(cluster) as load:
        load.run_for(6)
        for _ in range(2):
            pid = cluster.role_pid(role)
            os.kill(pid, signal.SIGTERM)
            cluster.wait_until_gone(pid)
            load.run_for(6)
    assert load.produced > 1_000 and len(load.accepted) > 0.9 * load.produced
    assert load.delivered == {str(number) for number in range(load.produced)} and load.again == []
    assert load.longest_pause_s < 5, load.longest_pause_s


def test_a_leader_that_is_killed_is_replaced_by_the_other(cluster: KshareCluster) -> None:
    with Load(cluster) as load:
        load.run_for(5)
        cluster.kill_role("leader")
        load.run_for(15)
    assert load.delivered == {str(number) for number in range(load.produced)} and load.again == []
