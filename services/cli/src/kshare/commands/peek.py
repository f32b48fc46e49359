"""`kshare peek`: shows records without acquiring them; no group, lock or delivery count changes.

Records are read with plain Fetch requests, from the first record, an offset, or a share group's start offset, up to
the end of the log at the start of the command.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.groups.group_requests import SHARE, group_type_of, read_share_offsets
from kshare.commands.offsets import EARLIEST, LATEST, NamedPartition, look_up_offsets
from kshare.commands.topics import kafka_failure
from kshare.failure import BAD_USE, CommandFailed
from kshare_wire.generated.responses.metadata import MetadataResponseTopic

POLL_S = 0.2
BATCH = 500
EMPTY_POLLS_LIMIT = 50
"""Consecutive polls without a record after which the command fails: 10 s."""


def peek(
    bootstrap: str,
    topic: MetadataResponseTopic,
    *,
    group: str | None,
    partition: int | None,
    offset: int | None,
    limit: int,
    show: Callable[[Message], None],
    properties: Properties = NO_PROPERTIES,
) -> int:
    """Shows at most `limit` records; returns their number. CommandFailed if the partition does not exist."""
    name = str(topic.name)
    known = [int(each.partition_index) for each in topic.partitions]
    if partition is not None and partition not in known:
        raise CommandFailed(f"topic {name} has no partition {partition}; it has {len(known)} partitions", BAD_USE)
    partitions = [(name, each) for each in sorted(known) if partition in (None, each)]
    ends = look_up_offsets(bootstrap, partitions, LATEST, properties)
    begins = _begins(bootstrap, partitions, group, offset, properties)
    return _read(bootstrap, begins, ends, limit, show, properties)


def _begins(
    bootstrap: str, partitions: list[NamedPartition], group: str | None, offset: int | None, properties: Properties
) -> dict[NamedPartition, int]:
    """The first offset to read, by partition: never before the log's first record."""
    first = look_up_offsets(bootstrap, partitions, EARLIEST, properties)
    wanted: dict[NamedPartition, int] = {}
    if group is not None:
        found = read_share_offsets(bootstrap, group, properties)
        if not found and group_type_of(bootstrap, group, properties) != SHARE:
            raise CommandFailed(f"there is no share group {group}; kshare groups list shows all groups", BAD_USE)
        wanted = {(each.topic, each.partition): each.start_offset for each in found}
    elif offset is not None:
        wanted = dict.fromkeys(partitions, offset)
    return {each: max(first[each], wanted.get(each, -1)) for each in partitions}


def _read(
    bootstrap: str,
    begins: dict[NamedPartition, int],
    ends: dict[NamedPartition, int],
    limit: int,
    show: Callable[[Message], None],
    properties: Properties,
) -> int:
    unread = {each for each, begin in begins.items() if begin < ends[each]}
    shown = empty_polls = 0
    if not unread:
        return 0
    try:
        consumer = Consumer(
            {
                **properties,
                "bootstrap.servers": bootstrap,
                "client.id": "kshare-cli",
                "group.id": "kshare-peek",  # librdkafka requires an id; no group is joined and nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(*each, begins[each]) for each in sorted(unread)])
    except (KafkaException, ValueError) as error:
        raise CommandFailed(f"reading {next(iter(begins))[0]} failed: {error}") from None
    try:
        while unread and shown < limit and empty_polls < EMPTY_POLLS_LIMIT:
            messages = consumer.consume(BATCH, POLL_S)
            empty_polls = 0 if messages else empty_polls + 1
            for message in messages:
                is_wanted = _is_wanted(message, unread, ends)
                if is_wanted and shown < limit:
                    show(message)
                    shown += 1
    finally:
        consumer.close()
    if unread and shown < limit:
        raise CommandFailed(f"no records arrived for {EMPTY_POLLS_LIMIT * POLL_S:g} s after the first {shown}")
    return shown


def _is_wanted(message: Message, unread: set[NamedPartition], ends: dict[NamedPartition, int]) -> bool:
    """Whether the record is before the log's end at the start; removes completely read partitions from `unread`."""
    each = (str(message.topic()), int(message.partition() or 0))
    error = message.error()
    if error is not None:
        if message.topic() is None and error.name() == "GROUP_AUTHORIZATION_FAILED":
            return False  # librdkafka looks for the coordinator of the group that it is given, and reads without one
        if error.name() != "_PARTITION_EOF":
            raise kafka_failure(f"reading {each[0]}-{each[1]}", KafkaException(error))
        unread.discard(each)
        return False
    offset = int(message.offset() or 0)
    if offset >= ends[each] - 1:
        unread.discard(each)
    return offset < ends[each]
