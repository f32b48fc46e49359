"""What lies where in the store of a leader node.

Every key of a partition starts with its topic id (16 bytes) and its number (4 bytes, big endian), so a partition or a
whole topic is one range of keys in each family.

| family     | rest of the key             | value |
|------------|-----------------------------|-------|
| log        | base offset, 8 bytes        | the batch as it is served |
| producers  | producer id, 8 bytes        | what `producers.encode_producer` writes |
| timestamps | a timestamp + 2^63, 8 bytes | two offsets, 8 bytes each: no record below the first is newer than the    |
|            |                             | timestamp; the second is the base offset of the batch that has it |
| meta       | "cluster.id", no partition  | the id of the cluster whose records lie here |
"""

from __future__ import annotations

import struct

from kshare_core.identifiers import TOPIC_ID_LENGTH, TopicPartition

LOG = "log"
PRODUCERS = "producers"
TIMESTAMPS = "timestamps"
META = "meta"
PARTITION_FAMILIES = (LOG, PRODUCERS, TIMESTAMPS)

CLUSTER_ID_KEY = b"cluster.id"

_PREFIX_LENGTH = TOPIC_ID_LENGTH + 4
_LONG = struct.Struct(">Q")
_TIMESTAMP_SHIFT = 1 << 63
_TIMESTAMP_VALUE = struct.Struct(">qq")


def partition_prefix(key: TopicPartition) -> bytes:
    """The start of every key of the partition."""
    return key.topic_id + key.partition.to_bytes(4, "big")


def after_prefix(prefix: bytes) -> bytes | None:
    """The first key after all that start with `prefix`; None where there can be none."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> (8 * len(prefix)) else number.to_bytes(len(prefix), "big")


def end_of_topic(topic_id: bytes) -> bytes:
    """A key after all keys of the topic."""
    return after_prefix(topic_id) or topic_id + b"\xff" * 13


def long_key(prefix: bytes, number: int) -> bytes:
    """The key of a base offset or a producer id; neither is negative."""
    return prefix + _LONG.pack(number)


def number_of(key: bytes) -> int:
    """The inverse of `long_key`."""
    (number,) = _LONG.unpack_from(key, _PREFIX_LENGTH)
    return int(number)


def timestamp_key(prefix: bytes, timestamp_ms: int) -> bytes:
    return prefix + _LONG.pack(timestamp_ms + _TIMESTAMP_SHIFT)


def timestamp_of(key: bytes) -> int:
    """The inverse of `timestamp_key`."""
    return number_of(key) - _TIMESTAMP_SHIFT


def timestamp_value(end_offset: int, newest_base_offset: int) -> bytes:
    return _TIMESTAMP_VALUE.pack(end_offset, newest_base_offset)


def parse_timestamp_value(value: bytes) -> tuple[int, int]:
    """The inverse of `timestamp_value`."""
    end_offset, newest_base_offset = _TIMESTAMP_VALUE.unpack(value)
    return end_offset, newest_base_offset
