"""Mode proxy: everything of an Apache Kafka 3.9.1 cluster through kshare's address, by unchanged clients and tools."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kshare_core.errors import ErrorCode
from support.clients.administration import read_from_earliest
from support.clients.raw_kafka import produce_raw
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.kafka.existing_cluster import ExistingCluster
from support.kafka.java_clients import JavaClients, JavaRecord
from support.kafka.tools import ToolRuns
from support.wire.raw_batches import plain_batch, record

RECORDS = 2_000
DEADLINE_S = 60


def proxy(folder: Path, kafka: ExistingCluster) -> KshareCluster:
    settings = {
        "kshare.engine": "kafka",
        "kshare.metadata.store": "kafka",
        "kshare.upstream.mode": "proxy",
        "kshare.upstream.bootstrap.servers": kafka.bootstrap,
    }
    return KshareCluster(folder, settings, single_process=True, engine=TestEngine.EMBEDDED)


@pytest.fixture(scope="module", params=[1, 3], ids=["one broker", "three brokers"])
def clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, int]]:
    """kshare's address, the cluster's, and the number of its brokers."""
    folder, brokers = tmp_path_factory.mktemp("proxy"), request.param
    with (
        ExistingCluster(folder / "kafka", brokers=brokers) as kafka,
        proxy(folder / "kshare", kafka) as kshare,
    ):
        yield kshare.bootstrap, kafka.bootstrap, brokers


def create(bootstrap: str, name: str, partitions: int, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(DEADLINE_S)


def produce(bootstrap: str, topic: str, values: list[bytes], *, partitions: int = 0, **settings: object) -> None:
    """To `partitions` in turn, else as librdkafka chooses, which may leave partitions without records."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number, value in enumerate(values):
        partition = number % partitions if partitions else -1
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(DEADLINE_S) == 0 and not failures, failures[:3]


def warm_up(bootstrap: str, topic: str, partitions: int) -> None:
    """A record in each partition, so that every leader knows that it is one: what it refuses with acks=0 is lost."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(partitions):
        producer.produce(topic, b"first", partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def consume(bootstrap: str, topic: str, count: int, group: str, **settings: object) -> list[bytes]:
    """The values in the order of their arrival; they are committed."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **settings}
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(values) < count:
            assert time.monotonic() < deadline, f"{len(values)} of {count} records within {DEADLINE_S} s"
            for message in consumer.consume(1_000, timeout=0.2):
                assert message.error() is None, message.error()
                values.append(message.value() or b"")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def test_brokers_keep_their_ids_and_have_addresses_here(clusters: tuple[str, str, int]) -> None:
    kshare, kafka, brokers = clusters
    here = AdminClient({"bootstrap.servers": kshare}).list_topics(timeout=DEADLINE_S)
    there = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=DEADLINE_S)
    assert here.brokers.keys() == there.brokers.keys() == set(range(1, brokers + 1))
    assert here.cluster_id == there.cluster_id and here.topics.keys() == there.topics.keys()
    addresses = {(broker.host, broker.port) for broker in here.brokers.values()}
    assert len(addresses) == brokers
    assert not addresses & {(broker.host, broker.port) for broker in there.brokers.values()}


def test_commands_find_the_roles_through_the_proxy(clusters: tuple[str, str, int]) -> None:
    command = [str(COMMAND), "nodes", "--json", "--bootstrap", clusters[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    roles = {node["role"] for node in json.loads(done.stdout)["nodes"]}
    assert roles == {"coordinator", "gateway", "leader", "share-coordinator"}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_of_a_producer_reach_a_consumer_group(clusters: tuple[str, str, int], acks: str) -> None:
    kshare, kafka, brokers = clusters
    topic, group = f"records-{acks}", f"readers-{acks}"
    create(kshare, topic, 6, brokers)
    warm_up(kshare, topic, 6)
    values = [b"%d" % number for number in range(RECORDS)]
    produce(kshare, topic, values, acks=acks, **{"linger.ms": 5})
    found = consume(kshare, topic, RECORDS + 6, group)
    assert sorted(found) == sorted([*values, *[b"first"] * 6])
    committed = Consumer({"bootstrap.servers": kafka, "group.id": group})
    offsets = committed.committed([TopicPartition(topic, partition) for partition in range(6)], timeout=DEADLINE_S)
    committed.close()
    assert sum(max(0, each.offset) for each in offsets) == RECORDS + 6, "the cluster itself has the group's offsets"


def test_long_records_pass_in_both_directions(clusters: tuple[str, str, int]) -> None:
    kshare, _, brokers = clusters
    create(kshare, "long", 1, brokers)
    values = [bytes([number]) * 900_000 for number in range(12)]
    produce(kshare, "long", values, **{"enable.idempotence": True})
    assert consume(kshare, "long", 12, "readers-long") == values


def test_transactions(clusters: tuple[str, str, int]) -> None:
    kshare, _, brokers = clusters
    create(kshare, "ledger", 3, brokers)
    producer = Producer({"bootstrap.servers": kshare, "transactional.id": "ledger-writer"})
    producer.init_transactions(DEADLINE_S)
    for text, commits in (("kept", True), ("given up", False), ("kept, too", True)):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("ledger", text.encode(), partition=partition)
        assert producer.flush(DEADLINE_S) == 0  # so that there is something to abort
        producer.commit_transaction(DEADLINE_S) if commits else producer.abort_transaction(DEADLINE_S)
    found = consume(kshare, "ledger", 6, "auditors", **{"isolation.level": "read_committed"})
    assert sorted(found) == [b"kept"] * 3 + [b"kept, too"] * 3
    fenced = Producer({"bootstrap.servers": kshare, "transactional.id": "ledger-writer"})
    fenced.init_transactions(DEADLINE_S)
    with pytest.raises(KafkaException):
        producer.begin_transaction()
        producer.produce("ledger", b"from a zombie")
        producer.commit_transaction(DEADLINE_S)


def test_a_java_producer_and_the_tools_of_kafka(clusters: tuple[str, str, int]) -> None:
    kshare, _, brokers = clusters
    tools = ToolRuns(kshare)
    try:
        tools.text(
            "kafka-topics", "--create", "--topic", "tools", "--partitions", "2", "--replication-factor", str(brokers)
        )
        with JavaClients() as java:
            producer = java.producer(kshare)
            for partition in range(2):
                producer.send("tools", [JavaRecord(b"%d" % number) for number in range(5)], partition)
        described = tools.text("kafka-topics", "--describe", "--topic", "tools")
        assert "PartitionCount: 2" in described and f"ReplicationFactor: {brokers}" in described
        alter = ("--entity-type", "topics", "--entity-name", "tools", "--alter", "--add-config")
        tools.text("kafka-configs", *alter, "retention.ms=3600000")
        configs = tools.text("kafka-configs", "--entity-type", "topics", "--entity-name", "tools", "--describe")
        assert "retention.ms=3600000" in configs
        assert "tools:0:5" in tools.text("kafka-get-offsets", "--topic", "tools")
        consume(kshare, "tools", 10, "tool-readers")
        groups = tools.text("kafka-consumer-groups", "--list").split()
        assert groups.count("tool-readers") == 1
        offsets = tools.text("kafka-consumer-groups", "--describe", "--group", "tool-readers")
        assert [row.split()[1:6] for row in offsets.splitlines() if row.startswith("tool-readers")] == [
            ["tools", "0", "5", "5", "0"],
            ["tools", "1", "5", "5", "0"],
        ]
        tools.text("kafka-consumer-groups", "--delete", "--group", "tool-readers")
        assert "tool-readers" not in tools.text("kafka-consumer-groups", "--list").split()
        versions = tools.text("kafka-broker-api-versions")
        assert versions.count("(id: ") == brokers and "ShareFetch(78): 1 to 2" in versions
        assert "__kshare_state" in tools.text("kafka-topics", "--list").split()
        assert "__kshare" not in tools.text("kafka-topics", "--list", "--exclude-internal")
        tools.text("kafka-topics", "--delete", "--topic", "tools")
        assert "tools" not in tools.text("kafka-topics", "--list").split()
    finally:
        tools.close()


def test_share_consumers_of_java_and_librdkafka_and_their_tools(clusters: tuple[str, str, int]) -> None:
    kshare, _, brokers = clusters
    create(kshare, "orders", 6, brokers)
    read_from_earliest(kshare, "workers")
    values = [b"%d" % number for number in range(RECORDS)]
    produce(kshare, "orders", values, partitions=6)  # one without records has no start offset, as with Kafka
    librdkafka = ShareConsumer({"bootstrap.servers": kshare, "group.id": "workers"})
    librdkafka.subscribe(["orders"])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    tools = ToolRuns(kshare)
    try:
        with JavaClients() as java, java.member(kshare, "workers", ["orders"]) as member:
            while len(found) < RECORDS:
                assert time.monotonic() < deadline, len(found)
                records = member.poll()
                member.acknowledge(records)
                assert set(member.commit_sync().values()) <= {"ok"}
                polled: Any = librdkafka.poll(0.1)
                found += [record.value or b"" for record in records]
                found += [message.value() for message in polled if message.error() is None]
            assert all(error is None for error in librdkafka.commit_sync(DEADLINE_S).values())
        librdkafka.close()
        assert sorted(found) == sorted(values), "each record is delivered once"
        assert tools.text("kafka-share-groups", "--list").split().count("workers") == 1
        assert tools.text("kafka-groups", "--list").count("workers") == 1
        described = tools.text("kafka-share-groups", "--describe", "--group", "workers")
        rows = [row.split() for row in described.splitlines() if row.startswith("workers")]
        assert sorted(int(row[2]) for row in rows) == list(range(6)), described
        assert sum(int(row[3]) for row in rows) == RECORDS, "the start offsets are behind all records"
        tools.text("kafka-share-groups", "--delete", "--group", "workers")
        assert "workers" not in tools.text("kafka-share-groups", "--list").split()
    finally:
        tools.close()


def test_records_beside_a_batch_that_no_consumer_can_read_are_delivered(clusters: tuple[str, str, int]) -> None:
    """Kafka stores wrong lengths of compressed records; a share consumer would drop all that it acquired with them."""
    kshare, kafka, _ = clusters
    create(kafka, "malformed", 1, 1)
    read_from_earliest(kshare, "readers")
    malformed = plain_batch(
        record(0, length_added=1000) + record(1), count=2, codec="lz4", first_timestamp_ms=time.time_ns() // 1_000_000
    )
    leader = Consumer({"bootstrap.servers": kshare, "group.id": "unused"}).list_topics("malformed", DEADLINE_S)
    address = leader.brokers[leader.topics["malformed"].partitions[0].leader]
    with socket.create_connection((address.host, address.port), DEADLINE_S) as connection:
        assert produce_raw(connection, "malformed", malformed) == ErrorCode.NONE
    values = [b"%d" % number for number in range(100)]
    produce(kshare, "malformed", values)
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    with ShareConsumer({"bootstrap.servers": kshare, "group.id": "readers"}) as consumer:
        consumer.subscribe(["malformed"])
        while len(found) < 100 and time.monotonic() < deadline:
            found += [message.value() or b"" for message in consumer.poll(1.0) if message.error() is None]
    assert sorted(found) == sorted(values)


def test_a_broker_is_stopped_and_comes_back(tmp_path: Path) -> None:
    with (
        ExistingCluster(tmp_path / "kafka", brokers=3) as kafka,
        proxy(tmp_path / "kshare", kafka) as kshare,
    ):
        create(kshare.bootstrap, "steady", 6, 3)
        before = AdminClient({"bootstrap.servers": kshare.bootstrap}).list_topics(timeout=DEADLINE_S).brokers
        kafka.brokers[2].stop()
        values = [b"%d" % number for number in range(RECORDS)]
        produce(kshare.bootstrap, "steady", values, acks="all")
        kafka.brokers[2].launch()
        assert sorted(consume(kshare.bootstrap, "steady", RECORDS, "steady-readers")) == sorted(values)
        after = AdminClient({"bootstrap.servers": kshare.bootstrap}).list_topics(timeout=DEADLINE_S).brokers
        assert {node_id: after[node_id].port for node_id in (1, 2)} == {
            node_id: before[node_id].port for node_id in (1, 2)
        }
