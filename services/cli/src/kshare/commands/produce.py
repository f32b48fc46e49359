"""`kshare produce`: produces records and waits until each is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach, topic_of
from kshare.commands.records import NewRecord
from kshare.commands.topics import kafka_failure
from kshare.failure import BAD_USE, CommandFailed

DELIVERY_TIMEOUT_MS = 30_000
WAIT_S = 0.1
"""The longest call into librdkafka: an interrupt is handled between two calls."""

OnDelivery = Callable[[KafkaError | None, Message], None]


def produce(bootstrap: str, topic: str, records: Iterable[NewRecord], properties: Properties = NO_PROPERTIES) -> int:
    """Sends all records and waits until each is stored; returns their number.

    CommandFailed if the topic or a record's partition does not exist (a typo must not create a topic), and for the
    first record that failed. An interrupt discards records that are not sent yet.
    """
    count = len(topic_of(reach(bootstrap, properties), topic).partitions)
    producer = _producer(bootstrap, topic, properties)
    stored = 0
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal stored
        if error is None:
            stored += 1
        else:
            failures.append(error)

    try:
        for record in _checked(records, topic, count):
            while not _send(producer, topic, record, delivered):
                producer.poll(WAIT_S)
            producer.poll(0)
            if failures:
                break
        _flush(producer)
    except CommandFailed as problem:  # an input that is no record: those before it are stored all the same
        _flush(producer)
        raise CommandFailed(f"{problem} ({stored} records are stored)", problem.exit_code) from None
    except KafkaException as error:  # of the producer itself, such as a missing right to write at all
        raise kafka_failure(f"producing to {topic} (after {stored} stored records)", error) from None
    except KeyboardInterrupt:
        producer.purge()
        raise
    if failures:
        raise kafka_failure(f"producing to {topic} (after {stored} stored records)", KafkaException(failures[0]))
    return stored


def _producer(bootstrap: str, topic: str, properties: Properties) -> Producer:
    settings = {
        **properties,
        "bootstrap.servers": bootstrap,
        "client.id": "kshare-cli",
        "enable.idempotence": True,
        "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        "linger.ms": 5,
        "log_level": 0,
    }
    try:
        return Producer(settings)
    except KafkaException as error:
        raise kafka_failure(f"producing to {topic}", error) from None


def _flush(producer: Producer) -> None:
    """Ends when each record is stored or failed, at the delivery timeout at the latest."""
    while producer.flush(WAIT_S):
        pass


def _checked(records: Iterable[NewRecord], topic: str, count: int) -> Iterator[NewRecord]:
    """The records; CommandFailed for one whose partition the topic does not have."""
    for record in records:
        if record.partition >= count:
            raise CommandFailed(f"topic {topic} has no partition {record.partition}; it has {count}", BAD_USE)
        yield record


def _send(producer: Producer, topic: str, record: NewRecord, delivered: OnDelivery) -> bool:
    """Queues one record; False if the producer's queue is full."""
    try:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=list(record.headers),
            on_delivery=delivered,
        )
    except BufferError:
        return False
    except KafkaException as error:
        raise kafka_failure(f"producing to {topic}", error) from None
    except (TypeError, ValueError) as error:
        raise CommandFailed(f"producing to {topic} failed: {error}") from None
    return True
