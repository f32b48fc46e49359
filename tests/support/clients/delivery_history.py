"""Reads `__share_delivery_history` with an ordinary consumer, waits for events of one share-partition, and audits it.

`assert_history_is_sound` checks the history of a real cluster after a load with kills: no rule is broken, and every
offset is accounted for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kshare.audit.direct import audit_records
from kshare.audit.findings import Severity, SharePartitionAudit
from kshare_core.delivery_history import (
    HISTORY_TOPIC,
    DeliveryEvent,
    EventType,
    HistoryRecord,
    decode_history_record,
)

TIMEOUT_S = 20.0
HISTORY_ON = {"kshare.delivery.history.enable": "true", "kshare.delivery.history.topic.num.partitions": "2"}


def read_history(bootstrap: str) -> list[HistoryRecord]:
    """All records that are there now, those of one share-partition in their order."""
    partitions = _partitions(bootstrap)
    if not partitions:
        return []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-history", "enable.partition.eof": True})
    found: list[HistoryRecord] = []
    try:
        ends = {part: consumer.get_watermark_offsets(TopicPartition(HISTORY_TOPIC, part), 10) for part in partitions}
        left = {part: high for part, (low, high) in ends.items() if high > low}
        consumer.assign([TopicPartition(HISTORY_TOPIC, part, 0) for part in left])
        deadline = time.monotonic() + TIMEOUT_S
        while left:
            assert time.monotonic() < deadline, f"{HISTORY_TOPIC} could not be read to its ends {left}"
            message: Any = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            found.append(decode_history_record(message.value()))
            if message.offset() + 1 >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
    finally:
        consumer.close()
    return found


def _partitions(bootstrap: str) -> list[int]:
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return sorted(topics[HISTORY_TOPIC].partitions) if HISTORY_TOPIC in topics else []


def of_share_partition(
    records: Sequence[HistoryRecord], group: str, topic: str, partition: int = 0
) -> list[HistoryRecord]:
    return [record for record in records if (record.group, record.topic, record.partition) == (group, topic, partition)]


def events_of(records: Sequence[HistoryRecord]) -> list[DeliveryEvent]:
    return [event for record in records for event in record.events]


def wait_for_events(
    bootstrap: str, group: str, topic: str, is_complete: Callable[[list[DeliveryEvent]], bool], partition: int = 0
) -> list[HistoryRecord]:
    """The records of a share-partition as soon as their events are complete."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            records = of_share_partition(read_history(bootstrap), group, topic, partition)
        except KafkaException:  # a partition has no leader just now
            records = []
        events = events_of(records)
        if is_complete(events):
            return records
        assert time.monotonic() < deadline, "\n".join(map(str, events))
        time.sleep(0.1)


def short(event: DeliveryEvent) -> tuple[Any, ...]:
    """What a test compares: the event, its run, its delivery count and its reason; of others what they have."""
    if event.event in (EventType.LOADED, EventType.START_OFFSET_MOVED):
        return (str(event.event), event.start_offset, event.reason)
    if event.event is EventType.UNLOADED:
        return (str(event.event),)
    return (str(event.event), event.first_offset, event.last_offset, event.delivery_count, event.reason)


def _starts_at(offset: int, events: list[DeliveryEvent]) -> bool:
    """Whether the newest start offset that was told is this one."""
    return max((event.start_offset for event in events if event.start_offset is not None), default=-1) == offset


def whole_history(bootstrap: str, group: str, topic: str, ends: Sequence[int]) -> list[HistoryRecord]:
    """The history, as soon as it tells that each share-partition starts at the end of its log."""
    for partition, end in enumerate(ends):
        wait_for_events(bootstrap, group, topic, partial(_starts_at, end), partition)
    return read_history(bootstrap)


def faults_of_history(
    bootstrap: str, group: str, topic: str, starts: Mapping[int, int], delivery_count_limit: int
) -> list[str]:
    """The faults that the audit finds in a group's history of a topic, in words.

    `starts`: by partition the group's start offset, which the history has to tell first, since it is published late.
    AssertionError where it does not, or where it has no delivery of a partition.
    """
    for partition, start in starts.items():
        wait_for_events(bootstrap, group, topic, partial(_starts_at, start), partition)
    records = [record for record in read_history(bootstrap) if (record.group, record.topic) == (group, topic)]
    audits = audit_records(records, lambda _: delivery_count_limit)
    assert [audit.end_offset for audit in audits if audit.deliveries] == [start for _, start in sorted(starts.items())]
    return [str(finding) for audit in audits for finding in audit.findings if finding.severity is Severity.FAULT]


def assert_history_is_sound(
    bootstrap: str, group: str, topic: str, ends: Sequence[int], delivery_count_limit: int
) -> list[SharePartitionAudit]:
    """The group accepted all records below `ends`; AssertionError with the findings."""
    records = whole_history(bootstrap, group, topic, ends)
    audits = audit_records(records, lambda _: delivery_count_limit)
    faults = [str(finding) for audit in audits for finding in audit.findings if finding.severity is Severity.FAULT]
    assert not faults, "\n".join(faults)
    assert [audit.end_offset for audit in audits] == list(ends)
    for audit in audits:
        assert sum(audit.offsets.values()) == audit.end_offset - audit.first_offset
        assert set(audit.offsets) <= {"accepted", "done"}, audit.offsets
        assert audit.deliveries > 0
    return audits
