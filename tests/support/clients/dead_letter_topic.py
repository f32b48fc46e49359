"""The content of a dead-letter topic, read with confluent-kafka's ordinary consumer."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

TIMEOUT_S = 60.0


class DeadLetter(NamedTuple):
    """A dead letter; `context` are the headers whose names begin with `__dlq.errors.`, `headers` the others."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    context: dict[str, str]
    headers: list[tuple[str, bytes | None]]

    @property
    def source(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the record."""
        of = self.context
        return of["topic"], int(of["partition"]), int(of["offset"])


def read_dead_letters(bootstrap: str, topic: str, wanted: int, partitions: int = 1) -> list[DeadLetter]:
    """All dead letters of a topic, by partition and offset; AssertionError where fewer than `wanted` come in time."""
    settings = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while True:
            found: list[DeadLetter] = []
            for partition in range(partitions):
                at = TopicPartition(topic, partition, OFFSET_BEGINNING)
                consumer.assign([at])
                found.extend(_read_partition(consumer, at, deadline))
            if len(found) >= wanted:
                return found
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} dead letters came: {found[-3:]}"
            time.sleep(0.2)
    finally:
        consumer.close()


def _read_partition(consumer: Consumer, at: TopicPartition, deadline: float) -> list[DeadLetter]:
    """Up to the end, which has offsets without records where dead letters are committed in transactions."""
    found: list[DeadLetter] = []
    while True:
        assert time.monotonic() < deadline, f"the end of {at} was not reached; {len(found)} records came"
        message: Any = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            found.append(_dead_letter(message))
        elif message.error().code() == KafkaError._PARTITION_EOF and message.partition() == at.partition:
            return found


def _dead_letter(message: Any) -> DeadLetter:
    prefix = "__dlq.errors."
    headers: list[tuple[str, bytes | None]] = list(message.headers() or [])
    context = {name.removeprefix(prefix): (value or b"").decode() for name, value in headers if name.startswith(prefix)}
    own = [(name, value) for name, value in headers if not name.startswith(prefix)]
    return DeadLetter(message.partition(), message.key(), message.value(), message.timestamp()[1], context, own)
