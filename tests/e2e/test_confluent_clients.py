"""confluent-kafka's clients, unmodified, against the four processes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import wait_for
from support.clients.state_of_group import start_offsets
from support.clusters.kshare_cluster import KshareCluster

TIMEOUT_S = 30


@pytest.fixture
def topic(records_bootstrap: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(records_bootstrap, name, 3)
    return name


@pytest.fixture
def group(bootstrap: str) -> str:
    name = f"group-{uuid.uuid4().hex[:8]}"
    read_from_earliest(bootstrap, name)
    return name


def produce(records_bootstrap: str, topic: str, values: list[str], **settings: Any) -> list[tuple[int, int]]:
    """(partition, offset) of each value, round robin over three partitions."""
    placed: dict[int, tuple[int, int]] = {}
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": records_bootstrap, **settings})

    def confirm(index: int) -> Callable[[Any, Any], None]:
        def confirmed(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                placed[index] = (message.partition(), message.offset())

        return confirmed

    for index, value in enumerate(values):
        producer.produce(
            topic,
            value.encode(),
            key=f"key-{index}".encode(),
            headers={"n": str(index).encode()},
            partition=index % 3,
            on_delivery=confirm(index),
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors
    return [placed[index] for index in range(len(values))]


def poll_values(consumer: Any, wanted: int) -> list[Any]:
    """Polled messages until `wanted` came; AssertionError after a while."""
    found: list[Any] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < wanted:
        assert time.monotonic() < deadline, f"only {len(found)} of {wanted} records came"
        messages = consumer.poll(0.5)
        for message in messages:
            assert message.error() is None, message.error()
            found.append(message)
    return found


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_produced_records_come_back_from_an_assigned_consumer(
    records_bootstrap: str, topic: str, compression: str, idempotent: bool
) -> None:
    values = [f"value-{index}-{'z' * 200}" for index in range(60)]
    placed = produce(
        records_bootstrap, topic, values, **{"compression.type": compression, "enable.idempotence": idempotent}
    )
    for partition in range(3):
        offsets = [offset for at, offset in placed if at == partition]
        assert offsets == list(range(20))
    consumer = Consumer({"bootstrap.servers": records_bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    found: dict[tuple[int, int], Any] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < len(values) and time.monotonic() < deadline:
        message: Any = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            found[message.partition(), message.offset()] = message
    watermarks = [consumer.get_watermark_offsets(TopicPartition(topic, p), TIMEOUT_S) for p in range(3)]
    consumer.close()
    assert [found[at].value().decode() for at in placed] == values
    assert [found[at].key().decode() for at in placed] == [f"key-{index}" for index in range(60)]
    assert found[placed[7]].headers() == [("n", b"7")]
    assert watermarks == [(0, 20)] * 3


def test_offsets_by_time(records_bootstrap: str, topic: str) -> None:
    produce(records_bootstrap, topic, ["early"] * 3)
    time_ms = int(time.time() * 1000) + 5
    while int(time.time() * 1000) <= time_ms:
        pass
    produce(records_bootstrap, topic, ["late"] * 3)
    consumer = Consumer({"bootstrap.servers": records_bootstrap, "group.id": "unused"})
    found = consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], TIMEOUT_S)
    consumer.close()
    assert [(item.partition, item.offset) for item in found] == [(0, 1)]


def test_implicit_mode_accepts_what_was_polled(bootstrap: str, records_bootstrap: str, topic: str, group: str) -> None:
    values = [f"value-{index}" for index in range(90)]
    produce(records_bootstrap, topic, values)
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        first = poll_values(consumer, 90)
        assert sorted(message.value().decode() for message in first) == sorted(values)
        assert {message.delivery_count() for message in first} == {1}
        results = consumer.commit_sync(TIMEOUT_S)
        assert all(error is None for error in results.values())
    produce(records_bootstrap, topic, ["last"] * 3)
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        assert [message.value() for message in poll_values(consumer, 3)] == [b"last"] * 3


def test_explicit_mode_accepts_releases_and_rejects(
    bootstrap: str, records_bootstrap: str, topic: str, group: str
) -> None:
    produce(records_bootstrap, topic, [f"{kind}-{n}" for n in range(10) for kind in ("accept", "release", "reject")])
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    deliveries: dict[str, list[int]] = {}
    types = {
        "accept": AcknowledgeType.ACCEPT,
        "release": AcknowledgeType.RELEASE,
        "reject": AcknowledgeType.REJECT,
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while sum(len(counts) for counts in deliveries.values()) < 30 + 10 * 4:
            assert time.monotonic() < deadline, deliveries
            polled: Any = consumer.poll(0.5)
            for message in polled:
                value = message.value().decode()
                deliveries.setdefault(value, []).append(message.delivery_count())
                consumer.acknowledge(message, types[value.split("-")[0]])
            assert all(error is None for error in consumer.commit_sync(TIMEOUT_S).values())
        assert list(consumer.poll(1.0)) == []
    assert {value: counts for value, counts in deliveries.items() if not value.startswith("release")} == {
        f"{kind}-{n}": [1] for n in range(10) for kind in ("accept", "reject")
    }
    # group.share.delivery.count.limit is 5
    assert all(deliveries[f"release-{n}"] == [1, 2, 3, 4, 5] for n in range(10))


def test_records_of_a_closed_consumer_go_to_another(
    bootstrap: str, records_bootstrap: str, topic: str, group: str
) -> None:
    produce(records_bootstrap, topic, ["held"])
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    first = ShareConsumer(settings)
    first.subscribe([topic])
    assert len(poll_values(first, 1)) == 1
    first.close()
    with ShareConsumer(settings) as second:
        second.subscribe([topic])
        assert [message.delivery_count() for message in poll_values(second, 1)] == [2]


def wait_until_started(cluster: KshareCluster, consumer: ShareConsumer, group: str, topic: str) -> None:
    """Polls, without getting anything, until the group has its place in all three partitions."""

    def has_started() -> bool:
        assert list(consumer.poll(0.25)) == []
        return min(start_offsets(cluster, group, topic, 3)) >= 0

    wait_for(has_started, f"{group} has its start offsets")


def test_a_group_without_configs_starts_at_the_latest_offset(
    cluster: KshareCluster, bootstrap: str, records_bootstrap: str, topic: str
) -> None:
    produce(records_bootstrap, topic, ["old"] * 3)
    group = f"latest-{uuid.uuid4().hex[:8]}"
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        wait_until_started(cluster, consumer, group, topic)
        produce(records_bootstrap, topic, ["new"] * 3)
        assert {message.value() for message in poll_values(consumer, 3)} == {b"new"}


def test_records_of_new_partitions_are_not_lost(
    cluster: KshareCluster, bootstrap: str, records_bootstrap: str, topic: str
) -> None:
    """KAFKA-20742: the group starts at latest, but partitions that its topic gets later start at 0."""
    group = f"grows-{uuid.uuid4().hex[:8]}"
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        wait_until_started(cluster, consumer, group, topic)
        admin = AdminClient({"bootstrap.servers": records_bootstrap})
        admin.create_partitions([NewPartitions(topic, 5)])[topic].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": records_bootstrap})
        for partition in (3, 4):
            producer.produce(topic, f"early-{partition}".encode(), partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        assert {message.value() for message in poll_values(consumer, 2)} == {b"early-3", b"early-4"}


def test_administration(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = f"admin-{uuid.uuid4().hex[:8]}"
    futures = admin.create_topics([NewTopic(name, 4, 1, config={"retention.ms": "60000"})])
    futures[name].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as error:
        admin.create_topics([NewTopic(name, 4, 1)])[name].result(TIMEOUT_S)
    assert error.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    metadata = admin.list_topics(timeout=TIMEOUT_S)
    assert sorted(metadata.topics[name].partitions) == [0, 1, 2, 3]
    assert all(partition.leader in metadata.brokers for partition in metadata.topics[name].partitions.values())
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert entries["retention.ms"].value == "60000"
    changed = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("retention.ms", "70000", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    for future in admin.incremental_alter_configs([changed]).values():
        future.result(TIMEOUT_S)
    entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert entries["retention.ms"].value == "70000"
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.record.lock.duration.ms", "1"),
        ("share.auto.offset.reset", "yesterday"),
        ("share.no.such.config", "1"),
    ],
)
def test_a_bad_group_config_is_refused(bootstrap: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "some-group", incremental_configs=[entry])
    with pytest.raises(KafkaException) as error:
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    assert error.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert name in error.value.args[0].str()


def test_an_unknown_topic_is_an_error_for_a_producer(records_bootstrap: str) -> None:
    settings = {
        "bootstrap.servers": records_bootstrap,
        "allow.auto.create.topics": False,
        "message.timeout.ms": 3000,
        "topic.metadata.propagation.max.ms": 500,
    }
    producer = Producer(settings)
    errors: list[Any] = []
    try:
        producer.produce("no-such-topic", b"x", on_delivery=lambda error, message: errors.append(error))
        producer.flush(TIMEOUT_S)
    except KafkaException as error:
        errors.append(error.args[0])
    assert len(errors) == 1
    assert errors[0] is not None
