"""The layout of a leader node's store: the column families, their keys and their values.

Every key of a partition starts with its topic id (16 bytes) and its number (4 bytes, big endian), so a partition or a
whole topic is one range of keys in each family.

| family     | rest of the key             | value |
|------------|-----------------------------|-------|
| log        | base offset, 8 bytes        | the batch as it is served, or its place in a file |
| producers  | producer id, 8 bytes        | see `producers.encode_producer` |
| timestamps | a timestamp + 2^63, 8 bytes | an offset, 8 bytes: no record below it is newer than the timestamp |
| segments   | base offset, 8 bytes        | see `segments.encode_segment` |
| positions  | nothing                     | see `segments.encode_positions` |
| positions  | "validated-from"            | an offset, 8 bytes: see `old_batches` |
| aborted_transactions | offset of the marker, 8 bytes | producer id, first offset, and the last stable offset after |
|            |                             | the marker, 8 bytes each |
| dead_letters | source topic id, partition, group | of a partition that takes dead letters: what                     |
|            |                             | `dead_letters.appended.encode_row` writes |
| unfinished_dead_letters | group          | empty: the share-partition may have Archiving records |
| leader_epochs | leader epoch, 8 bytes    | the offset of the first batch that it wrote, 8 bytes |
| meta       | "cluster.id", no partition  | the id of the cluster whose records lie here |
| meta       | "leader.node.id", no partition | the id of the leader whose records lie here, as decimal digits |
| meta       | "producer.id.end", no partition | see `producers.seen_ids`, 8 bytes |
| meta       | "node.epoch", no partition | see `engine.registered_epoch`, 8 bytes |
| meta       | "catalog.position", no partition | a version of the catalog, 8 bytes, and a start: see `stray_topics` |
| meta       | "stray-topic/", topic id    | empty: see `stray_topics` |
"""

from __future__ import annotations

import struct

from kshare_core.identifiers import TOPIC_ID_LENGTH, TopicPartition

LOG = "log"
PRODUCERS = "producers"
TIMESTAMPS = "timestamps"
ABORTED_TRANSACTIONS = "aborted_transactions"
SEGMENTS = "segments"
POSITIONS = "positions"
DEAD_LETTERS = "dead_letters"
UNFINISHED_DEAD_LETTERS = "unfinished_dead_letters"
LEADER_EPOCHS = "leader_epochs"
META = "meta"
PARTITION_FAMILIES = (
    LOG,
    PRODUCERS,
    TIMESTAMPS,
    ABORTED_TRANSACTIONS,
    SEGMENTS,
    POSITIONS,
    DEAD_LETTERS,
    UNFINISHED_DEAD_LETTERS,
    LEADER_EPOCHS,
)

CLUSTER_ID_KEY = b"cluster.id"
NODE_ID_KEY = b"leader.node.id"
PRODUCER_ID_END_KEY = b"producer.id.end"
NODE_EPOCH_KEY = b"node.epoch"

PARTITION_PREFIX_BYTES = TOPIC_ID_LENGTH + 4
"""The length of `partition_prefix`."""
_LONG = struct.Struct(">Q")
_TIMESTAMP_SHIFT = 1 << 63
_TIMESTAMP_VALUE = struct.Struct(">q")
_ABORTED_VALUE = struct.Struct(">qqq")


def partition_prefix(key: TopicPartition) -> bytes:
    """The start of every key of the partition."""
    return key.topic_id + key.partition.to_bytes(4, "big")


def after_prefix(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with `prefix`; None where `prefix` has no such key."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> (8 * len(prefix)) else number.to_bytes(len(prefix), "big")


def end_of_topic(topic_id: bytes) -> bytes:
    """A key after all keys of the topic."""
    return after_prefix(topic_id) or topic_id + b"\xff" * 13


def long_key(prefix: bytes, number: int) -> bytes:
    """The key of a base offset, a producer id or a leader epoch; none is negative."""
    return prefix + _LONG.pack(number)


def number_of(key: bytes) -> int:
    """The inverse of `long_key`."""
    (number,) = _LONG.unpack_from(key, PARTITION_PREFIX_BYTES)
    return int(number)


def timestamp_key(prefix: bytes, timestamp_ms: int) -> bytes:
    return prefix + _LONG.pack(timestamp_ms + _TIMESTAMP_SHIFT)


def timestamp_of(key: bytes) -> int:
    """The inverse of `timestamp_key`."""
    return number_of(key) - _TIMESTAMP_SHIFT


def timestamp_value(end_offset: int) -> bytes:
    return _TIMESTAMP_VALUE.pack(end_offset)


def parse_timestamp_value(value: bytes) -> int:
    """The inverse of `timestamp_value`; struct.error where the bytes are none."""
    (end_offset,) = _TIMESTAMP_VALUE.unpack(value)
    return int(end_offset)


def offset_value(offset: int) -> bytes:
    return _LONG.pack(offset)


def parse_offset_value(value: bytes) -> int:
    """The inverse of `offset_value`; struct.error where the bytes are none."""
    (offset,) = _LONG.unpack(value)
    return int(offset)


def aborted_value(producer_id: int, first_offset: int, last_stable_offset: int) -> bytes:
    return _ABORTED_VALUE.pack(producer_id, first_offset, last_stable_offset)


def parse_aborted_value(value: bytes) -> tuple[int, int, int]:
    """The inverse of `aborted_value`; struct.error where the bytes are none."""
    producer_id, first_offset, last_stable_offset = _ABORTED_VALUE.unpack(value)
    return producer_id, first_offset, last_stable_offset
