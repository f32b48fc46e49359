"""`kshare consume`: takes records of a share group, shows them with their delivery counts, and acknowledges each.

Over confluent-kafka's ShareConsumer in explicit mode. A poll may bring more records than are still wanted: these are
released, not shown, so that others get them. Records that are released come back to whoever polls next, so a command
that releases ends with the first records that it gets: it would take its own again until they are archived.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach, topic_of
from kshare.commands.groups.group_requests import (
    GROUP_RESOURCE,
    alter_group_configs,
    describe_configs,
    read_share_offsets,
)
from kshare.commands.topics import kafka_failure
from kshare.failure import CommandFailed

POLL_S = 0.25
AUTO_OFFSET_RESET = "share.auto.offset.reset"


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

    Without `limit` and `timeout_s`, until it is interrupted (KeyboardInterrupt leaves the group in good order); with
    RELEASE, until the first records were given back. CommandFailed where there is no such topic.
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
                if answer is AcknowledgeType.RELEASE:
                    break
            elif timeout_s is not None and time.monotonic() - heard_at >= timeout_s:
                break
    except KeyboardInterrupt:
        pass
    except KafkaException as error:
        raise kafka_failure(f"consuming {topic} as group {group}", error) from None
    finally:
        consumer.close()
    return taken


def prepare_group(
    bootstrap: str,
    topic: str,
    group: str,
    *,
    from_beginning: bool,
    note: Callable[[str], None],
    properties: Properties = NO_PROPERTIES,
) -> None:
    """Makes a group that was nowhere in the topic begin at its first record, and notes what a new user may not expect.

    A share group begins at the newest record, and keeps its place from then on; neither can be seen in what is shown.
    """
    topic_of(reach(bootstrap, properties), topic)
    places = [place for place in read_share_offsets(bootstrap, group, properties) if place.topic == topic]
    has_place = any(place.start_offset >= 0 for place in places)
    if from_beginning and has_place:
        note(
            f"group {group} has its place in {topic} already and goes on there; "
            f"kshare groups reset {group} --topic {topic} --to-earliest takes it back to the first record"
        )
    elif from_beginning:
        alter_group_configs(bootstrap, group, {AUTO_OFFSET_RESET: "earliest"}, properties)
    elif not has_place:
        found = describe_configs(bootstrap, GROUP_RESOURCE, group, [AUTO_OFFSET_RESET], properties)
        if found.get(AUTO_OFFSET_RESET) == "latest":
            note(
                f"group {group} is new in {topic} and begins with records that are produced from now on "
                f"({AUTO_OFFSET_RESET}=latest); --from-beginning begins with the first record"
            )


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
