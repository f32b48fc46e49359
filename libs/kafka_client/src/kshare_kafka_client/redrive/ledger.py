"""The notes of moved records: runs of offsets in the compacted topic `__kshare_redrive`.

A note covers SEGMENT_OFFSETS offsets of one partition. Its key is `topic id/partition/segment`, its value has all runs
of moved offsets in the segment, so a later note replaces it and the topic stays small. The key has the topic's id
because another topic of the same name has other records. The transaction that moves records also writes their note.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kshare_kafka_client.properties import open_consumer, reader_properties
from kshare_kafka_client.range_reader import OffsetRange, OffsetsLost, read_range
from kshare_kafka_client.redrive.request import LEDGER_TOPIC, RedriveFailed
from kshare_kafka_client.topics import Partition, end_offsets, failure, partitions_of, start_offsets

SEGMENT_OFFSETS = 4096
VERSION = 1
LEDGER_PARTITION = Partition(LEDGER_TOPIC, 0)

Runs = list[tuple[int, int]]
"""First and last offset, ascending, not touching."""


class MovedOffsets:
    """The moved offsets of one partition."""

    def __init__(self, segments: Mapping[int, Runs] | None = None) -> None:
        self._segments: dict[int, Runs] = dict(segments or {})

    def __contains__(self, offset: int) -> bool:
        runs = self._segments.get(offset // SEGMENT_OFFSETS, [])
        index = bisect_right(runs, offset, key=_first) - 1
        return index >= 0 and offset <= runs[index][1]

    def with_offsets(self, offsets: Iterable[int]) -> dict[int, Runs]:
        """The new values of the segments that change when `offsets` are moved; nothing is modified."""
        changed: dict[int, Runs] = {}
        for offset in offsets:
            segment = offset // SEGMENT_OFFSETS
            if segment not in changed:
                changed[segment] = list(self._segments.get(segment, []))
            changed[segment].append((offset, offset))
        return {segment: joined(runs) for segment, runs in changed.items()}

    def note(self, changed: Mapping[int, Runs]) -> None:
        """Applies segments that are durable."""
        self._segments.update(changed)


def _first(run: tuple[int, int]) -> int:
    return run[0]


def joined(runs: Runs) -> Runs:
    """The same offsets in the fewest runs."""
    found: Runs = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def note_key(topic_id: str, partition: int, segment: int) -> bytes:
    return f"{topic_id}/{partition}/{segment}".encode()


def note_value(topic: str, runs: Runs) -> bytes:
    """The value of a note; the topic's name in it is for readers only."""
    return json.dumps({"version": VERSION, "topic": topic, "moved": runs}, separators=(",", ":")).encode()


def parse_note(key: bytes, value: bytes) -> tuple[str, int, int, Runs]:
    """Topic id, partition, segment and runs; RedriveFailed for a malformed note, as its moved records are unknown."""
    try:
        topic_id, partition, segment = key.decode().split("/")
        found = json.loads(value)
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}")
        return topic_id, int(partition), int(segment), [(int(first), int(last)) for first, last in found["moved"]]
    except (ValueError, KeyError, TypeError) as problem:
        raise RedriveFailed(
            f"topic {LEDGER_TOPIC} has a record that is no note of a redrive: {key!r}: {problem}"
        ) from None


def create_ledger(properties: Mapping[str, str]) -> None:
    """Creates the topic if it does not exist."""
    admin = AdminClient(dict(properties))
    topic = NewTopic(LEDGER_TOPIC, num_partitions=1, config={"cleanup.policy": "compact"})
    (created,) = admin.create_topics([topic], operation_timeout=15.0, request_timeout=15.0).values()
    try:
        created.result(20)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise failure(f"creating topic {LEDGER_TOPIC}", error) from None


def read_ledger(
    properties: Mapping[str, str], topic_id: str, partition: int, *, timeout_s: float, must_exist: bool
) -> MovedOffsets:
    """The moved offsets of a partition.

    It reads to the end of the log, not to the last stable offset: an open transaction of another run must not hide
    notes after it. The range reader waits until that transaction has ended. RedriveFailed if the topic is missing and
    `must_exist`, or loses notes meanwhile.
    """
    ends = reader_properties({**properties, "isolation.level": "read_uncommitted"})
    consumer = open_consumer(ends)
    try:
        if not partitions_of(consumer, [LEDGER_TOPIC]):
            if must_exist:
                raise RedriveFailed(f"topic {LEDGER_TOPIC}, which says what was moved, cannot be found")
            return MovedOffsets()
        start = start_offsets(consumer, [LEDGER_PARTITION])[LEDGER_PARTITION]
        end = end_offsets(consumer, [LEDGER_PARTITION])[LEDGER_PARTITION]
    finally:
        consumer.close()
    committed = {**properties, "isolation.level": "read_committed"}
    segments: dict[int, Runs] = {}
    try:
        for messages in read_range(OffsetRange(*LEDGER_PARTITION, start, end), committed, timeout_s=timeout_s):
            for message in messages:
                key, value = _key_and_value(message)
                noted_id, noted_partition, segment, runs = parse_note(key, value)
                if (noted_id, noted_partition) == (topic_id, partition):
                    segments[segment] = runs
    except OffsetsLost:
        raise RedriveFailed(
            f"records of topic {LEDGER_TOPIC}, which says what was moved, were removed while it was read: without them "
            "another run moves records again"
        ) from None
    return MovedOffsets(segments)


def _key_and_value(message: Any) -> tuple[bytes, bytes]:
    return message.key() or b"", message.value() or b""
