"""Sizes at which what a request or a group costs for each partition, member or group would show, with real clients.

2,000 partitions of a topic, 100 groups on a topic, and 300 members of a group, which is more than Kafka's default
allows. Each test takes seconds; one where the cost of a ShareFetch grows with the partitions does not end in time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer

from support.clients.administration import create_topic, read_from_earliest
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_programs import run_tool

TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
DEADLINE_S = 60
MEMBERS = 300
POLLERS = 4
CLOSED_AT_ONCE = 64


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), {"group.share.max.size": "1000"}) as running:
        yield running


def produce(bootstrap: str, topic: str, partitions: int, each: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for index in range(partitions * each):
        producer.produce(topic, str(index).encode(), partition=index % partitions)
        if index % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


class Received:
    """What share consumers got, which threads poll in turn."""

    def __init__(self, consumers: Sequence[ShareConsumer]) -> None:
        self.consumers = consumers
        self.values: Counter[bytes] = Counter()
        self.of_consumer: Counter[int] = Counter()
        self._lock = threading.Lock()

    def poll(self, number: int) -> None:
        """One round of one of POLLERS threads."""
        mine = range(number, len(self.consumers), POLLERS)
        for index in mine:
            for message in self.consumers[index].poll(0.2 if len(mine) == 1 else 0.002):
                assert message.error() is None
                value = message.value()
                assert value is not None
                with self._lock:
                    self.values[value] += 1
                    self.of_consumer[index] += 1


@contextmanager
def consuming(bootstrap: str, topic: str, groups: Sequence[str]) -> Iterator[tuple[Received, ThreadPoolExecutor]]:
    consumers = [ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 3}) for group in groups]
    with ThreadPoolExecutor(CLOSED_AT_ONCE) as pool:
        try:
            for consumer in consumers:
                consumer.subscribe([topic])
            yield Received(consumers), pool
        finally:
            list(pool.map(ShareConsumer.close, consumers))


def poll_until_received(received: Received, pool: ThreadPoolExecutor, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while received.values.total() < count:
        assert time.monotonic() < deadline, f"{received.values.total()} of {count} records in {DEADLINE_S} s"
        list(pool.map(received.poll, range(POLLERS)))


def test_two_thousand_partitions_are_drained_and_described(cluster: KshareCluster) -> None:
    create_topic(cluster.records_bootstrap, "wide", 2_000)
    read_from_earliest(cluster.bootstrap, "wide-group")
    produce(cluster.records_bootstrap, "wide", 2_000, 20)
    with consuming(cluster.bootstrap, "wide", ["wide-group"]) as (received, pool):
        poll_until_received(received, pool, 40_000)
        received.consumers[0].commit_sync()  # librdkafka does not acknowledge the last records by itself
        members = run_tool(cluster.bootstrap, TOOL, "--describe", "--group", "wide-group", "--members", "--verbose")
        assert "1999" in members, members[-300:]
    assert set(received.values.values()) == {1} and len(received.values) == 40_000
    offsets = run_tool(cluster.bootstrap, TOOL, "--describe", "--group", "wide-group", "--offsets")
    lines = [line.split() for line in offsets.splitlines() if line.startswith("wide-group")]
    assert sorted(int(line[2]) for line in lines) == list(range(2_000))
    assert {line[4] for line in lines} == {"0"}, [line for line in lines if line[4] != "0"][:3]


def test_a_hundred_groups_each_get_all_records_of_a_topic(cluster: KshareCluster) -> None:
    groups = [f"crowd-{number:03}" for number in range(100)]
    create_topic(cluster.records_bootstrap, "crowded", 3)
    for group in groups:
        read_from_earliest(cluster.bootstrap, group)
    produce(cluster.records_bootstrap, "crowded", 3, 100)
    with consuming(cluster.bootstrap, "crowded", groups) as (received, pool):
        poll_until_received(received, pool, 30_000)
    assert set(received.values.values()) == {100} and len(received.values) == 300
    assert set(received.of_consumer.values()) == {300} and len(received.of_consumer) == 100


def test_every_one_of_hundreds_of_members_gets_records(cluster: KshareCluster) -> None:
    create_topic(cluster.records_bootstrap, "shared", 30)
    read_from_earliest(cluster.bootstrap, "large-group")
    with consuming(cluster.bootstrap, "shared", ["large-group"] * MEMBERS) as (received, pool):
        deadline = time.monotonic() + DEADLINE_S
        while len(received.of_consumer) < MEMBERS:
            count = len(received.of_consumer)
            assert time.monotonic() < deadline, f"{count} of {MEMBERS} members had a record in {DEADLINE_S} s"
            produce(cluster.records_bootstrap, "shared", 30, 2)
            list(pool.map(received.poll, range(POLLERS)))


def test_a_session_that_finds_no_room_at_the_leader_begins_when_there_is(tmp_path: Path) -> None:
    settings = {"kshare.leader.max.share.partitions": "2"}
    with KshareCluster(tmp_path, settings) as full:
        create_topic(full.records_bootstrap, "narrow", 2)
        for group in ("first", "second"):
            read_from_earliest(full.bootstrap, group)
        produce(full.records_bootstrap, "narrow", 2, 5)
        with consuming(full.bootstrap, "narrow", ["first"]) as (received, pool):
            poll_until_received(received, pool, 10)
            with consuming(full.bootstrap, "narrow", ["second"]) as (refused, others):
                for _ in range(5):
                    list(others.map(refused.poll, range(POLLERS)))
                assert not refused.values
                list(pool.map(ShareConsumer.close, received.consumers))
                poll_until_received(refused, others, 10)
