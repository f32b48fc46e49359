"""Share groups and transactions: confluent-kafka's transactional producer, on kshare and on Apache Kafka 4.3.1."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from support.clients.delivery import (
    RELEASE,
    TIMEOUT_S,
    Reader,
    System,
    counts_of,
    new_group,
    new_topic,
    produce,
    running_system,
    set_group,
    values_of,
)
from support.kafka.java_clients import JavaClients, JavaRecord

COMMITTED = {"isolation_level": "read_committed"}


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def bootstrap(system: System) -> str:
    return system.bootstrap


@pytest.fixture
def records_bootstrap(system: System) -> str:
    return system.records_bootstrap


class Transactions:
    """A transactional producer; everything goes to partition 0 unless said otherwise."""

    def __init__(self, bootstrap: str, transactional_id: str = "", *, timeout_ms: int = 60_000) -> None:
        self.transactional_id = transactional_id or f"transactional-{uuid.uuid4().hex[:8]}"
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": self.transactional_id,
                "linger.ms": 0,
                "log_level": 0,
                "transaction.timeout.ms": timeout_ms,
            }
        )
        self.producer.init_transactions(TIMEOUT_S)

    def begin(self, topic: str, values: list[str], partition: int = 0) -> None:
        """Begins a transaction whose first records are these, stored when this returns."""
        self.producer.begin_transaction()
        self.add(topic, values, partition)

    def add(self, topic: str, values: list[str], partition: int = 0) -> None:
        for value in values:
            self.producer.produce(topic, value.encode(), partition=partition)
        assert self.producer.flush(TIMEOUT_S) == 0

    def commit(self) -> None:
        self.producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self.producer.abort_transaction(TIMEOUT_S)


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}-{index}" for index in range(count)]


def test_only_committed_records_are_delivered(bootstrap: str, records_bootstrap: str) -> None:
    topic, committed, all_of_them = (
        new_topic(records_bootstrap),
        new_group(bootstrap, **COMMITTED),
        new_group(bootstrap),
    )
    transactions = Transactions(records_bootstrap)
    for name, end in (("one", transactions.commit), ("two", transactions.abort), ("three", transactions.commit)):
        transactions.begin(topic, numbered(name, 5))
        end()
    produce(records_bootstrap, topic, ["plain"])
    with Reader(bootstrap, committed, topic) as reader:
        assert values_of(reader.accept(11)) == [*numbered("one", 5), *numbered("three", 5), "plain"]
        transactions.begin(topic, ["last"])
        transactions.commit()
        assert values_of(reader.accept(1)) == ["last"]
    with Reader(bootstrap, all_of_them, topic) as reader:
        everything = [*numbered("one", 5), *numbered("two", 5), *numbered("three", 5), "plain", "last"]
        assert values_of(reader.accept(17)) == everything


def test_an_open_transaction_holds_what_comes_behind_it(bootstrap: str, records_bootstrap: str) -> None:
    topic, committed, all_of_them = (
        new_topic(records_bootstrap),
        new_group(bootstrap, **COMMITTED),
        new_group(bootstrap),
    )
    transactions = Transactions(records_bootstrap)
    produce(records_bootstrap, topic, ["before"])
    transactions.begin(topic, ["inside"])
    produce(records_bootstrap, topic, ["behind"])
    with Reader(bootstrap, committed, topic) as reader, Reader(bootstrap, all_of_them, topic) as everybody:
        assert values_of(everybody.accept(3)) == ["before", "inside", "behind"]
        assert values_of(reader.accept(1)) == ["before"]
        assert reader.poll(0.5) == []
        transactions.add(topic, ["inside too"])
        transactions.commit()
        assert values_of(reader.accept(3)) == ["inside", "behind", "inside too"]


def test_transactions_of_several_producers_interleave(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap, 2), new_group(bootstrap, **COMMITTED)
    producers = [Transactions(records_bootstrap) for _ in range(4)]
    expected: list[str] = []
    for step in range(6):
        for index, transactions in enumerate(producers):
            transactions.begin(topic, [f"{step}-{index}"], partition=step % 2)
        for index, transactions in enumerate(producers):
            transactions.add(topic, [f"{step}-{index}-again"], partition=index % 2)
            if (step + index) % 2:
                transactions.abort()
            else:
                transactions.commit()
                expected += [f"{step}-{index}", f"{step}-{index}-again"]
    with Reader(bootstrap, group, topic) as reader:
        found = reader.accept(len(expected))
        assert sorted(values_of(found)) == sorted(expected)
        assert dict.fromkeys(counts_of(found)) == {1: None}
        produce(records_bootstrap, topic, ["last"], 0)
        produce(records_bootstrap, topic, ["last"], 1)
        assert values_of(reader.accept(2)) == ["last"] * 2


@pytest.mark.parametrize("system", ["kshare"], indirect=True)  # Apache Kafka delivers nothing here, for 30 s at least
def test_more_aborted_records_than_may_be_in_flight(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, partition_max_record_locks="100", **COMMITTED)
    transactions = Transactions(records_bootstrap)
    for _ in range(3):
        transactions.begin(topic, numbered("aborted", 400))
        transactions.abort()
    transactions.begin(topic, ["committed"])
    transactions.commit()
    with Reader(bootstrap, group, topic) as reader:
        assert values_of(reader.take()) == ["committed"]
        reader.settle(RELEASE)
        assert (values_of(reader.take()), counts_of(reader.held)) == (["committed"], [2])
        reader.settle()


def test_a_new_producer_of_the_same_id_fences_the_old_one(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, **COMMITTED)
    old = Transactions(records_bootstrap)
    old.begin(topic, ["of the old one"])
    new = Transactions(records_bootstrap, old.transactional_id)
    with pytest.raises(KafkaException) as error:
        old.commit()
    assert error.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    new.begin(topic, ["of the new one"])
    new.commit()
    with Reader(bootstrap, group, topic) as reader:
        assert values_of(reader.accept(1)) == ["of the new one"]


def test_a_transaction_that_takes_too_long_is_aborted(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, **COMMITTED)
    transactions = Transactions(records_bootstrap, timeout_ms=1000)
    begun_at = time.monotonic()
    transactions.begin(topic, ["forgotten"])
    produce(records_bootstrap, topic, ["behind"])
    with Reader(bootstrap, group, topic) as reader:
        assert values_of(reader.accept(1)) == ["behind"]
        assert time.monotonic() - begun_at >= 1.0
    with pytest.raises(KafkaException):
        transactions.commit()


def test_the_isolation_level_changes_at_runtime(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, **COMMITTED)
    transactions = Transactions(records_bootstrap)
    produce(records_bootstrap, topic, ["first"])
    transactions.begin(topic, ["inside"])
    with Reader(bootstrap, group, topic) as reader:
        assert values_of(reader.accept(1)) == ["first"]
        assert reader.poll(0.5) == []
        set_group(bootstrap, group, isolation_level="read_uncommitted")
        assert values_of(reader.accept(1)) == ["inside"]
    transactions.abort()


def test_a_java_producers_transactions(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, **COMMITTED)
    with JavaClients() as java:
        producer = java.producer(records_bootstrap, transactional_id=uuid.uuid4().hex, linger_ms=0)
        producer.transaction("init")
        for name, end in (("aborted", "abort"), ("committed", "commit")):
            producer.transaction("begin")
            producer.send(topic, [JavaRecord(value.encode()) for value in numbered(name, 3)])
            producer.transaction(end)
        producer.close()
        found = java.consume(records_bootstrap, topic, 3, isolation_level="read_committed")
        assert [(record.value or b"").decode() for record in found] == numbered("committed", 3)
    with Reader(bootstrap, group, topic) as reader:
        assert values_of(reader.accept(3)) == numbered("committed", 3)
