"""Topic ids, share-partition keys and the hash that places a share-partition's state.

`java_string_hash` is Java's String.hashCode, because Kafka places `group:topicId:partition` by it
(ShareCoordinatorService.partitionFor).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

TOPIC_ID_LENGTH = 16
STATE_PARTITIONS_CACHED = 10_000
"""Share-partitions whose place is remembered; the hash walks over every character of the key."""


class TopicPartition(NamedTuple):
    """A partition of a topic; `topic_id` is the 16 bytes of a Kafka Uuid."""

    topic_id: bytes
    partition: int


class SharePartitionKey(NamedTuple):
    """A share-partition: a group's view of a topic partition."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)

    def __str__(self) -> str:
        return f"{self.group_id}:{topic_id_text(self.topic_id)}:{self.partition}"


def topic_id_text(topic_id: bytes) -> str:
    """A topic id as Kafka prints it: URL-safe base64 without padding (org.apache.kafka.common.Uuid.toString)."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def parse_topic_id(text: str) -> bytes:
    """The inverse of `topic_id_text`; ValueError where the text is not 22 characters of URL-safe base64."""
    raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(raw) != TOPIC_ID_LENGTH:
        raise ValueError(f"a topic id has 16 bytes; {text!r} has {len(raw)}")
    return raw


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: signed, 32 bits, over UTF-16 code units."""
    units: Sequence[int] = text.encode() if text.isascii() else memoryview(text.encode("utf-16")[2:]).cast("H")
    while len(_POWERS_OF_31) < len(units):
        _POWERS_OF_31.append(_POWERS_OF_31[-1] * 31 & 0xFFFFFFFF)
    value: int = sum(map(mul, units[::-1], _POWERS_OF_31)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


_POWERS_OF_31 = [1]
"""Their lower 32 bits, as many as were needed so far."""


@lru_cache(maxsize=STATE_PARTITIONS_CACHED)
def state_partition_of(key: SharePartitionKey, state_partition_count: int) -> int:
    """The partition of `__share_group_state` that holds the share-partition's state (Kafka's Utils.abs of the hash)."""
    hashed = java_string_hash(str(key))
    return (0 if hashed == -(1 << 31) else abs(hashed)) % state_partition_count


def group_partition_of(group_id: str, group_partition_count: int) -> int:
    """The group partition that a group belongs to, as Kafka's GroupMetadataManager.partitionFor (Utils.abs)."""
    hashed = java_string_hash(group_id)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % group_partition_count
