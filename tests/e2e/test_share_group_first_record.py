"""Subscribe to first record with confluent-kafka: for a new group, and for a member that joins a running one.

Kafka makes both wait for their second heartbeat, five seconds. The figure is the median of ten; a client of its own is
made for each, as an application that starts does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.delivery import ONE_BY_ONE, RELEASE, Reader, new_group, new_topic, produce, running_system
from support.kshare_cluster import KshareCluster

TIMES = 10
LIMIT_S = 0.3
PARTITIONS = 4


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KshareCluster(tmp_path_factory.mktemp("kshare")) as cluster:
        yield cluster.bootstrap


def full_topic(bootstrap: str) -> str:
    """More records in each partition than the members of a test take, one in a batch: a batch goes to one member."""
    topic = new_topic(bootstrap, PARTITIONS)
    for partition in range(PARTITIONS):
        produce(bootstrap, topic, map(str, range(500)), partition, settings=ONE_BY_ONE)
    return topic


def first_record_s(bootstrap: str, group: str, topic: str, **settings: object) -> tuple[float, Reader]:
    began = time.monotonic()
    reader = Reader(bootstrap, group, topic, **settings)
    while not reader.poll(0.05):
        assert time.monotonic() - began < 30
    return time.monotonic() - began, reader


@pytest.mark.timeout(120)
def test_a_new_group(bootstrap: str) -> None:
    topic = full_topic(bootstrap)
    taken = []
    for _ in range(TIMES):
        seconds, reader = first_record_s(bootstrap, new_group(bootstrap), topic)
        taken.append(seconds)
        reader.settle(RELEASE)
        reader.close()
    assert statistics.median(taken) <= LIMIT_S, taken


@pytest.mark.timeout(120)
def test_a_member_that_joins_a_running_group(bootstrap: str) -> None:
    """Also where several join within share.assignment.interval.ms; the others keep what they have until it is over."""
    topic, group = full_topic(bootstrap), new_group(bootstrap)
    with ExitStack() as stack:
        _, running = first_record_s(bootstrap, group, topic, max_poll_records=10)
        stack.callback(running.close)
        running.settle()
        taken = []
        for _ in range(TIMES):
            seconds, reader = first_record_s(bootstrap, group, topic, max_poll_records=10)
            stack.callback(reader.close)
            taken.append(seconds)
            reader.settle()
    assert statistics.median(taken) <= LIMIT_S, taken


@pytest.mark.timeout(120)
def test_kafka_takes_its_second_heartbeat(tmp_path: Path) -> None:
    """So that the figures above mean something: the same measurement, once, of Kafka."""
    with running_system("kafka", tmp_path) as kafka:
        topic = full_topic(kafka.bootstrap)
        seconds, reader = first_record_s(kafka.bootstrap, new_group(kafka.bootstrap), topic)
        reader.close()
        assert seconds > 5 * LIMIT_S
