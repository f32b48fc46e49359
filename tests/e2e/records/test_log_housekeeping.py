"""Retention, compaction and DeleteRecords as unmodified clients see them, against the four processes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.clients.administration import alter_topic, create_topic
from support.clusters.kshare_cluster import KshareCluster

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    settings = {
        "log.initial.task.delay.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.cleaner.backoff.ms": "200",
    }
    with KshareCluster(tmp_path_factory.mktemp("kshare"), settings) as running:
        yield running


def new_topic(bootstrap: str, **configs: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, name, 1, **configs)
    return name


def produce(bootstrap: str, topic: str, records: list[tuple[str | None, str | None]], **settings: Any) -> None:
    """One batch after the other, a record each."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **settings})
    errors: list[Any] = []
    for key, value in records:
        producer.produce(topic, value, key, on_delivery=lambda error, _: errors.append(error) if error else None)
        assert producer.flush(TIMEOUT_S) == 0
    if errors:
        raise KafkaException(errors[0])


def read(bootstrap: str, topic: str, offset: int | None = None, **settings: Any) -> list[tuple[int | None, Any, Any]]:
    """Offset, key and value of all records, from `offset` or the earliest one on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0 if offset is None else offset)])
    found: list[tuple[int | None, Any, Any]] = []
    try:
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "no end of the partition"
            if message.error():
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def watermarks(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
    consumer.close()
    return low, high


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.1)


def test_deleted_records_are_gone_and_stay_gone_after_a_kill(cluster: KshareCluster) -> None:
    bootstrap = cluster.bootstrap
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, [(None, f"value {index}") for index in range(10)])

    def delete(offset: int) -> int:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        (future,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        return int(future.result(TIMEOUT_S).low_watermark)

    assert delete(4) == 4
    assert [offset for offset, _, _ in read(bootstrap, topic)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        delete(11)
    cluster.kill_everything()
    cluster.start()
    assert watermarks(bootstrap, topic) == (4, 10)
    assert delete(-1) == 10
    assert read(bootstrap, topic) == []
    cluster.kill_everything()
    cluster.start()
    produce(bootstrap, topic, [(None, "the next one")])
    assert read(bootstrap, topic) == [(10, None, b"the next one")]


def test_old_records_go_by_time_the_active_segment_too(cluster: KshareCluster) -> None:
    bootstrap = cluster.bootstrap
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, [(None, f"value {index}") for index in range(3)])
    assert len(read(bootstrap, topic)) == 3
    alter_topic(bootstrap, topic, {"retention.ms": "1500"})
    wait_until(lambda: watermarks(bootstrap, topic) == (3, 3), "all records are older than retention.ms")
    alter_topic(bootstrap, topic, {"retention.ms": "-1"})
    produce(bootstrap, topic, [(None, "fresh")])
    assert read(bootstrap, topic) == [(3, None, b"fresh")]


def test_the_oldest_segments_go_by_size(cluster: KshareCluster) -> None:
    bootstrap = cluster.bootstrap
    topic, *later = [new_topic(bootstrap, retention_bytes="2500000", segment_bytes="1048576") for _ in range(3)]
    # Segments of two records; six of them have 6 MB, and three are at least retention.bytes.
    for each in (topic, *later):
        produce(bootstrap, each, [(None, "x" * 500_000) for _ in range(12)])
        wait_until(lambda each=each: watermarks(bootstrap, each)[0] == 6, "only retention.bytes are left")  # type: ignore[misc]
    # What took the others' segments has looked at the first one again, and removed no more.
    assert watermarks(bootstrap, topic) == (6, 12)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_compacted_topic_keeps_the_newest_of_each_key(cluster: KshareCluster, codec: str) -> None:
    bootstrap = cluster.bootstrap
    topic = new_topic(
        bootstrap,
        cleanup_policy="compact",
        segment_ms="1",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
    )
    records: list[tuple[str | None, str | None]] = [(f"key {index % 3}", f"{index}") for index in range(12)]
    records += [("key 0", None), ("last", "in the active segment")]
    for record in records:
        produce(bootstrap, topic, [record], **{"compression.type": codec})
        time.sleep(0.003)
    expected = [
        (10, b"key 1", b"10"),
        (11, b"key 2", b"11"),
        (13, b"last", b"in the active segment"),
    ]
    produced_more = 0

    def compacted() -> bool:
        # A tombstone goes with the second run after it, which comes when there is something new.
        nonlocal produced_more
        produced_more += 1
        produce(bootstrap, topic, [("more", f"{produced_more}")])
        return [record for record in read(bootstrap, topic) if record[1] != b"more"] == expected

    wait_until(compacted, "the topic is compacted")
    assert watermarks(bootstrap, topic) == (0, 14 + produced_more)
    assert read(bootstrap, topic, 3)[0] == expected[0], "a reader goes on over what is gone"
    with pytest.raises(KafkaException, match="INVALID_RECORD"):
        produce(bootstrap, topic, [(None, "no key")])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.delete_records([TopicPartition(topic, 0, 1)]).values()
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        future.result(TIMEOUT_S)
