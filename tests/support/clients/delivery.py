"""Produce, consume and acknowledge with real share consumers, on kshare and on Apache Kafka alike.

`Reader` is a confluent-kafka ShareConsumer in explicit mode. Both systems run with SETTINGS: short locks are allowed,
members hear of their assignment soon, so that a test of Kafka does not wait 5 s for its first record, and transactions
that take too long are looked for often.
"""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient

from support.clients.administration import alter_group, create_topic
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.java import NEWEST

TIMEOUT_S = 30.0
POLL_S = 0.25
CLOSE_S = 30.0

SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.partition.max.record.locks": "100",
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Broker configs; the names are the same in both systems."""

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@dataclass(frozen=True)
class System:
    """A running cluster of either kind."""

    kind: str
    bootstrap: str
    records_bootstrap: str
    """Where producers, ordinary consumers and administrators of topics connect (`KshareCluster`)."""

    def delete_topic(self, name: str) -> None:
        """Returns when clients see that it is gone: Kafka's controller answers before its broker knows."""
        admin = AdminClient({"bootstrap.servers": self.records_bootstrap})
        admin.delete_topics([name])[name].result(TIMEOUT_S)
        wait_for(lambda: name not in admin.list_topics(timeout=TIMEOUT_S).topics, f"{name} is gone")


def properties_of(settings: Mapping[str, str]) -> dict[str, str]:
    """SETTINGS and those of `settings`, which have underscores for dots."""
    return {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}}


@contextmanager
def running_system(kind: str, folder: Path, *, release: str = NEWEST, **settings: str) -> Iterator[System]:
    """`kind` is "kshare" or "kafka", and `release` that of Kafka; `settings` have underscores for dots."""
    properties = properties_of(settings)
    if kind == "kafka":
        with ApacheKafka(folder, properties, heap="512m", quick=True, release=release) as kafka:
            yield System(kind, kafka.bootstrap, kafka.bootstrap)
    else:
        with KshareCluster(folder, properties) as kshare:
            yield System(kind, kshare.bootstrap, kshare.records_bootstrap)


def new_topic(bootstrap: str, partitions: int = 1, *, name: str = "", **configs: str) -> str:
    """A topic with a name of its own where none is given; `configs` have underscores for dots."""
    name = name or f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, name, partitions, **configs)
    return name


def new_group(bootstrap: str, **configs: str) -> str:
    """A group that reads from the earliest offset; `configs` have underscores for dots and no leading `share_`."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    configs = {"auto_offset_reset": "earliest", **configs}
    set_group(bootstrap, name, **configs)
    return name


def set_group(bootstrap: str, group: str, **configs: str) -> None:
    alter_group(bootstrap, group, {f"share.{key.replace('_', '.')}": value for key, value in configs.items()})


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[str],
    partition: int = 0,
    timestamp_ms: int = 0,
    settings: dict[str, Any] | None = None,
) -> None:
    """All values into one partition, in order, in as few batches as can be; returns when they are confirmed.

    `timestamp_ms` 0 is now.
    """
    errors: list[object] = []

    def confirmed(error: object, message: object) -> None:
        if error is not None:
            errors.append(error)

    producer = batching_producer(bootstrap, topic, settings)
    for value in values:
        producer.produce(
            topic,
            value.encode(),
            partition=partition,
            timestamp=timestamp_ms,
            on_delivery=confirmed,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors


def batching_producer(bootstrap: str, topic: str, settings: dict[str, Any] | None = None) -> Producer:
    """What it is given for a partition before a flush is one batch, however slow the machine is.

    A linger that ended in between would cut it; and so would a flush while librdkafka, that has just got to know the
    topic, moves the records to their partition one by one.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 10_000, **(settings or {})})
    producer.list_topics(topic, TIMEOUT_S)
    return producer


ONE_BY_ONE = {"batch.num.messages": 1, "linger.ms": 0}
"""Settings of `produce` that make a record batch of each record."""


def values_of(messages: Iterable[Any]) -> list[str]:
    return [message.value().decode() for message in messages]


def counts_of(messages: Iterable[Any]) -> list[int]:
    return [message.delivery_count() for message in messages]


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def shown_of_group(group: str, bootstrap: str) -> str:
    """Members, assignments and held records of a group, to be printed where it delivers nothing."""
    shown = []
    for view in ("describe", "in-flight"):
        command = [str(COMMAND), "groups", view, group, "--bootstrap", bootstrap, "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        shown.append(f"kshare groups {view}: {ended.stdout}{ended.stderr}")
    return "\n".join(shown)


class Reader:
    """One member of a share group; a context manager that closes it."""

    def __init__(self, bootstrap: str, group: str, topics: str | Sequence[str], **settings: Any) -> None:
        self.consumer: Any = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 500,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self._group_at = (group, bootstrap)
        self.consumer.subscribe([topics] if isinstance(topics, str) else list(topics))
        self.held: list[Any] = []
        """What the last poll brought."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the group, and returns when the consumer is closed; TimeoutError after CLOSE_S.

        No signal ends a call of C, so without a limit one close that hangs would stop the whole test run. librdkafka
        2.16 hangs, with Apache Kafka as well, where it is closed within milliseconds of its first assignment: let it
        have a record first.
        """
        closed: Future[None] = Future()

        def close() -> None:
            try:
                closed.set_result(self.consumer.close())
            except KafkaException as error:
                closed.set_exception(error)

        threading.Thread(target=close, daemon=True).start()
        closed.result(CLOSE_S)

    def poll(self, timeout_s: float = POLL_S) -> list[Any]:
        """One poll; what came must be acknowledged before the next."""
        messages = list(self.consumer.poll(timeout_s))
        for message in messages:
            assert message.error() is None, message.error()
        self.held = messages
        return messages

    def take(self, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Polls until a poll brings something; AssertionError after the time."""
        deadline = time.monotonic() + timeout_s
        while not (messages := self.poll()):
            assert time.monotonic() < deadline, f"no record came within {timeout_s} s"
        return messages

    def settle(self, kind: AcknowledgeType = ACCEPT, messages: Iterable[Any] | None = None) -> None:
        """Acknowledges what the last poll brought and commits; AssertionError where a partition is refused."""
        for message in self.held if messages is None else messages:
            self.consumer.acknowledge(message, kind)
        errors = self.commit()
        assert not errors, errors

    def commit(self) -> dict[int, int]:
        """The error codes of the partitions whose acknowledgements were refused."""
        results: dict[Any, KafkaException | None] = self.consumer.commit_sync(TIMEOUT_S)
        return {at.partition: error.args[0].code() for at, error in results.items() if error is not None}

    def accept(self, wanted: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Polls and accepts until so many records came."""
        found: list[Any] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < wanted:
            if time.monotonic() >= deadline:
                text = f"{len(found)} of {wanted} records came: {values_of(found)[-5:]}"
                raise AssertionError(f"{text}\n{shown_of_group(*self._group_at)}")
            if messages := self.poll():
                found.extend(messages)
                self.settle()
        return found
