"""Topic ids, share-partition keys and the hash that assigns a share-partition's state to a partition.

`java_string_hash` is Java's String.hashCode, because Kafka assigns `group:topicId:partition` by it
(ShareCoordinatorService.partitionFor).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

TOPIC_ID_LENGTH = 16
_TOPIC_ID_TEXT = re.compile("[A-Za-z0-9_-]{22}")
ZERO_TOPIC_ID = bytes(TOPIC_ID_LENGTH)
"""Where a message has no topic id (Kafka's Uuid.ZERO_UUID)."""
TOPICS_OF_GROUPS_REMEMBERED = 10_000
"""Cached pairs of group and topic, with shared names and a known hash; hashing visits every character of both names."""
PARTITION_NUMBERS_REMEMBERED = 10_000


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


def key_to_keep(group_id: str, topic_id: bytes, partition: int) -> SharePartitionKey:
    """A key that shares its name objects with other keys of its group and topic, for keys that are kept in large
    numbers. Comparing an object with itself also skips its text."""
    names = _topic_of_group(group_id, topic_id)
    return SharePartitionKey(names.group_id, names.topic_id, partition)


def topic_id_text(topic_id: bytes) -> str:
    """A topic id as Kafka prints it: URL-safe base64 without padding (org.apache.kafka.common.Uuid.toString)."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def parse_topic_id(text: str) -> bytes:
    """The inverse of `topic_id_text`; ValueError if the text is not 22 characters of URL-safe base64."""
    if _TOPIC_ID_TEXT.fullmatch(text) is None:  # b64decode also accepts + and /, which Kafka's Uuid.fromString rejects
        raise ValueError(f"a topic id is 22 characters of URL-safe base64; {text!r} is not")
    return base64.urlsafe_b64decode(text + "==")


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: signed, 32 bits, over UTF-16 code units."""
    units: Sequence[int] = text.encode() if text.isascii() else memoryview(text.encode("utf-16")[2:]).cast("H")
    while len(_POWERS_OF_31) < len(units):
        _POWERS_OF_31.append(_POWERS_OF_31[-1] * 31 & _UNSIGNED)
    value: int = sum(map(mul, units[::-1], _POWERS_OF_31)) & _UNSIGNED
    return value - (1 << 32) if value & _SIGN_BIT else value


_UNSIGNED = 0xFFFFFFFF
_SIGN_BIT = 0x80000000
_POWERS_OF_31 = [1]
"""The lower 32 bits of the powers of 31, as many as were needed so far."""


def state_partition_of(key: SharePartitionKey, state_partition_count: int) -> int:
    """The partition of `__share_group_state` that holds the share-partition's state (Kafka's Utils.abs of the hash).

    The keys of all share-partitions of a topic have the same prefix, so hashes are cached per topic. With 100,000
    share-partitions, a cache entry per share-partition would cost more than the few multiplications of its last digits.
    """
    group_id, topic_id, partition = key
    power, digits_hash = _digits(partition)
    hashed = (_topic_of_group(group_id, topic_id).hash_before_partition * power + digits_hash) & _UNSIGNED
    if hashed & _SIGN_BIT:
        hashed = 0 if hashed == _SIGN_BIT else _UNSIGNED + 1 - hashed
    return hashed % state_partition_count


class _TopicOfGroup(NamedTuple):
    group_id: str
    topic_id: bytes
    hash_before_partition: int
    """The hash of "group:topicId:", as an unsigned number."""


@lru_cache(maxsize=TOPICS_OF_GROUPS_REMEMBERED)
def _topic_of_group(group_id: str, topic_id: bytes) -> _TopicOfGroup:
    hashed = java_string_hash(f"{group_id}:{topic_id_text(topic_id)}:") & _UNSIGNED
    return _TopicOfGroup(group_id, topic_id, hashed)


@lru_cache(maxsize=PARTITION_NUMBERS_REMEMBERED)
def _digits(partition: int) -> tuple[int, int]:
    """The effect of the digits on the hash of the text before them: a factor and a summand."""
    digits = str(partition)
    return 31 ** len(digits), java_string_hash(digits)


def group_partition_of(group_id: str, group_partition_count: int) -> int:
    """The group partition of a group, as in Kafka's GroupMetadataManager.partitionFor (Utils.abs)."""
    hashed = java_string_hash(group_id)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % group_partition_count
