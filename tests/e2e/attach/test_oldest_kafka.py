"""`kshare attach` in front of Apache Kafka 2.8.2 with ZooKeeper: no request there names a topic by its id.

It runs in the layout that `kshare attach` chooses by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from support.clients.administration import create_topic, read_from_earliest
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster, children_of
from support.kafka.java_clients import JavaClients
from support.kafka.oldest_cluster import OldestCluster

TIMEOUT_S = 60
TRANSACTIONS, EACH = 6, 20
COMMITTED = sorted(f"{number}-{index}" for number in range(0, TRANSACTIONS, 2) for index in range(EACH))


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldestCluster]:
    with OldestCluster(tmp_path_factory.mktemp("oldest") / "kafka") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[TestEngine.KAFKA_PROXY, TestEngine.KAFKA_SHARE])
def attached(
    request: pytest.FixtureRequest, oldest: OldestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KshareCluster]:
    folder: Path = tmp_path_factory.mktemp("attached")
    with KshareCluster(folder, engine=request.param, upstream=oldest, options=("--processes", "auto")) as kshare:
        yield kshare


def test_two_processors_have_one_process(attached: KshareCluster) -> None:
    is_one_process = len(os.sched_getaffinity(0)) <= 2
    assert len(children_of(attached.pid)) == (0 if is_one_process else 4)


def test_committed_records_reach_share_consumers_once(attached: KshareCluster) -> None:
    """Of librdkafka and Java, in one group; aborted records reach nobody."""
    topic = f"orders-{attached.port}"
    create_topic(attached.records_bootstrap, topic, 2)
    group = f"workers-{attached.port}"
    read_from_earliest(attached.bootstrap, group)
    read_committed(attached.bootstrap, group)
    produce_in_transactions(attached.records_bootstrap, topic)
    found: list[str] = []
    librdkafka = ShareConsumer({"bootstrap.servers": attached.bootstrap, "group.id": group})
    librdkafka.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    with JavaClients() as java, java.member(attached.bootstrap, group, [topic]) as member:
        while len(found) < len(COMMITTED):
            assert time.monotonic() < deadline, found
            records = member.poll()
            member.acknowledge(records)
            assert set(member.commit_sync().values()) <= {"ok"}
            found += [(record.value or b"").decode() for record in records]
            found += [(message.value() or b"").decode() for message in librdkafka.poll(0.2) if not message.error()]
        found += [(message.value() or b"").decode() for message in librdkafka.poll(1.0) if not message.error()]
    librdkafka.close()
    assert sorted(found) == COMMITTED


def test_an_ordinary_consumer_reads_them_too(attached: KshareCluster) -> None:
    topic = f"plain-{attached.port}"
    create_topic(attached.records_bootstrap, topic, 2)
    produce_in_transactions(attached.records_bootstrap, topic)
    settings = {"bootstrap.servers": attached.records_bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[str] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < len(COMMITTED):
        assert time.monotonic() < deadline, found
        found += [(message.value() or b"").decode() for message in consumer.consume(100, 0.5) if not message.error()]
    consumer.close()
    assert sorted(found) == COMMITTED


def read_committed(bootstrap: str, group: str) -> None:
    config = ConfigEntry("share.isolation.level", "read_committed", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[config])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def produce_in_transactions(bootstrap: str, topic: str) -> None:
    """Every other one is aborted, after all its records were stored.

    librdkafka may end one that the broker does not know yet (INVALID_TXN_STATE) where nothing was sent before.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for index in range(EACH):
            producer.produce(topic, f"{number}-{index}".encode(), partition=index % 2)
        assert producer.flush(TIMEOUT_S) == 0
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
