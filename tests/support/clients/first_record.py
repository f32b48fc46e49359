"""The time until a member of a share group gets its first record, with confluent-kafka; and the machine's part of it.

Each sample makes a client of its own, as an application that starts does, and ends when its first poll brings records.
`plain_s` is the same without a group: an ordinary consumer that is given its partition. Both make a client, connect,
ask for metadata and fetch, so on a machine that is busy with other things both grow.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from support.clients.delivery import ONE_BY_ONE, RELEASE, Reader, new_group, new_topic, produce

PARTITIONS = 4
RECORDS = 500
"""In each partition: more than the members of a measurement take, one in a batch, for a batch goes to one member."""
TIMEOUT_S = 30.0
POLL_S = 0.05


def full_topic(bootstrap: str) -> str:
    topic = new_topic(bootstrap, PARTITIONS)
    for partition in range(PARTITIONS):
        produce(bootstrap, topic, map(str, range(RECORDS)), partition, settings=ONE_BY_ONE)
    return topic


def first_record_s(bootstrap: str, group: str, topic: str, **settings: object) -> tuple[float, Reader]:
    """Seconds, and the member, which holds what it was given."""
    began = time.monotonic()
    reader = Reader(bootstrap, group, topic, **settings)
    while not reader.poll(POLL_S):
        assert time.monotonic() - began < TIMEOUT_S
    return time.monotonic() - began, reader


def plain_s(bootstrap: str, topic: str) -> float:
    """See the module's text."""
    began = time.monotonic()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "plain", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while consumer.poll(POLL_S) is None:
        assert time.monotonic() - began < TIMEOUT_S
    taken = time.monotonic() - began
    consumer.close()
    return taken


def of_new_groups(bootstrap: str, topic: str, times: int) -> list[float]:
    """One sample for each of so many new groups, one after the other, of a `full_topic`."""
    taken = []
    for _ in range(times):
        seconds, reader = first_record_s(bootstrap, new_group(bootstrap), topic)
        taken.append(seconds)
        reader.settle(RELEASE)
        reader.close()
    return taken


def of_joining_members(bootstrap: str, topic: str, times: int) -> list[float]:
    """One sample for each of so many members that join a running group of a `full_topic` and stay.

    Also where several join within share.assignment.interval.ms; the others keep what they have until it is over.
    """
    group, taken = new_group(bootstrap), []
    with ExitStack() as stack:
        _, running = first_record_s(bootstrap, group, topic, max_poll_records=10)
        stack.callback(running.close)
        running.settle()
        for _ in range(times):
            seconds, reader = first_record_s(bootstrap, group, topic, max_poll_records=10)
            stack.callback(reader.close)
            taken.append(seconds)
            reader.settle()
    return taken
