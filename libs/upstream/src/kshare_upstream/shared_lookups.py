"""Look-ups about single partitions that share requests: ListOffsets and OffsetForLeaderEpoch.

A leader that opens 2,000 partitions looks up several offsets of each, and a broker works off the requests of a
connection one after the other. What is looked up in one turn of the event loop is one request for each broker, and what
comes while that is under way shares the next one. So no answer is older than its call, and a look-up may wait for the
one before: logs whose look-ups must not wait for one another, such as a fenced log, do without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kshare_core.contexts import context_of_no_request
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.list_offsets import list_offsets
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kshare_wire.generated.responses.list_offsets import ListOffsetsPartitionResponse
from kshare_wire.generated.responses.offset_for_leader_epoch import EpochEndOffset

OFFSET_FOR_LEADER_EPOCH = VersionRange(3, 4)
REQUEST_PARTITIONS_LIMIT = 1_000
"""A broker answers other requests of the connection between two of this size."""

AnAnswer = TypeVar("AnAnswer")
Wanted = Mapping[UpstreamPartitionName, int]
"""The partitions of one request, each with the timestamp or the leader epoch that is looked up."""


async def ends_of_epochs(
    upstream: Upstream, node_id: int, wanted: Wanted
) -> dict[UpstreamPartitionName, EpochEndOffset]:
    """What a broker answers about the leader epochs of partitions."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for at, leader_epoch in wanted.items():
        partition = OffsetForLeaderPartition(partition=at.partition, leader_epoch=leader_epoch)
        topics.setdefault(at.topic, []).append(partition)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=name, partitions=partitions) for name, partitions in topics.items()],
        replica_id=-1,
    )
    answer = await upstream.ask_broker(node_id, request, OFFSET_FOR_LEADER_EPOCH)
    return {
        UpstreamPartitionName(topic.topic, partition.partition): partition
        for topic in answer.topics
        for partition in topic.partitions
    }


class _Lookup(NamedTuple, Generic[AnAnswer]):
    at: UpstreamPartitionName
    value: int
    answer: asyncio.Future[AnAnswer]


class _Way(Generic[AnAnswer]):
    """The look-ups of one kind at one broker: one request under way, and what waits for the next."""

    def __init__(
        self, node_id: int, ask: Callable[[Wanted], Awaitable[Mapping[UpstreamPartitionName, AnAnswer]]]
    ) -> None:
        self._node_id = node_id
        self._ask = ask
        self._waiting: list[_Lookup[AnAnswer]] = []
        self._task: asyncio.Task[None] | None = None

    def look_up(self, at: UpstreamPartitionName, value: int) -> asyncio.Future[AnAnswer]:
        answer: asyncio.Future[AnAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Lookup(at, value, answer))
        if self._task is None:
            self._send_next()
        return answer

    def _send_next(self) -> None:
        """The task begins in the next turn, so it takes what is looked up in this one."""
        asking = self._ask_next()
        self._task = asyncio.get_running_loop().create_task(asking, context=context_of_no_request())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._waiting and not task.cancelled():  # it is cancelled only where the event loop ends
            self._send_next()

    def _take(self) -> list[_Lookup[AnAnswer]]:
        """What the next request has: one value of a partition, for a request names each only once."""
        taken: list[_Lookup[AnAnswer]] = []
        kept: list[_Lookup[AnAnswer]] = []
        values: dict[UpstreamPartitionName, int] = {}
        for lookup in self._waiting:
            if lookup.answer.done():  # its caller has given up
                continue
            is_new = lookup.at not in values and len(values) < REQUEST_PARTITIONS_LIMIT
            if is_new or values.get(lookup.at) == lookup.value:
                values[lookup.at] = lookup.value
                taken.append(lookup)
            else:
                kept.append(lookup)
        self._waiting = kept
        return taken

    async def _ask_next(self) -> None:
        lookups = self._take()
        if not lookups:
            return
        try:
            answers = await self._ask({lookup.at: lookup.value for lookup in lookups})
            for lookup in lookups:
                if lookup.answer.done():
                    continue
                if lookup.at in answers:
                    lookup.answer.set_result(answers[lookup.at])
                else:
                    text = f"broker {self._node_id} has not answered for partition {lookup.at}"
                    lookup.answer.set_exception(ConnectionLost(text))
        except BaseException as error:
            failure = ConnectionLost("the client is closed") if isinstance(error, asyncio.CancelledError) else error
            for lookup in lookups:
                if not lookup.answer.done():
                    lookup.answer.set_exception(failure)
            if isinstance(error, asyncio.CancelledError):
                raise


class SharedLookups:
    """As the port's requests, a look-up may raise ConnectionLost, AuthenticationFailed or NotServed."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._offsets: dict[tuple[int, bool, int], _Way[ListOffsetsPartitionResponse]] = {}
        """By broker, read_committed, and the timestamp if it stands for something, as that of the log's end; else 0."""
        self._epochs: dict[int, _Way[EpochEndOffset]] = {}

    async def offset_at(
        self, node_id: int, at: UpstreamPartitionName, timestamp: int, *, read_committed: bool
    ) -> ListOffsetsPartitionResponse:
        key = (node_id, read_committed, min(timestamp, 0))
        way = self._offsets.get(key)
        if way is None:

            async def ask(wanted: Wanted) -> Mapping[UpstreamPartitionName, ListOffsetsPartitionResponse]:
                return await list_offsets(self._upstream, node_id, wanted, read_committed=read_committed)

            way = self._offsets[key] = _Way(node_id, ask)
        return await way.look_up(at, timestamp)

    async def end_of_epoch(self, node_id: int, at: UpstreamPartitionName, leader_epoch: int) -> EpochEndOffset:
        way = self._epochs.get(node_id)
        if way is None:

            async def ask(wanted: Wanted) -> Mapping[UpstreamPartitionName, EpochEndOffset]:
                return await ends_of_epochs(self._upstream, node_id, wanted)

            way = self._epochs[node_id] = _Way(node_id, ask)
        return await way.look_up(at, leader_epoch)
