"""`kshare consume`: takes records of a share group, shows them with their delivery counts, and acknowledges each.

Over confluent-kafka's ShareConsumer in explicit mode. A poll may bring more records than are still wanted: these are
released, not shown, so that others get them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

from kshare.addresses import parse_address
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.topics import kafka_failure
from kshare.failure import CommandFailed

POLL_S = 0.25


def consume(
    bootstrap: str,
    topic: str,
    group: str,
    answer: AcknowledgeType,
    *,
    limit: int | None,
    timeout_s: float | None,
    show: Callable[[Message], None],
    properties: Properties = NO_PROPERTIES,
) -> int:
    """Shows and acknowledges at most `limit` records, until none has come for `timeout_s`; returns how many.

    Without `limit` and `timeout_s`, until it is interrupted (KeyboardInterrupt leaves the group in good order).
    """
    parse_address(bootstrap, what="--bootstrap")
    try:
        consumer = ShareConsumer(
            {
                **properties,
                "bootstrap.servers": bootstrap,
                "client.id": "kshare-cli",
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
    except (KafkaException, ValueError) as error:
        raise CommandFailed(f"consuming {topic} as group {group} failed: {error}") from None
    taken = 0
    heard_at = time.monotonic()
    try:
        while limit is None or taken < limit:
            messages = list(consumer.poll(POLL_S))
            if messages:
                heard_at = time.monotonic()
                wanted = len(messages) if limit is None else limit - taken
                taken += _take(consumer, messages[:wanted], messages[wanted:], answer, show)
            elif timeout_s is not None and time.monotonic() - heard_at >= timeout_s:
                break
    except KeyboardInterrupt:
        pass
    except KafkaException as error:
        raise kafka_failure(f"consuming {topic} as group {group}", error) from None
    finally:
        consumer.close()
    return taken


def _take(
    consumer: ShareConsumer,
    wanted: list[Message],
    surplus: list[Message],
    answer: AcknowledgeType,
    show: Callable[[Message], None],
) -> int:
    """Acknowledges and commits before the records are shown: what the user sees is durable."""
    records = []
    for message in wanted:
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        consumer.acknowledge(message, answer)
        records.append(message)
    for message in surplus:
        consumer.acknowledge(message, AcknowledgeType.RELEASE)
    results = consumer.commit_sync(30.0)
    for partition, problem in results.items():
        if problem is not None:
            raise CommandFailed(f"acknowledging records of partition {partition.partition} failed: {problem}")
    for message in records:
        show(message)
    return len(records)
