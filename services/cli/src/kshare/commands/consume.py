"""`kshare consume`: acquires records as a share group member, prints them with delivery counts, acknowledges each.

It uses confluent-kafka's ShareConsumer in explicit mode. A poll may return more records than are still wanted, since
leaders acquire whole batches of a producer, and librdkafka cannot ask for single records (record_limit, KIP-1206).
These records are released and not shown, so that other members get them. The delivery counts nevertheless, so records
at their last delivery are shown beyond the limit: a release would archive them unseen.

With --release the command ends after its first poll with records. Otherwise it would acquire its own released records
again until they are archived.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach, topic_of
from kshare.commands.groups.group_requests import (
    SHARE,
    alter_group_configs,
    describe_configs,
    group_type_of,
    read_share_offsets,
)
from kshare.commands.resource_configs import GROUP
from kshare.commands.topics import kafka_failure
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import Refused

POLL_S = 0.25
CLOSE_S = 5.0
"""librdkafka may wait for good when it is closed within milliseconds of its first assignment, or without a cluster."""
AUTO_OFFSET_RESET = "share.auto.offset.reset"
DELIVERY_COUNT_LIMIT = "share.delivery.count.limit"
LEAST_DELIVERY_COUNT_LIMIT = 2
"""The smallest limit that Kafka allows, for groups whose configs this user may not describe."""
MAX_POLL_RECORDS = 500
"""librdkafka's default of max.poll.records."""


def consume(
    bootstrap: str,
    topic: str,
    group: str,
    answer: AcknowledgeType,
    *,
    limit: int | None,
    timeout_s: float | None,
    show: Callable[[Message], None],
    note: Callable[[str], None],
    properties: Properties = NO_PROPERTIES,
) -> int:
    """Shows and acknowledges at most `limit` records, until no record arrives for `timeout_s`; returns their number.

    More than `limit` only if a release would archive the others. Without `limit` and `timeout_s` it runs until
    KeyboardInterrupt, upon which the member leaves the group. With RELEASE it ends after the first poll with records.
    CommandFailed if the topic does not exist.
    """
    topic_of(reach(bootstrap, properties), topic)
    try:
        consumer = ShareConsumer(
            {
                **properties,
                "bootstrap.servers": bootstrap,
                "client.id": "kshare-cli",
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": min(limit or MAX_POLL_RECORDS, MAX_POLL_RECORDS),
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
    except (KafkaException, ValueError) as error:
        raise CommandFailed(f"consuming {topic} as group {group} failed: {error}") from None
    taken = 0
    last_record_at = time.monotonic()
    try:
        while limit is None or taken < limit:
            messages = list(consumer.poll(POLL_S))
            if messages:
                last_record_at = time.monotonic()
                count = len(messages) if limit is None else limit - taken
                wanted, surplus = messages[:count], messages[count:]
                if surplus:
                    last, surplus = _at_last_delivery(surplus, _delivery_count_limit(bootstrap, group, properties))
                    wanted += last
                    if last:
                        note(
                            f"{len(last)} more records than --max are shown, as this is their last delivery "
                            f"({DELIVERY_COUNT_LIMIT}): a release would archive them unseen"
                        )
                taken += _take(consumer, wanted, surplus, answer, show)
                if answer is AcknowledgeType.RELEASE:
                    break
            elif timeout_s is not None and time.monotonic() - last_record_at >= timeout_s:
                break
    except KeyboardInterrupt:
        pass
    except KafkaException as error:
        raise kafka_failure(f"consuming {topic} as group {group}", error) from None
    finally:
        close_in_time(consumer)
    return taken


def close_in_time(consumer: ShareConsumer, limit_s: float = CLOSE_S) -> None:
    """Leaves the group. Every acknowledgement was committed before, so nothing is lost where it takes too long."""

    def close() -> None:
        with suppress(KafkaException):
            consumer.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(limit_s)


def prepare_group(
    bootstrap: str,
    topic: str,
    group: str,
    *,
    from_beginning: bool,
    note: Callable[[str], None],
    properties: Properties = NO_PROPERTIES,
) -> None:
    """Lets a group without offsets in the topic begin at the first record, and prints notes for new users.

    By default a share group begins after the newest record, and later continues from its start offset. Neither is
    visible in the records that are shown, hence the notes.
    """
    topic_of(reach(bootstrap, properties), topic)
    found_places = read_share_offsets(bootstrap, group, properties)
    if not found_places:
        other = group_type_of(bootstrap, group, properties)
        if other not in (None, SHARE):
            raise CommandFailed(f"group {group} is of type {other}, not a share group", BAD_USE)
    places = [place for place in found_places if place.topic == topic]
    has_place = any(place.start_offset >= 0 for place in places)
    if from_beginning and has_place:
        note(
            f"group {group} already has start offsets in {topic} and continues from there; "
            f"kshare groups reset {group} --topic {topic} --to-earliest moves it to the first record"
        )
    elif from_beginning:
        alter_group_configs(bootstrap, group, {AUTO_OFFSET_RESET: "earliest"}, properties)
    elif not has_place:
        try:
            found = describe_configs(bootstrap, GROUP, group, [AUTO_OFFSET_RESET], properties)
        except Refused:  # a user who may not describe them may consume
            return
        if found.get(AUTO_OFFSET_RESET) == "latest":
            note(
                f"group {group} is new in {topic} and receives only records produced from now on "
                f"({AUTO_OFFSET_RESET}=latest); use --from-beginning to begin with the first record"
            )


def _delivery_count_limit(bootstrap: str, group: str, properties: Properties) -> int:
    """The group's limit; the least possible one if the user may not describe the group's configs."""
    try:
        found = describe_configs(bootstrap, GROUP, group, [DELIVERY_COUNT_LIMIT], properties)
    except Refused:
        return LEAST_DELIVERY_COUNT_LIMIT
    return int(found.get(DELIVERY_COUNT_LIMIT) or LEAST_DELIVERY_COUNT_LIMIT)


def _at_last_delivery(messages: list[Message], delivery_count_limit: int) -> tuple[list[Message], list[Message]]:
    """The messages that a release would archive, and the others."""
    last: list[Message] = []
    others: list[Message] = []
    for message in messages:
        is_last = (message.delivery_count() or 0) >= delivery_count_limit
        (last if is_last else others).append(message)
    return last, others


def _take(
    consumer: ShareConsumer,
    wanted: list[Message],
    surplus: list[Message],
    answer: AcknowledgeType,
    show: Callable[[Message], None],
) -> int:
    """Acknowledges and commits before the records are shown: the acknowledgements of shown records are durable."""
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
