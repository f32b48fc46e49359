"""The embedded protocol of clients in classic consumer groups (ConsumerProtocol of Kafka 4.3.1).

A member's metadata is its subscription (ConsumerProtocolSubscription), its assignment an assignment
(ConsumerProtocolAssignment). Both are big-endian, and begin with a version as int16; versions above 3 are read as 3:
- subscription: topics, user data, from version 1 on partitions that are owned, from 2 a generation, from 3 a rack;
- assignment: partitions, user data.
An array is an int32 count and its elements, a text an int16 length and UTF-8, bytes an int32 length (-1: null);
partitions are an array of a topic's name and an array of int32.

Members choose these bytes freely, so they are not trusted: malformed values are None.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_INT = 2**31 - 1
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")

NEWEST_VERSION = 3
SUBSCRIPTION_LIMIT = 10_000
"""Topic names in one member's subscription."""
FIRST_VERSION_WITH_OWNED_PARTITIONS, FIRST_VERSION_WITH_GENERATION, FIRST_VERSION_WITH_RACK = 1, 2, 3

NamedPartitions = tuple[tuple[str, tuple[int, ...]], ...]
"""Names of topics, each with partitions; a name may come twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """`owned`: the partitions that the member reports, empty if its version has no such field. An empty rack: none."""

    topics: tuple[str, ...]
    owned: NamedPartitions = ()
    rack_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """`user_data`: data of a custom assignor for its members."""

    partitions: NamedPartitions = ()
    user_data: bytes = b""


class _Malformed(Exception):
    """The bytes are malformed."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.version = min(self._short(), NEWEST_VERSION)
        if self.version < 0:
            raise _Malformed

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise _Malformed
        found = self._data[self._position : end]
        self._position = end
        return found

    def _short(self) -> int:
        (value,) = _SHORT.unpack(self._take(_SHORT.size))
        return int(value)

    def integer(self) -> int:
        (value,) = _INT.unpack(self._take(_INT.size))
        return int(value)

    def _count(self) -> int:
        count = self.integer()
        if count < 0:
            raise _Malformed
        return count

    def text(self) -> str:
        try:
            return self._take(self._short()).decode()
        except UnicodeDecodeError as error:
            raise _Malformed from error

    def nullable_text(self) -> str:
        length = self._short()
        if length == -1:
            return ""
        self._position -= _SHORT.size
        return self.text()

    def nullable_bytes(self) -> bytes:
        length = self.integer()
        return b"" if length == -1 else self._take(length)

    def texts(self, limit: int = MAX_INT) -> tuple[str, ...]:
        """Not more than `limit`."""
        count = self._count()
        if count > limit:
            raise _Malformed
        return tuple(self.text() for _ in range(count))

    def partitions(self) -> NamedPartitions:
        return tuple((self.text(), self._integers()) for _ in range(self._count()))

    def _integers(self) -> tuple[int, ...]:
        count = self._count()
        return struct.unpack(f">{count}i", self._take(count * _INT.size))


def version_of(metadata: bytes) -> int:
    """Of a subscription; 0 where the bytes are none."""
    try:
        return _Reader(metadata).version
    except _Malformed:
        return 0


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """The names, in order, whatever comes after them; None for more than SUBSCRIPTION_LIMIT, too."""
    try:
        return list(_Reader(metadata).texts(SUBSCRIPTION_LIMIT))
    except _Malformed:
        return None


def subscription_of(metadata: bytes) -> Subscription | None:
    try:
        reader = _Reader(metadata)
        topics = reader.texts()
        reader.nullable_bytes()
        owned = reader.partitions() if reader.version >= FIRST_VERSION_WITH_OWNED_PARTITIONS else ()
        if reader.version >= FIRST_VERSION_WITH_GENERATION:
            reader.integer()
        rack_id = reader.nullable_text() if reader.version >= FIRST_VERSION_WITH_RACK else ""
    except _Malformed:
        return None
    return Subscription(topics=topics, owned=owned, rack_id=rack_id)


def assignment_of(data: bytes) -> MemberAssignment | None:
    """No bytes at all are nothing assigned."""
    if not data:
        return MemberAssignment()
    try:
        reader = _Reader(data)
        return MemberAssignment(partitions=reader.partitions(), user_data=reader.nullable_bytes())
    except _Malformed:
        return None


def assignment_bytes(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    """By topic name, without user data; all versions look the same."""
    parts = [_SHORT.pack(version), _INT.pack(len(partitions))]
    for name, numbers in partitions.items():
        encoded = name.encode()
        parts += [_SHORT.pack(len(encoded)), encoded, struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers)]
    return b"".join([*parts, _INT.pack(-1)])
