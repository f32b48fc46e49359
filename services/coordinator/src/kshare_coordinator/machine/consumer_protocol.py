"""The metadata of members of consumer groups (ConsumerProtocolSubscription): which topics they subscribe to.

Big-endian: int16 version, int32 number of topics, then each name as int16 length and UTF-8. What comes after them (user
data, owned partitions) is nobody's business here. Members choose these bytes freely, so nothing in them is trusted.
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """The names, in order; None where the bytes are no subscription."""
    try:
        return _topics(metadata)
    except (struct.error, UnicodeDecodeError):
        return None


def _topics(metadata: bytes) -> list[str] | None:
    version, count = _HEAD.unpack_from(metadata)
    if version < 0 or count < 0:
        return None
    names: list[str] = []
    position = _HEAD.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(metadata):
            return None
        names.append(metadata[position : position + length].decode())
        position += length
    return names
