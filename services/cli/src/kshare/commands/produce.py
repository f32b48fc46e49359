"""`kshare produce`: produces values from the command line, or one per line of stdin."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach, topic_of
from kshare.commands.topics import kafka_failure
from kshare.failure import CommandFailed

DELIVERY_TIMEOUT_MS = 30_000
WAIT_S = 0.1
"""The longest call into librdkafka: an interrupt is handled between two calls."""

OnDelivery = Callable[[KafkaError | None, Message], None]


def produce(
    bootstrap: str, topic: str, key: str | None, values: Iterable[str], properties: Properties = NO_PROPERTIES
) -> int:
    """Sends all values and waits until each is stored; returns their number.

    CommandFailed if the topic does not exist (a typo must not create one), and for the first value that failed.
    An interrupt discards values that are not sent yet.
    """
    topic_of(reach(bootstrap, properties), topic)
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
        producer = Producer(settings)
    except KafkaException as error:
        raise kafka_failure(f"producing to {topic}", error) from None
    stored = 0
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal stored
        if error is None:
            stored += 1
        else:
            failures.append(error)

    try:
        for value in values:
            while not _send(producer, topic, key, value, delivered):
                producer.poll(WAIT_S)
            producer.poll(0)
            if failures:
                break
        while producer.flush(WAIT_S):  # ends: each value is stored or fails by the delivery timeout
            pass
    except KeyboardInterrupt:
        producer.purge()
        raise
    if failures:
        raise kafka_failure(f"producing to {topic} (after {stored} stored records)", KafkaException(failures[0]))
    return stored


def _send(producer: Producer, topic: str, key: str | None, value: str, delivered: OnDelivery) -> bool:
    """Queues one value; False if the producer's queue is full."""
    try:
        producer.produce(topic, value=value.encode(), key=None if key is None else key.encode(), on_delivery=delivered)
    except BufferError:
        return False
    except KafkaException as error:
        raise kafka_failure(f"producing to {topic}", error) from None
    except (TypeError, ValueError) as error:
        raise CommandFailed(f"producing to {topic} failed: {error}") from None
    return True
