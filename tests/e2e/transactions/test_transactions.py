"""Transactions end to end: transactional producers of confluent-kafka (which keeps its epoch) and of Java 4.3.1 (which
gets a new one with each transaction, KIP-890), read_committed consumers, Kafka's own tool, and killed roles."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.clients.administration import create_topic
from support.clients.delivery import wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_clients import JavaClients, JavaError, JavaRecord
from support.kafka.java_programs import run_tool

TIMEOUT_S = 30.0
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("transactions"), SETTINGS) as running:
        yield running


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, name, 3)
    return name


def new_id() -> str:
    return f"id-{uuid.uuid4().hex[:8]}"


def transactional(bootstrap: str, transactional_id: str, timeout_ms: int = 30_000) -> Producer:
    """A producer that is ready to begin."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def send(producer: Producer, topic: str, values: list[str]) -> None:
    """Round robin over three partitions; stored when this returns."""
    for index, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=index % 3)
    assert producer.flush(TIMEOUT_S) == 0


class Reader:
    """A consumer that was given all three partitions from their start."""

    def __init__(self, bootstrap: str, topic: str, isolation_level: str = "read_committed") -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "isolation.level": isolation_level,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self.consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])

    def take(self, wanted: int) -> list[str]:
        """So many values, sorted; AssertionError where they do not come."""
        found: list[str] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < wanted and time.monotonic() < deadline:
            message = self.consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append((message.value() or b"").decode())
        assert len(found) == wanted, found
        return sorted(found)

    def nothing_more(self, seconds: float = 1.0) -> bool:
        return self.consumer.poll(seconds) is None


def error_of(failure: pytest.ExceptionInfo[KafkaException]) -> KafkaError:
    found = failure.value.args[0]
    assert isinstance(found, KafkaError)
    return found


def test_committed_records_are_read_and_aborted_ones_are_not(bootstrap: str, topic: str) -> None:
    producer = transactional(bootstrap, new_id())
    reader, everything = Reader(bootstrap, topic), Reader(bootstrap, topic, "read_uncommitted")
    producer.begin_transaction()
    send(producer, topic, ["a", "b", "c", "d"])
    assert everything.take(4) == ["a", "b", "c", "d"]
    assert reader.nothing_more(), "the transaction is open"
    producer.commit_transaction(TIMEOUT_S)
    assert reader.take(4) == ["a", "b", "c", "d"]
    producer.begin_transaction()
    send(producer, topic, ["gone", "gone too"])
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, ["e"])
    producer.commit_transaction(TIMEOUT_S)
    assert reader.take(1) == ["e"] and reader.nothing_more()
    assert everything.take(3) == ["e", "gone", "gone too"]


def test_many_short_transactions(bootstrap: str, topic: str) -> None:
    producer = transactional(bootstrap, new_id())
    expected = []
    for number in range(60):
        producer.begin_transaction()
        send(producer, topic, [f"{number:02}-0", f"{number:02}-1"])
        if number % 3 == 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            expected += [f"{number:02}-0", f"{number:02}-1"]
    reader = Reader(bootstrap, topic)
    assert reader.take(len(expected)) == expected and reader.nothing_more()


def test_an_empty_transaction(bootstrap: str, topic: str) -> None:
    producer = transactional(bootstrap, new_id())
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, ["a"])
    producer.commit_transaction(TIMEOUT_S)
    assert Reader(bootstrap, topic).take(1) == ["a"]


def test_a_second_producer_with_the_same_transactional_id_fences_the_first(bootstrap: str, topic: str) -> None:
    transactional_id = new_id()
    first = transactional(bootstrap, transactional_id)
    first.begin_transaction()
    send(first, topic, ["of the first"])
    second = transactional(bootstrap, transactional_id)
    second.begin_transaction()
    send(second, topic, ["of the second"])
    with pytest.raises(KafkaException) as failure:
        first.commit_transaction(TIMEOUT_S)
    assert error_of(failure).fatal()
    assert error_of(failure).code() in (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
    second.commit_transaction(TIMEOUT_S)
    reader = Reader(bootstrap, topic)
    assert reader.take(1) == ["of the second"] and reader.nothing_more()


def test_a_transaction_that_is_open_too_long_is_aborted(bootstrap: str, topic: str) -> None:
    transactional_id = new_id()
    slow = transactional(bootstrap, transactional_id, timeout_ms=1_000)
    slow.begin_transaction()
    send(slow, topic, ["too slow"])
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for partition in range(3):
        plain.produce(topic, f"behind-{partition}".encode(), partition=partition)
    assert plain.flush(TIMEOUT_S) == 0
    reader = Reader(bootstrap, topic)
    assert reader.take(3) == ["behind-0", "behind-1", "behind-2"], "readable as soon as it is aborted"
    with pytest.raises(KafkaException) as failure:
        slow.commit_transaction(TIMEOUT_S)
    assert error_of(failure).fatal() or error_of(failure).txn_requires_abort()
    again = transactional(bootstrap, transactional_id)
    again.begin_transaction()
    send(again, topic, ["in time"])
    again.commit_transaction(TIMEOUT_S)
    assert reader.take(1) == ["in time"] and reader.nothing_more()


def test_offsets_are_committed_with_the_transaction(bootstrap: str, topic: str) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    producer = transactional(bootstrap, new_id())

    def committed() -> int:
        (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        return int(found.offset)

    for end, offset, expected in [
        (producer.commit_transaction, 7, 7),
        (producer.abort_transaction, 9, 7),
        (producer.commit_transaction, 11, 11),
    ]:
        producer.begin_transaction()
        send(producer, topic, ["made of what was read"])
        offsets = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        end(TIMEOUT_S)
        assert committed() == expected
    consumer.close()


def transactions_tool(bootstrap: str, *arguments: str) -> list[dict[str, str]]:
    """Rows of kafka-transactions.sh by the names of its columns."""
    printed = run_tool(bootstrap, "org.apache.kafka.tools.TransactionsCommand", *arguments)
    header, *rows = [line.split("\t") for line in printed.splitlines()]
    return [dict(zip(map(str.strip, header), map(str.strip, row), strict=True)) for row in rows]


@pytest.mark.timeout(240)
def test_a_java_producer_gets_a_new_epoch_with_each_transaction(bootstrap: str, topic: str) -> None:
    transactional_id = new_id()
    with JavaClients() as java:
        producer = java.producer(bootstrap, transactional_id=transactional_id, linger_ms=0)
        producer.transaction("init")
        for number in range(10):
            producer.transaction("begin")
            producer.send(topic, [JavaRecord(f"{number}".encode())], partition=number % 3)
            producer.transaction("abort" if number % 2 else "commit")

        def described() -> dict[str, str]:
            (row,) = transactions_tool(bootstrap, "describe", "--transactional-id", transactional_id)
            return row

        wait_for(lambda: described()["TransactionState"] == "CompleteAbort", "the last markers are written")
        assert described()["ProducerEpoch"] == "10"
        producer.transaction("begin")
        producer.send(topic, [JavaRecord(b"fenced")])
        listed = {row["TransactionalId"]: row for row in transactions_tool(bootstrap, "list")}
        assert listed[transactional_id]["TransactionState"] == "Ongoing"
        assert described()["TopicPartitions"] == f"{topic}-0"
        second = transactional(bootstrap, transactional_id)
        with pytest.raises(JavaError, match=r"ProducerFenced|InvalidProducerEpoch"):
            producer.transaction("commit")
        second.begin_transaction()
        send(second, topic, ["last"])
        second.commit_transaction(TIMEOUT_S)
    reader = Reader(bootstrap, topic)
    assert reader.take(6) == ["0", "2", "4", "6", "8", "last"] and reader.nothing_more()


@pytest.mark.parametrize("role", ["coordinator", "leader", "gateway"])
def test_transactions_survive_kill_nine(tmp_path_factory: pytest.TempPathFactory, role: str) -> None:
    """Whatever was told of a transaction's end is so; what was open goes on or is aborted, and nothing hangs."""
    with KshareCluster(tmp_path_factory.mktemp(f"kill-{role}"), SETTINGS) as cluster:
        topic = "orders"
        create_topic(cluster.bootstrap, topic, 3)
        producer = transactional(cluster.bootstrap, "t")
        expected: list[str] = []
        for number in range(12):
            if number in (3, 7):
                cluster.wait_until_gone(cluster.kill_role(role))
            try:
                producer.begin_transaction()
                send(producer, topic, [f"{number}-0", f"{number}-1", f"{number}-2"])
                if number == 5:
                    cluster.wait_until_gone(cluster.kill_role(role))
                producer.commit_transaction(TIMEOUT_S)
            except KafkaException as failure:
                error = failure.args[0]
                assert error.txn_requires_abort(), error
                producer.abort_transaction(TIMEOUT_S)
                continue
            expected += [f"{number}-0", f"{number}-1", f"{number}-2"]
        assert len(expected) >= 18
        reader = Reader(cluster.bootstrap, topic)
        assert reader.take(len(expected)) == sorted(expected) and reader.nothing_more()
