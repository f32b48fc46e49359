"""Waits and retries for partitions that are being reassigned to another leader, or are new.

A fenced partition is served by no leader for some round trips, so requests for it wait before they are sent. A request
that a leader rejected with NOT_LEADER_OR_FOLLOWER is retried if the partition is in a reassignment, or was just now:
leaders and gateways see a new catalog at different times. For the same reason a leader may not yet know a topic or
partition that a gateway has just shown to a client. After MOVE_WAIT_MS clients get the error and retry themselves.

Clients would retry after the error anyway, so these retries change nothing that a client can see. `produce_order` keeps
the order of a producer's batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2

MOVE_WAIT_MS = 3_000
"""Maximum total wait of one request."""
MOVED_JUST_NOW_S = 2.0
"""How long retries continue after a reassignment or a creation; by then each node has seen it, or has lost its lease.
"""
FIRST_AGAIN_MS, AGAIN_MAX_MS = 10, 200

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class ReassignedPartitions:
    """The reassignments and new topics of the catalog.

    `view` returns the newest view; `on_view` must be called with each view before `view` returns it.
    """

    def __init__(self, view: Callable[[], CatalogView]) -> None:
        self._view = view
        self._moving: dict[bytes, dict[TopicPartition, None]] = {}
        """By topic."""
        self._moved: dict[TopicPartition, float] = {}
        """Partitions whose reassignment has ended, and when, in the event loop's time."""
        self._appeared: dict[bytes, float] = {}
        """Topics that are new, or have new partitions, and since when."""
        self._oldest = 0.0
        """When the first of `_moved` and `_appeared` ended or began."""
        self._changed = asyncio.Event()

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        now = asyncio.get_running_loop().time()
        self._forget(now)
        for topic_id in [topic_id for topic_id in self._moving if topic_id not in new.topics_by_id]:
            del self._moving[topic_id]
        for topic_id, topic in new.topics_by_id.items():
            before = old.topics_by_id.get(topic_id)
            if topic is not before:
                self._note(topic, now)
                if old.version and (before is None or len(before.partitions) < len(topic.partitions)):
                    self._appeared[topic_id] = now
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _note(self, topic: coordinator_pb2.Topic, now: float) -> None:
        before = self._moving.pop(topic.topic_id, {})
        moving = {
            TopicPartition(topic.topic_id, partition.partition): None
            for partition in topic.partitions
            if partition.is_moving
        }
        self._moved.update(dict.fromkeys([key for key in before if key not in moving], now))
        if moving:
            self._moving[topic.topic_id] = moving

    @property
    def is_calm(self) -> bool:
        """Whether no partition is in a reassignment or had one lately, and no topic is new."""
        if self._moved or self._appeared:
            now = asyncio.get_running_loop().time()
            if now - self._oldest >= MOVED_JUST_NOW_S:
                self._forget(now)
        return not self._moving and not self._moved and not self._appeared

    def _forget(self, now: float) -> None:
        self._moved = {key: ended for key, ended in self._moved.items() if now - ended < MOVED_JUST_NOW_S}
        self._appeared = {topic: since for topic, since in self._appeared.items() if now - since < MOVED_JUST_NOW_S}
        self._oldest = min((*self._moved.values(), *self._appeared.values()), default=now)

    def begin(self) -> ReassignmentWait:
        """Starts the wait budget of one request."""
        return ReassignmentWait(self, asyncio.get_running_loop().time() + MOVE_WAIT_MS / 1000)

    def is_fenced(self, key: TopicPartition) -> bool:
        partition = self._view().partition(key)
        return partition is not None and partition.is_fenced

    def moves_or_moved(self, key: TopicPartition) -> bool:
        ended = self._moved.get(key)
        if ended is not None and asyncio.get_running_loop().time() - ended < MOVED_JUST_NOW_S:
            return True
        return key in self._moving.get(key.topic_id, ())

    def is_new(self, key: TopicPartition) -> bool:
        """Whether the catalog has the partition, but only since a short time."""
        since = self._appeared.get(key.topic_id)
        is_recent = since is not None and asyncio.get_running_loop().time() - since < MOVED_JUST_NOW_S
        return is_recent and self._view().partition(key) is not None

    async def wait_for_view(self, seconds: float) -> None:
        """Waits for the next view, at most for `seconds`."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return


class ReassignmentWait:
    """One request's wait budget for reassignments."""

    __slots__ = ("_again_ms", "_deadline", "_moving")

    def __init__(self, moving: ReassignedPartitions, deadline: float) -> None:
        self._moving = moving
        self._deadline = deadline
        self._again_ms = FIRST_AGAIN_MS

    def must_wait(self, keys: Iterable[TopicPartition]) -> bool:
        """Whether one of the partitions is fenced."""
        return not self._moving.is_calm and any(self._moving.is_fenced(key) for key in keys)

    async def until_served(self, keys: Iterable[TopicPartition]) -> None:
        """Returns when none of the partitions is fenced, or the budget is used up."""
        if self._moving.is_calm:
            return
        wanted = list(keys)
        while any(self._moving.is_fenced(key) for key in wanted) and (left := self._time_left()) > 0:
            await self._moving.wait_for_view(left)
            await asyncio.sleep(0)  # the gateway has the view by then gateway's by then

    async def should_ask_again(self, codes: Mapping[TopicPartition, int]) -> bool:
        """Whether to retry the `refused` partitions; returns when it is time to.

        `codes` are the error codes of the request's partitions.
        """
        refused = self.refused(codes)
        if not refused or self._time_left() <= 0:
            return False
        await self._moving.wait_for_view(min(self._again_ms / 1000, self._time_left()))
        self._again_ms = min(2 * self._again_ms, AGAIN_MAX_MS)
        await self.until_served(refused)
        return True

    def refused(self, codes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Partitions that a leader rejected because of a reassignment, or because it does not know them yet."""
        if not codes or self._moving.is_calm:
            return []
        return [
            key
            for key, code in codes.items()
            if (code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._moving.moves_or_moved(key))
            or (code in _UNKNOWN and self._moving.is_new(key))
        ]

    def _time_left(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()
