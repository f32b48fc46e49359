"""Produce requests that partitions share: what is appended in one turn of the event loop is one request per broker.

A broker works off the requests of a connection one after the other, so with a request for each partition the last one
waits for all others. At most REQUESTS_UNDER_WAY are under way to a broker, each on a connection of its own; batches
that come meanwhile share the next request. The batches of one partition stay in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from kshare_core.contexts import context_of_no_request
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kshare_wire.generated.responses.produce import PartitionProduceResponse

PRODUCE = VersionRange(3, 9)
"""Topics by name; version 3 has the message format that has sequence numbers."""
ALL_REPLICAS = -1
REQUESTS_UNDER_WAY = 2
REQUEST_BYTES_LIMIT = 8 * 1024 * 1024


class _Append(NamedTuple):
    at: UpstreamPartitionName
    batch: bytes
    answer: asyncio.Future[PartitionProduceResponse]


class _Way:
    """The batches on their way to one broker."""

    def __init__(self, purpose: str) -> None:
        self.waiting: deque[_Append] = deque()
        self.free = [f"{purpose}-{number}" for number in range(REQUESTS_UNDER_WAY)]
        """Purposes of connections without a request under way."""
        self.busy: set[UpstreamPartitionName] = set()
        """Partitions with a batch under way: the next one waits for it, so that their order stays."""
        self.is_scheduled = False

    def take(self) -> list[_Append]:
        """What the next request has: one batch of a partition at most, and no more bytes than the limit."""
        taken: list[_Append] = []
        size, kept = 0, []
        while self.waiting:
            append = self.waiting.popleft()
            if append.answer.done():  # its caller has given up before it was sent
                continue
            if append.at in self.busy or (taken and size + len(append.batch) > REQUEST_BYTES_LIMIT):
                kept.append(append)
                continue
            taken.append(append)
            self.busy.add(append.at)
            size += len(append.batch)
        self.waiting.extend(kept)
        return taken


class SharedProduce:
    """Appends with acks=all; `timeout_ms` is how long a broker waits for the replicas.

    `transactional_id` is that of all batches, if they are transactional. `purpose` begins the purposes of the
    connections, which are shared with others that have the same.
    """

    def __init__(
        self, upstream: Upstream, *, timeout_ms: int, transactional_id: str | None = None, purpose: str = "produce"
    ) -> None:
        self._upstream = upstream
        self._purpose = purpose
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._ways: dict[int, _Way] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def append(self, node_id: int, at: UpstreamPartitionName, batch: bytes) -> asyncio.Future[PartitionProduceResponse]:
        """The broker's answer for one batch; as the port's requests, it may also raise ConnectionLost or NotServed."""
        answer: asyncio.Future[PartitionProduceResponse] = asyncio.get_running_loop().create_future()
        way = self._ways.get(node_id)
        if way is None:
            way = self._ways[node_id] = _Way(self._purpose)
        way.waiting.append(_Append(at, batch, answer))
        self._schedule(node_id, way)
        return answer

    async def close(self) -> None:
        """Gives up what is under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _schedule(self, node_id: int, way: _Way) -> None:
        if way.waiting and way.free and not way.is_scheduled:
            way.is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send, node_id, way, context=context_of_no_request())

    def _send(self, node_id: int, way: _Way) -> None:
        way.is_scheduled = False
        appends = way.take()
        if not appends:
            return
        purpose = way.free.pop()
        task = asyncio.get_running_loop().create_task(self._ask(node_id, appends, purpose), name="shared-produce")
        self._under_way.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            way.free.append(purpose)
            way.busy.difference_update(append.at for append in appends)
            self._schedule(node_id, way)

        task.add_done_callback(ended)

    async def _ask(self, node_id: int, appends: list[_Append], purpose: str) -> None:
        try:
            answer = await self._upstream.ask_broker(node_id, self._request(appends), PRODUCE, purpose=purpose)
            found = {
                UpstreamPartitionName(topic.name, partition.index): partition
                for topic in answer.responses
                for partition in topic.partition_responses
            }
            for append in appends:
                if append.at not in found:
                    raise ConnectionLost(f"broker {node_id} has not answered for partition {append.at}")
                if not append.answer.done():
                    append.answer.set_result(found[append.at])
        except BaseException as error:
            failure = ConnectionLost("the client is closed") if isinstance(error, asyncio.CancelledError) else error
            for append in appends:
                if not append.answer.done():
                    append.answer.set_exception(failure)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _request(self, appends: list[_Append]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for append in appends:
            data = PartitionProduceData(index=append.at.partition, records=memoryview(append.batch))
            topics.setdefault(append.at.topic, []).append(data)
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ALL_REPLICAS,
            timeout_ms=self._timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )
