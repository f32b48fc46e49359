"""The limits of batches that topics of the existing cluster take, which are asked for once a minute."""

from __future__ import annotations

import asyncio

from kshare_upstream.partition_log import Refused
from kshare_upstream.port import Upstream
from kshare_upstream.topics import MAX_MESSAGE_BYTES, topic_config

KEPT_S = 60.0
"""How long a topic's max.message.bytes is not asked for again, unless a batch was too large."""


class MessageLimits:
    """max.message.bytes by topic; Kafka's default where kshare's principal may not describe the topic."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: dict[str, tuple[int, float]] = {}
        """The limits, and when they were asked for."""

    async def of(self, topic: str) -> int:
        """The limit of a topic in bytes; raises as any request."""
        now_s = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and now_s - known[1] < KEPT_S:
            return known[0]
        try:
            text = await topic_config(self._upstream, topic, "max.message.bytes")
        except Refused:
            text = None
        found = int(text) if text is not None else MAX_MESSAGE_BYTES
        self._known[topic] = (found, now_s)
        return found

    def forget(self, topic: str) -> None:
        """A batch was too large: the limit is asked for again."""
        self._known.pop(topic, None)
