"""Dead letters (KIP-1191) with confluent-kafka's clients, after the scenarios of Kafka 4.4's ShareConsumerDLQTest.

At the end the leader is killed again and again while records are rejected and exhausted: each of them is in the
dead-letter topic exactly once, and nothing else is.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from support.clients.administration import alter_group, alter_topic, create_topic
from support.clients.dead_letter_topic import DeadLetter, read_dead_letters
from support.clients.delivery import (
    ACCEPT,
    ONE_BY_ONE,
    REJECT,
    RELEASE,
    SETTINGS,
    Reader,
    batching_producer,
    new_topic,
    produce,
)
from support.clients.state_of_group import start_offsets, wait_until_drained
from support.clusters.kshare_cluster import KshareCluster

MAY_RECEIVE = "errors.deadletterqueue.group.enable"
"""A topic's config that is set at kshare: an existing cluster does not know it."""
REJECTED, EXCEEDED = "Offset rejected by client.", "Offset delivery count exceeded the threshold."


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS) as running:
        yield running


def new_dead_letter_topic(cluster: KshareCluster, partitions: int = 1, **configs: str) -> str:
    name = f"dlq.{uuid.uuid4().hex[:8]}"
    create_topic(cluster.records_bootstrap, name, partitions, **configs)
    alter_topic(cluster.bootstrap, name, {MAY_RECEIVE: "true"})
    return name


def new_group(bootstrap: str, dead_letter_topic: str, **configs: str) -> str:
    name = f"group-{uuid.uuid4().hex[:8]}"
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = {"errors.deadletterqueue.topic.name": dead_letter_topic} if dead_letter_topic else {}
    alter_group(bootstrap, name, {"share.auto.offset.reset": "earliest", **topic, **named})
    return name


COPY = {"errors_deadletterqueue_copy_record_enable": "true"}


def reject(bootstrap: str, group: str, topic: str, count: int) -> None:
    with Reader(bootstrap, group, topic) as reader:
        while count > 0:
            count -= len(reader.take())
            reader.settle(REJECT)


def offsets_of(letters: list[DeadLetter]) -> list[int]:
    return [letter.source[2] for letter in letters]


def test_rejected_records_leave_their_coordinates(cluster: KshareCluster) -> None:
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    topic, letters_topic = new_topic(records_bootstrap), new_dead_letter_topic(cluster)
    group = new_group(bootstrap, letters_topic)
    produce(
        records_bootstrap, topic, [f"v{index}" for index in range(5)], timestamp_ms=time.time_ns() // 1_000_000 - 60_000
    )
    before_ms = time.time_ns() // 1_000_000
    reject(bootstrap, group, topic, 5)
    letters = read_dead_letters(records_bootstrap, letters_topic, 5)
    assert [letter.source for letter in letters] == [(topic, 0, offset) for offset in range(5)]
    for letter in letters:
        assert (letter.key, letter.value, letter.headers) == (None, None, [])
        assert letter.context["group"] == group
        assert (letter.context["delivery.count"], letter.context["message"]) == ("1", REJECTED)
        assert before_ms - 1000 <= letter.timestamp_ms <= time.time_ns() // 1_000_000 + 1000, "the time of the writing"
    wait_until_drained(cluster, group, topic, [5], timeout_s=30)


def test_copies_have_key_value_and_headers(cluster: KshareCluster) -> None:
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    topic, letters_topic = new_topic(records_bootstrap), new_dead_letter_topic(cluster)
    group = new_group(bootstrap, letters_topic, **COPY)
    producer = batching_producer(records_bootstrap, topic, {"compression.type": "gzip"})
    for index in range(20):
        headers: list[tuple[str, str | bytes | None]] = [("trace", str(index).encode()), ("none", None)]
        producer.produce(topic, f"value-{index}".encode(), key=f"key-{index}".encode(), headers=headers)
    assert producer.flush(30) == 0
    reject(bootstrap, group, topic, 20)
    letters = read_dead_letters(records_bootstrap, letters_topic, 20)
    assert [(letter.key, letter.value) for letter in letters] == [
        (f"key-{index}".encode(), f"value-{index}".encode()) for index in range(20)
    ]
    assert [letter.headers for letter in letters] == [
        [("trace", str(index).encode()), ("none", None)] for index in range(20)
    ]
    assert offsets_of(letters) == list(range(20))


def test_exactly_the_rejected_and_exhausted_records_are_there(cluster: KshareCluster) -> None:
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    topic, letters_topic = new_topic(records_bootstrap), new_dead_letter_topic(cluster)
    group = new_group(bootstrap, letters_topic, share_delivery_count_limit="2")
    produce(records_bootstrap, topic, [f"v{index}" for index in range(12)], settings=ONE_BY_ONE)
    kinds = (REJECT, RELEASE, ACCEPT)
    deadline = time.monotonic() + 60
    with Reader(bootstrap, group, topic) as reader:
        while start_offsets(cluster, group, topic, 1) != [12]:
            assert time.monotonic() < deadline
            for message in reader.poll():
                reader.consumer.acknowledge(message, kinds[message.offset() % 3])
            assert reader.commit() == {}
    letters = read_dead_letters(records_bootstrap, letters_topic, 8)
    assert sorted(offsets_of(letters)) == [0, 1, 3, 4, 6, 7, 9, 10]
    reasons = {
        letter.source[2] % 3: (letter.context["delivery.count"], letter.context["message"]) for letter in letters
    }
    assert reasons == {0: ("1", REJECTED), 1: ("2", EXCEEDED)}


def test_the_partition_is_the_sources_modulo_the_topics(cluster: KshareCluster) -> None:
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    topic, letters_topic = new_topic(records_bootstrap, 3), new_dead_letter_topic(cluster, 2)
    group = new_group(bootstrap, letters_topic)
    for partition in range(3):
        produce(records_bootstrap, topic, ["a", "b"], partition=partition)
    reject(bootstrap, group, topic, 6)
    letters = read_dead_letters(records_bootstrap, letters_topic, 6, partitions=2)
    assert sorted(letter.source for letter in letters) == [(topic, number // 2, number % 2) for number in range(6)]
    assert all(letter.partition == letter.source[1] % 2 for letter in letters)


def test_the_topics_max_message_bytes_splits_batches_and_drops_contents_that_never_fit(cluster: KshareCluster) -> None:
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    topic = new_topic(records_bootstrap)
    letters_topic = new_dead_letter_topic(cluster, max_message_bytes="100000")
    group = new_group(bootstrap, letters_topic, **COPY)
    values = ["a" * 98_000, "b" * 98_000, "c" * 200_000, "d" * 98_000]
    produce(records_bootstrap, topic, values, settings={"compression.type": "gzip"})
    reject(bootstrap, group, topic, 4)
    letters = read_dead_letters(records_bootstrap, letters_topic, 4)
    assert [None if letter.value is None else letter.value.decode() for letter in letters] == [
        values[0],
        values[1],
        None,
        values[3],
    ]
    assert offsets_of(letters) == [0, 1, 2, 3]


def test_what_configs_forbid_is_archived_without_dead_letters(cluster: KshareCluster) -> None:
    """The topics may receive when a group is pointed at them, and not when the dead letters are due."""
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    disabled, deleted = new_dead_letter_topic(cluster), new_dead_letter_topic(cluster)
    groups = [new_group(bootstrap, name) for name in ("", disabled, deleted)]
    alter_topic(bootstrap, disabled, {MAY_RECEIVE: "false"})
    admin = AdminClient({"bootstrap.servers": records_bootstrap})  # it must outlive its futures
    for future in admin.delete_topics([deleted]).values():
        future.result(30)
    for group in groups:
        topic = new_topic(records_bootstrap)
        produce(records_bootstrap, topic, ["a", "b", "c"])
        reject(bootstrap, group, topic, 3)
        wait_until_drained(cluster, group, topic, [3], timeout_s=30)
    assert read_dead_letters(records_bootstrap, disabled, 0) == []
    log = cluster.log_text()
    assert "does not exist, and errors.deadletterqueue.auto.create.topics.enable is false" in log
    assert "archived without dead letters" in log


def test_a_group_cannot_be_pointed_at_a_topic_that_may_not_receive(cluster: KshareCluster) -> None:
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    create_topic(records_bootstrap, "dlq.not-enabled", 1)
    create_topic(records_bootstrap, "wrong.prefix", 1)
    alter_topic(bootstrap, "dlq.not-enabled", {MAY_RECEIVE: "false"})
    alter_topic(bootstrap, "wrong.prefix", {MAY_RECEIVE: "true"})
    problems = {
        "dlq.missing": "the topic does not exist; create it ",
        "dlq.not-enabled": "does not allow dead letters; set its",
        "wrong.prefix": "must start with 'dlq.'",
    }
    for name, problem in problems.items():
        with pytest.raises(KafkaException, match=f"INVALID_CONFIG.*{re.escape(problem)}"):
            alter_group(bootstrap, "some-group", {"errors.deadletterqueue.topic.name": name})


@pytest.mark.parametrize("name", ["__internal", "with space", ".", "x" * 250])
def test_a_name_that_no_dead_letter_topic_can_have_is_refused_when_it_is_set(cluster: KshareCluster, name: str) -> None:
    with pytest.raises(KafkaException, match=r"INVALID_CONFIG.*errors\.deadletterqueue\.topic\.name"):
        alter_group(cluster.bootstrap, "some-group", {"errors.deadletterqueue.topic.name": name})


def test_it_stops_when_the_group_has_no_topic_any_more(cluster: KshareCluster) -> None:
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    topic, letters_topic = new_topic(records_bootstrap), new_dead_letter_topic(cluster)
    group = new_group(bootstrap, letters_topic)
    with Reader(bootstrap, group, topic) as reader:
        produce(records_bootstrap, topic, ["a"])
        reader.take()
        reader.settle(REJECT)
        wait_until_drained(cluster, group, topic, [1], timeout_s=30)
        alter_group(bootstrap, group, {"errors.deadletterqueue.topic.name": ""})
        produce(records_bootstrap, topic, ["b"])
        reader.take()
        reader.settle(REJECT)
        wait_until_drained(cluster, group, topic, [2], timeout_s=30)
    assert offsets_of(read_dead_letters(records_bootstrap, letters_topic, 1)) == [0]


def test_the_topic_is_created_when_the_cluster_may(tmp_path: Path) -> None:
    settings = {**SETTINGS, "errors.deadletterqueue.auto.create.topics.enable": "true", "num.partitions": "2"}
    with KshareCluster(tmp_path, settings) as cluster:
        bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
        topic, group = new_topic(records_bootstrap), new_group(bootstrap, "dlq.made", **COPY)
        produce(records_bootstrap, topic, ["a", "b"])
        reject(bootstrap, group, topic, 2)
        wait_until_drained(cluster, group, topic, [2], timeout_s=30)
        letters = read_dead_letters(records_bootstrap, "dlq.made", 2, partitions=2)
        assert [letter.value for letter in letters] == [b"a", b"b"]
        resource = ConfigResource(ResourceType.TOPIC, "dlq.made")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        described: Any = admin.describe_configs([resource])[resource].result(30)
        assert described[MAY_RECEIVE].value == "true"
        timestamps = described["message.timestamp.type"]
        assert (timestamps.value, timestamps.is_default) == ("CreateTime", False), "as in Kafka 4.4"


RECORDS = 240
KILL_AFTER = (15, 60, 110, 150)
"""After so many acknowledgements the leader is killed."""


def test_each_record_that_is_given_up_is_there_once_although_the_leader_is_killed(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, SETTINGS) as cluster:
        bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
        topic, letters_topic = new_topic(records_bootstrap, 2), new_dead_letter_topic(cluster)
        locks = {"share_record_lock_duration_ms": "1000", "share_delivery_count_limit": "4"}
        group = new_group(bootstrap, letters_topic, **locks, **COPY)
        ends = [RECORDS // 2] * 2
        for partition in range(2):
            produce(
                records_bootstrap,
                topic,
                [f"{partition}-{n}" for n in range(ends[partition])],
                partition,
                settings=ONE_BY_ONE,
            )
        _work_and_kill(cluster, group, topic, ends)
        wait_until_drained(cluster, group, topic, ends, timeout_s=60)
        expected = [f"{partition}-{n}" for partition in range(2) for n in range(ends[partition]) if n % 3]
        letters = read_dead_letters(records_bootstrap, letters_topic, len(expected))
        assert sorted((letter.value or b"").decode() for letter in letters) == sorted(expected)
        assert {f"{letter.source[1]}-{letter.source[2]}" for letter in letters} == set(expected)
        messages = {letter.source[2] % 3: letter.context["message"] for letter in letters}
        assert messages == {1: REJECTED, 2: EXCEEDED}


def _work_and_kill(cluster: KshareCluster, group: str, topic: str, ends: list[int]) -> None:
    """Accepts, rejects or releases each record by its offset until the state says that all are done."""
    kinds = (ACCEPT, REJECT, RELEASE)
    kills = list(KILL_AFTER)
    settled = 0
    consumer: Any = ShareConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
            "max.poll.records": 10,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + 150
    try:
        while kills or start_offsets(cluster, group, topic, 2) != ends:
            assert time.monotonic() < deadline, f"{settled} acknowledged, {start_offsets(cluster, group, topic, 2)}"
            messages = [message for message in consumer.poll(0.25) if message.error() is None]
            with contextlib.suppress(KafkaException):
                for message in messages:
                    consumer.acknowledge(message, kinds[message.offset() % 3])
                settled += len(messages)
                consumer.commit_async() if kills and settled >= kills[0] else consumer.commit_sync(10)
            if kills and settled >= kills[0]:
                del kills[0]
                cluster.wait_until_gone(cluster.kill_role("leader"))
    finally:
        consumer.close()
    assert not kills
