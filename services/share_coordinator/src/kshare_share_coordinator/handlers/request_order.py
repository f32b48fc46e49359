"""The order in which a coordinator sent its requests to initialize and to delete state.

A request may linger in a buffer after its stream was cut, while its sender sends it again and then a later one. If the
first were executed at last, an initialization would bring deleted state back, and a deletion would lose a group's new
position. State epochs do not prevent that, because nothing is left of deleted state.

The order is kept in memory: when this process ends, all that lingers in its buffers is gone.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_core.identifiers import SharePartitionKey

SHARE_PARTITIONS_LIMIT = 20_000
"""Of the share-partitions named last; requests for others are not ordered any more. Each takes about 300 bytes."""


class Sent(NamedTuple):
    """Who sent a request, and its number among the sender's; without a sender it is not ordered."""

    sender: bytes = b""
    number: int = 0


class RequestOrder:
    """The newest request for each share-partition."""

    def __init__(self, limit: int = SHARE_PARTITIONS_LIMIT) -> None:
        self._limit = limit
        self._newest: dict[SharePartitionKey, Sent] = {}

    def is_late(self, key: SharePartitionKey, sent: Sent) -> bool:
        """Whether the same sender has sent a later request for the share-partition; if not, this is the newest one."""
        if not sent.sender:
            return False
        newest = self._newest.get(key)
        if newest is not None and newest.sender == sent.sender and sent.number < newest.number:
            return True
        self._newest.pop(key, None)
        self._newest[key] = sent
        if len(self._newest) > self._limit:
            del self._newest[next(iter(self._newest))]
        return False
