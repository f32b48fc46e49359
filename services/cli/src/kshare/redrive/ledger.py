"""The notes of what was moved: runs of offsets in the compacted topic `__kshare_redrive`.

A note belongs to SEGMENT_OFFSETS offsets of one partition; its key is `topic id/partition/segment`, its value says all
runs of moved offsets there, so a later note of the same key replaces it and the topic stays small. The id, not the
name: another topic of the same name has other records. A note is written in the transaction that moves the records.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kshare.redrive.request import LEDGER_TOPIC, RedriveFailed
from kshare_kafka_client.properties import open_consumer, reader_properties
from kshare_kafka_client.range_reader import OffsetRange, read_range
from kshare_kafka_client.topics import Partition, end_offsets, failure, partitions_of, start_offsets

SEGMENT_OFFSETS = 4096
VERSION = 1
LEDGER_PARTITION = Partition(LEDGER_TOPIC, 0)

Runs = list[tuple[int, int]]
"""First and last offset, ascending, not touching."""


class MovedOffsets:
    """Which offsets of one partition were moved."""

    def __init__(self, segments: Mapping[int, Runs] | None = None) -> None:
        self._segments: dict[int, Runs] = dict(segments or {})

    def __contains__(self, offset: int) -> bool:
        runs = self._segments.get(offset // SEGMENT_OFFSETS, [])
        index = bisect_right(runs, offset, key=_first) - 1
        return index >= 0 and offset <= runs[index][1]

    def with_offsets(self, offsets: Iterable[int]) -> dict[int, Runs]:
        """The segments that change when `offsets` are moved too, as they are then; nothing is changed here."""
        changed: dict[int, Runs] = {}
        for offset in offsets:
            segment = offset // SEGMENT_OFFSETS
            if segment not in changed:
                changed[segment] = list(self._segments.get(segment, []))
            changed[segment].append((offset, offset))
        return {segment: joined(runs) for segment, runs in changed.items()}

    def note(self, changed: Mapping[int, Runs]) -> None:
        """The segments are durable."""
        self._segments.update(changed)


def _first(run: tuple[int, int]) -> int:
    return run[0]


def joined(runs: Runs) -> Runs:
    """The same offsets in as few runs as can be."""
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
    """The topic's name is for people."""
    return json.dumps({"version": VERSION, "topic": topic, "moved": runs}, separators=(",", ":")).encode()


def parse_note(key: bytes, value: bytes) -> tuple[str, int, int, Runs]:
    """Topic id, partition, segment and runs; RedriveFailed where it is no note: then nobody knows what was moved."""
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
    """Makes the topic where it is not there yet."""
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
    """What was moved of a partition.

    Up to the end of the log, not to the last stable offset: a transaction of somebody else that is open must not hide
    our own notes behind it. The range reader waits until it has ended. RedriveFailed where the topic is not there and
    `must_exist`.
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
    for messages in read_range(OffsetRange(*LEDGER_PARTITION, start, end), committed, timeout_s=timeout_s):
        for message in messages:
            key, value = _key_and_value(message)
            noted_id, noted_partition, segment, runs = parse_note(key, value)
            if (noted_id, noted_partition) == (topic_id, partition):
                segments[segment] = runs
    return MovedOffsets(segments)


def _key_and_value(message: Any) -> tuple[bytes, bytes]:
    return message.key() or b"", message.value() or b""
