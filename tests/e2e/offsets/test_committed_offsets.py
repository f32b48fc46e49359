"""Committed offsets of real clients, on kshare and on Apache Kafka 4.3.1: plain ones, and those of transactions.

The consumers assign their partitions themselves, so their group has no members.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions as GroupPartitions
from confluent_kafka.admin import AdminClient

from support.clients.delivery import SETTINGS, System, new_group, new_topic, produce, running_system
from support.clients.delivery import Reader as ShareReader
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_clients import JavaClients, JavaError

TIMEOUT_S = 30.0
UNSTABLE_TIMEOUT_S = 1.0


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(request.param, tmp_path_factory.mktemp(request.param)) as running:
        wait_for_coordinator(running.bootstrap)
        yield running


def wait_for_coordinator(bootstrap: str) -> None:
    """Apache Kafka makes the topic of its committed offsets when they are first asked for."""
    reader = Reader(bootstrap, "first", new_topic(bootstrap))
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            assert reader.committed() == [None]
        except KafkaException as failure:
            assert failure.args[0].code() == KafkaError.NOT_COORDINATOR and time.monotonic() < deadline, failure
            continue
        reader.close()
        return


@pytest.fixture
def bootstrap(system: System) -> str:
    return system.bootstrap


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClients]:
    with JavaClients() as clients:
        yield clients


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


class Reader:
    """A Consumer that assigns its partitions itself, as soon as it takes records.

    One that only commits has none: librdkafka can wait for itself for ever where a consumer is closed while it still
    looks for its first offset.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int = 1, **settings: Any) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.places = [TopicPartition(topic, partition) for partition in range(partitions)]

    def take(self, count: int) -> list[str]:
        """The values of the next so many records; AssertionError where they do not come."""
        if not self.consumer.assignment():
            self.consumer.assign(self.places)
        found: list[str] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
            for message in self.consumer.consume(count - len(found), 0.5):
                assert message.error() is None, message.error()
                found.append((message.value() or b"").decode())
        return found

    def commit(self, offset: int, metadata: str = "", partition: int = 0) -> None:
        place = TopicPartition(self.places[0].topic, partition, offset, metadata=metadata)
        for result in self.consumer.commit(offsets=[place], asynchronous=False) or []:
            if result.error:
                raise KafkaException(result.error)

    def committed(self, timeout_s: float = TIMEOUT_S) -> list[int | None]:
        """The committed offset of each partition; None where there is none."""
        found = self.consumer.committed(self.places, timeout_s)
        for place in found:
            if place.error:
                raise KafkaException(place.error)
        return [None if place.offset == OFFSET_INVALID else place.offset for place in found]

    def close(self) -> None:
        self.consumer.close()


@pytest.fixture
def topic(bootstrap: str) -> str:
    return new_topic(bootstrap, 2)


def code_of(failure: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(failure.value.args[0].code())


# Plain commits


def test_another_consumer_goes_on_where_the_first_one_committed(bootstrap: str, topic: str, group: str) -> None:
    produce(bootstrap, topic, map(str, range(10)))
    first = Reader(bootstrap, group, topic)
    assert first.committed() == [None]
    assert first.take(4) == ["0", "1", "2", "3"]
    first.consumer.commit(asynchronous=False)
    assert first.committed() == [4]
    first.close()
    second = Reader(bootstrap, group, topic)
    assert second.committed() == [4]
    assert second.take(3) == ["4", "5", "6"]
    second.close()


def test_metadata_and_offsets_of_each_partition(bootstrap: str, topic: str, group: str) -> None:
    reader = Reader(bootstrap, group, topic, 2)
    reader.commit(5, "what I was doing", partition=1)
    assert reader.committed() == [None, 5]
    (_, found) = reader.consumer.committed(reader.places, TIMEOUT_S)
    assert found.metadata == "what I was doing"
    reader.commit(3, partition=1)
    assert reader.committed() == [None, 3]
    reader.close()


def test_groups_have_offsets_of_their_own(bootstrap: str, topic: str, group: str) -> None:
    one, other = Reader(bootstrap, group, topic), Reader(bootstrap, f"{group}-other", topic)
    one.commit(5)
    assert (one.committed(), other.committed()) == ([5], [None])
    one.close()
    other.close()


def test_metadata_that_is_too_long(bootstrap: str, topic: str, group: str) -> None:
    reader = Reader(bootstrap, group, topic)
    reader.commit(5, "x" * 4095)  # confluent-kafka adds a zero byte
    with pytest.raises(KafkaException) as failure:
        reader.commit(6, "x" * 4096)
    assert code_of(failure) == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert reader.committed() == [5]
    reader.close()


def test_a_share_group_commits_no_offsets(bootstrap: str, topic: str, java: JavaClients) -> None:
    group = new_group(bootstrap)
    produce(bootstrap, topic, ["one"])
    with ShareReader(bootstrap, group, topic) as member:
        member.accept(1)
        reader = Reader(bootstrap, group, topic)
        with pytest.raises(KafkaException) as failure:
            reader.commit(1)
        assert code_of(failure) == KafkaError.GROUP_ID_NOT_FOUND
        reader.close()
    assert java.committed_offsets(bootstrap, group) == {}


def test_a_group_with_committed_offsets_is_no_share_group(bootstrap: str, topic: str, java: JavaClients) -> None:
    group = new_group(bootstrap)
    reader = Reader(bootstrap, group, topic)
    reader.commit(1)
    reader.close()
    member = java.member(bootstrap, group, [topic])
    with pytest.raises(JavaError) as failure:
        member.take(10)
    assert failure.value.name == "GroupIdNotFoundException"
    member.close()


def test_the_admin_clients_see_the_offsets(bootstrap: str, topic: str, group: str, java: JavaClients) -> None:
    reader = Reader(bootstrap, group, topic, 2)
    reader.commit(5, partition=0)
    reader.commit(6, partition=1)
    reader.close()
    assert java.committed_offsets(bootstrap, group) == {f"{topic}-0": 5, f"{topic}-1": 6}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_group_offsets([GroupPartitions(group)])[group].result(TIMEOUT_S)
    assert {(place.partition, place.offset) for place in listed.topic_partitions} == {(0, 5), (1, 6)}
    altered = admin.alter_consumer_group_offsets([GroupPartitions(group, [TopicPartition(topic, 0, 2)])])
    assert altered[group].result(TIMEOUT_S).topic_partitions[0].error is None
    assert java.committed_offsets(bootstrap, group) == {f"{topic}-0": 2, f"{topic}-1": 6}


def test_offsets_of_a_deleted_topic_are_gone(system: System, group: str, java: JavaClients) -> None:
    bootstrap = system.bootstrap
    kept, gone = new_topic(bootstrap), new_topic(bootstrap)
    for topic in (kept, gone):
        reader = Reader(bootstrap, group, topic)
        reader.commit(1)
        reader.close()
    system.delete_topic(gone)
    deadline = time.monotonic() + TIMEOUT_S
    while java.committed_offsets(bootstrap, group) != {f"{kept}-0": 1}:
        assert time.monotonic() < deadline, "the offsets of the deleted topic are still there"
    new_topic(bootstrap, name=gone)
    assert java.committed_offsets(bootstrap, group) == {f"{kept}-0": 1}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("role", ["coordinator", "gateway"])
def test_committed_offsets_outlast_kill_nine(tmp_path: Path, role: str) -> None:
    with KshareCluster(tmp_path, SETTINGS) as cluster:
        wait_for_coordinator(cluster.bootstrap)
        topic = new_topic(cluster.bootstrap)
        reader = Reader(cluster.bootstrap, "group", topic)
        for offset in range(1, 31):
            if offset in (10, 20):
                cluster.wait_until_gone(cluster.kill_role(role))
            reader.commit(offset)
        assert reader.committed() == [30]
        reader.close()
        cluster.kill_everything()
        cluster.start()
        again = Reader(cluster.bootstrap, "group", topic)
        assert again.committed() == [30]
        again.close()


# Transactions


def transactional(bootstrap: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"producer-{uuid.uuid4().hex[:8]}",
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


@pytest.mark.parametrize(("committed", "expected"), [(True, 5), (False, 2)])
def test_offsets_in_a_transaction(bootstrap: str, topic: str, group: str, committed: bool, expected: int) -> None:
    """Open: unstable for those who read what is committed, the former offset for others."""
    stable = Reader(bootstrap, group, topic)
    hasty = Reader(bootstrap, group, topic, isolation_level="read_uncommitted")
    stable.commit(2)
    producer = transactional(bootstrap)
    producer.begin_transaction()
    producer.produce(topic, b"made of what was read", partition=1)
    places = [TopicPartition(topic, 0, 5)]
    producer.send_offsets_to_transaction(places, stable.consumer.consumer_group_metadata(), TIMEOUT_S)
    assert hasty.committed() == [2]
    with pytest.raises(KafkaException):
        stable.committed(UNSTABLE_TIMEOUT_S)
    if committed:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)
    assert stable.committed() == [expected]
    assert hasty.committed() == [expected]
    stable.close()
    hasty.close()


def test_a_fenced_producer_commits_no_offsets(bootstrap: str, topic: str, group: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": f"fenced-{group}", "log_level": 0}
    old, new = Producer(settings), Producer(settings)
    reader = Reader(bootstrap, group, topic)
    metadata = reader.consumer.consumer_group_metadata()
    old.init_transactions(TIMEOUT_S)
    old.begin_transaction()
    old.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], metadata, TIMEOUT_S)
    new.init_transactions(TIMEOUT_S)
    assert reader.committed() == [None]
    with pytest.raises(KafkaException) as failure:
        old.send_offsets_to_transaction([TopicPartition(topic, 0, 6)], metadata, TIMEOUT_S)
        old.commit_transaction(TIMEOUT_S)
    assert failure.value.args[0].fatal()
    new.begin_transaction()
    new.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], metadata, TIMEOUT_S)
    new.commit_transaction(TIMEOUT_S)
    assert reader.committed() == [7]
    reader.close()


def test_a_java_producer(bootstrap: str, topic: str, group: str, java: JavaClients) -> None:
    """KIP-890: the offsets are added to the transaction by TxnOffsetCommit itself, also where they begin it."""
    producer = java.producer(bootstrap, transactional_id=f"java-{group}")
    producer.transaction("init")
    expected: dict[str, int | None] = {}
    for offset, end in [(5, "commit"), (6, "abort"), (7, "commit"), (8, "abort")]:
        producer.transaction("begin")
        producer.send_offsets(group, {(topic, 0): offset, (topic, 1): offset + 10})
        producer.transaction(end)
        if end == "commit":
            expected = {f"{topic}-0": offset, f"{topic}-1": offset + 10}
        deadline = time.monotonic() + TIMEOUT_S
        while java.committed_offsets(bootstrap, group) != expected:
            assert time.monotonic() < deadline, java.committed_offsets(bootstrap, group)
    producer.close()


def test_a_share_groups_offsets_cannot_be_part_of_a_transaction(bootstrap: str, topic: str, java: JavaClients) -> None:
    group = new_group(bootstrap)
    produce(bootstrap, topic, ["one"])
    with ShareReader(bootstrap, group, topic) as member:
        member.accept(1)
        producer = java.producer(bootstrap, transactional_id=f"java-{group}")
        producer.transaction("init")
        producer.transaction("begin")
        with pytest.raises(JavaError) as failure:
            producer.send_offsets(group, {(topic, 0): 5})
            producer.transaction("commit")
        assert failure.value.name in ("KafkaException", "GroupIdNotFoundException")
        producer.close()
