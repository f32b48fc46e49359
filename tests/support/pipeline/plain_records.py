"""A topic's records for a reader of committed records, and dead letters as the leader writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kshare_leader.dead_letters.letters import Source, context_headers
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.machine.transitions import ArchivingReason
from support.clients.delivery import wait_for

TIMEOUT_S = 30.0
Headers = list[tuple[str, bytes | None]]


class PlainRecord(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def committed_records(bootstrap: str, topic: str, partitions: int = 1) -> list[PlainRecord]:
    """All records of a topic up to its end (that of committed transactions), by partition and offset."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "plain",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 20,
    }
    wait_for_markers(bootstrap, topic, partitions)
    consumer = Consumer(settings)
    found: list[PlainRecord] = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            while (record := _next(consumer)) is not None:
                found.append(record)
    finally:
        consumer.close()
    return found


def wait_for_markers(bootstrap: str, topic: str, partitions: int) -> None:
    """The end of a transaction is told before it is in the logs."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}  # type: ignore[no-untyped-call]

    def ends(level: IsolationLevel) -> list[int]:
        futures = admin.list_offsets(wanted, isolation_level=level).values()
        return [future.result(TIMEOUT_S).offset for future in futures]

    wait_for(
        lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        f"no transaction is open in {topic}",
    )


def _next(consumer: Consumer) -> PlainRecord | None:
    message: Any = consumer.poll(TIMEOUT_S)
    assert message is not None, "nothing came, not even the end"
    if message.error() is None:
        headers = [(name, value) for name, value in message.headers() or []]
        return PlainRecord(message.partition(), message.offset(), message.key(), message.value(), headers)
    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
    return None


class Letter(NamedTuple):
    """A dead letter to write; without `value` it has no copy."""

    topic: str
    offset: int
    partition: int = 0
    group: str = "workers"
    reason: ArchivingReason = ArchivingReason.REJECTED
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    time_ms: int = 0


def write_letters(bootstrap: str, topic: str, letters: Sequence[Letter], partition: int = 0) -> None:
    """Writes them to a dead-letter topic with the headers that the leader gives them; `time_ms` 0 is now."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "message.max.bytes": 1_000_000_000,
    }
    producer = Producer(settings)
    for letter in letters:
        source = Source(group_id=letter.group, topic_name=letter.topic, partition=letter.partition)
        run = ArchivingRun(letter.offset, letter.offset, 3, letter.reason)
        producer.produce(
            topic,
            letter.value,
            letter.key,
            partition,
            timestamp=letter.time_ms,
            headers=[*letter.headers, *context_headers(source, run, letter.offset)],
        )
    assert producer.flush(TIMEOUT_S) == 0
