"""Options `kafka.*` as librdkafka's properties: `kafka.bootstrap.servers`, `kafka.security.protocol` and so on.

confluent-kafka gets them unchanged, without the prefix `kafka.`, so librdkafka rejects unknown names with its own
error text. Names that only the Java client has, such as `kafka.sasl.jaas.config`, are unknown. Error texts of this
module never contain values, because some are passwords.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

PREFIX = "kafka."
BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"

READER_DEFAULTS: dict[str, Any] = {
    "group.id": "kshare-plain-offsets",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "queued.max.messages.kbytes": 32 * 1024,
    "max.poll.interval.ms": 86_400_000,
}
"""Defaults that a user may override. librdkafka requires a group id; the consumer is assigned, so it joins no group.

`fetch.wait.max.ms` delays the detection of the log's end when nothing is appended. `queued.max.messages.kbytes`
bounds a reader's memory. `max.poll.interval.ms` is long because a task may pause between two batches.
"""

READER_RULES: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
"""Values that a reader of exact ranges requires; another value is an error."""

PRODUCER_DEFAULTS: dict[str, Any] = {"linger.ms": 20, "compression.type": "lz4", "partitioner": "murmur2_random"}
"""The partitioner is that of the Java producer, so all records of a key are in one partition."""
PRODUCER_RULES: dict[str, Any] = {"enable.idempotence": True}


class InvalidOption(ValueError):
    """An option is missing or wrong; the text says which, what was found and what is allowed."""


def kafka_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The `kafka.*` of a reader's or writer's options, without the prefix; InvalidOption without bootstrap servers."""
    found = {name[len(PREFIX) :]: value for name, value in options.items() if name.lower().startswith(PREFIX)}
    if not found.get("bootstrap.servers"):
        raise InvalidOption(f"option {BOOTSTRAP_SERVERS} is missing: give HOST:PORT of one or more gateways")
    return found


def reader_properties(given: Mapping[str, str]) -> dict[str, Any]:
    """All properties of a consumer that reads ranges."""
    return _joined(READER_DEFAULTS, given, READER_RULES)


def producer_properties(given: Mapping[str, str]) -> dict[str, Any]:
    """All properties of a producer whose records are stored once, in order."""
    return _joined(PRODUCER_DEFAULTS, given, PRODUCER_RULES)


def _joined(defaults: Mapping[str, Any], given: Mapping[str, str], rules: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in rules.items():
        if name in given and given[name].lower() != str(value).lower():
            raise InvalidOption(f"option {PREFIX}{name} cannot be set here; it is always {str(value).lower()}")
    return {**defaults, **given, **rules}


def open_consumer(properties: Mapping[str, Any]) -> Consumer:
    """A consumer; InvalidOption where librdkafka refuses a property."""
    try:
        return Consumer(dict(properties))
    except (KafkaException, ValueError, TypeError) as error:
        raise InvalidOption(f"the {PREFIX}* options make no consumer: {_sentence(error)}") from None


def open_producer(properties: Mapping[str, Any]) -> Producer:
    """A producer; InvalidOption where librdkafka refuses a property."""
    try:
        return Producer(dict(properties))
    except (KafkaException, ValueError, TypeError) as error:
        raise InvalidOption(f"the {PREFIX}* options make no producer: {_sentence(error)}") from None


def _sentence(error: Exception) -> str:
    detail = error.args[0] if error.args else error
    return detail.str() if hasattr(detail, "str") else str(detail)
