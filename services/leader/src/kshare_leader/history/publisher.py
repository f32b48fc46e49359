"""The background publisher of buffered events to `__share_delivery_history`.

At most one round is in flight. It creates the topic if it is missing, sorts the segments by partition, and sends a
batch per partition to the partition's leader, which may be this node, by Produce. Batches that were not stored are
retried, with a back-off up to RETRY_INTERVAL_MAX_MS; meanwhile the buffer fills and then drops events. A batch whose
response was lost is retried too, and may then be stored twice. Batches that the leader refuses permanently are dropped
and counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.configs.topic import effective_topic_config
from kshare_core.contained_bugs import report_contained_bug
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition, group_partition_of
from kshare_leader.history.buffer import HistoryBuffer
from kshare_leader.history.limits import (
    BATCH_LIMIT_BYTES,
    FLUSH_INTERVAL_MS,
    PRODUCE_TIMEOUT_MS,
    REQUEST_LIMIT_BYTES,
    RETRY_INTERVAL_MAX_MS,
    RETRY_INTERVAL_MS,
    STOP_TIMEOUT_MS,
)
from kshare_leader.metrics import HistoryCounts
from kshare_leader.topic_creation import CreatableTopic, TopicNotCreated, create_topic
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import PRODUCE
from kshare_rpc.network import CallFailed, Channel
from kshare_runtime.ports import Clock
from kshare_wire.record_writing import BatchWriter

_REFUSED = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""Error codes that a retry would not change."""


class _CannotPublish(Exception):
    """A round did not store everything and is retried; the text says why."""


class _Record(NamedTuple):
    """A record to be sent to the topic; `size_bytes` is its size in the buffer."""

    key: bytes
    value: bytes
    events: int
    size_bytes: int


class _Batch(NamedTuple):
    """A record batch with the first `records` records of a lane."""

    partition: int
    records: int
    data: bytes


class HistoryPublisher:
    """See the module docstring. Created and used on one event loop.

    `channel` returns the channel to a leader's address, `coordinator` the one to the coordinator. `wait_for_version`
    waits until the catalog's view has a version, with a timeout in milliseconds.
    """

    def __init__(
        self,
        *,
        view: Callable[[], CatalogView],
        channel: Callable[[str], Channel],
        coordinator: Callable[[], Channel],
        wait_for_version: Callable[[int, int], Awaitable[bool]],
        configs: Configs,
        clock: Clock,
        random: random.Random,
        report: Callable[[str], None],
        counts: HistoryCounts,
    ) -> None:
        self._view = view
        self._channel = channel
        self._coordinator = coordinator
        self._wait_for_version = wait_for_version
        self._configs = configs
        self._clock = clock
        self._random = random
        self._report = report
        self._counts = counts
        self.buffer = HistoryBuffer(
            limit_bytes=configs.integer("kshare.delivery.history.buffer.bytes"), counts=counts, wake=self._wake
        )
        self._lanes: dict[int, deque[_Record]] = {}
        """Records to send, by partition of the topic; no lane is empty."""
        self._lanes_of = (b"", 0)
        """The topic id and number of partitions by which the lanes were sorted."""
        self._timer: asyncio.TimerHandle | None = None
        self._round_task: asyncio.Task[None] | None = None
        self._attempts = 0
        self._problem: str | None = None
        self._dropped_reported = 0
        self._stopped = False

    async def stop(self) -> None:
        """Tries for STOP_TIMEOUT_MS to send the buffered events; the rest is lost."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        running = self._round_task
        try:
            async with asyncio.timeout(STOP_TIMEOUT_MS / 1000):
                if running is not None:
                    await asyncio.wait([running])
                while self.buffer or self._lanes:
                    await self._round()
        except (TimeoutError, _CannotPublish) as problem:
            self._report(f"delivery events are lost because this leader stops: {str(problem) or 'out of time'}")
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    # Scheduling

    def _wake(self, at_once: bool) -> None:
        """Schedules a round for a new event; called often, so it checks the most common case first."""
        if self._timer is not None and not at_once:
            return
        if self._round_task is None and not self._stopped:
            if not at_once:
                self._begin_later(FLUSH_INTERVAL_MS)
            elif not self._attempts:
                self._begin_later(0)

    def _begin_later(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._round_task = asyncio.get_running_loop().create_task(self._round(), name="publish delivery history")
        self._round_task.add_done_callback(self._round_ended)

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        self._round_task = None
        error = None if task.cancelled() else task.exception()
        self._report_dropped()
        if error is not None:
            if not isinstance(error, _CannotPublish):
                report_contained_bug("publishing the delivery history failed with an unexpected error", error)
            self._failed(str(error) if isinstance(error, _CannotPublish) else repr(error))
            return
        self._attempts, self._problem = 0, None
        if not self._stopped and (self.buffer or self._lanes):
            self._begin_later(0 if self._lanes else FLUSH_INTERVAL_MS)

    def _failed(self, problem: str) -> None:
        self._attempts += 1
        self._counts.failures += 1
        if problem != self._problem:
            self._report(f"delivery events cannot be published, retrying: {problem}")
        self._problem = problem
        if not self._stopped:
            pause_ms = min(RETRY_INTERVAL_MS << min(self._attempts - 1, 10), RETRY_INTERVAL_MAX_MS)
            self._begin_later(int(pause_ms * (0.8 + 0.4 * self._random.random())))

    def _report_dropped(self) -> None:
        dropped = self._counts.dropped - self._dropped_reported
        if dropped:
            self._dropped_reported += dropped
            self._report(f"{dropped} delivery events were dropped; kshare.delivery.history.buffer.bytes is full")

    # One round

    async def _round(self) -> None:
        topic = self._view().topics_by_name.get(HISTORY_TOPIC)
        if topic is None or not topic.partitions:
            await self._create()
            topic = self._view().topics_by_name.get(HISTORY_TOPIC)
            if topic is None:
                raise _CannotPublish(f"topic {HISTORY_TOPIC} was deleted")
        self._sort_in(topic)
        await self._send(topic)

    async def _create(self) -> None:
        retention_ms = self._configs.integer("kshare.delivery.history.retention.ms")
        topic = CreatableTopic(
            name=HISTORY_TOPIC,
            num_partitions=self._configs.integer("kshare.delivery.history.topic.num.partitions"),
            replication_factor=-1,
            configs=[
                coordinator_pb2.ConfigEntry(name="cleanup.policy", value="delete"),
                coordinator_pb2.ConfigEntry(name="retention.ms", value=str(retention_ms)),
            ],
            internal=True,
        )
        try:
            await create_topic(topic, "topic", self._coordinator(), self._wait_for_version)
        except TopicNotCreated as failure:
            raise _CannotPublish(str(failure)) from failure

    def _sort_in(self, topic: coordinator_pb2.Topic) -> None:
        """Appends all buffered records to the lanes of their partitions."""
        count = len(topic.partitions)
        records = [
            _Record(segment.key, segment.value(), len(segment.events), segment.size_bytes)
            for segment in self.buffer.take()
        ]
        if self._lanes_of != (topic.topic_id, count):
            records = [record for lane in self._lanes.values() for record in lane] + records
            self._lanes = {}
            self._lanes_of = (topic.topic_id, count)
        for record in records:
            partition = group_partition_of(record.key.decode(), count)
            self._lanes.setdefault(partition, deque()).append(record)

    async def _send(self, topic: coordinator_pb2.Topic) -> None:
        """Sends a batch for each partition; raises _CannotPublish at the end if some were not stored."""
        view = self._view()
        problems: list[str] = []
        by_address: dict[str, list[_Batch]] = {}
        sizes: dict[str, int] = {}
        limit_bytes = min(BATCH_LIMIT_BYTES, self._max_message_bytes(topic))
        for partition in self._lanes:
            address = view.leader_address(TopicPartition(topic.topic_id, partition))
            if address is None:
                problems.append(f"partition {partition} of {HISTORY_TOPIC} has no leader")
            elif sizes.get(address, 0) < REQUEST_LIMIT_BYTES:
                batch = self._batch(partition, limit_bytes)
                by_address.setdefault(address, []).append(batch)
                sizes[address] = sizes.get(address, 0) + len(batch.data)
        calls = [self._produce(topic.topic_id, address, batches) for address, batches in by_address.items()]
        for found in await asyncio.gather(*calls):
            problems.extend(found)
        if problems:
            raise _CannotPublish(problems[0])

    def _max_message_bytes(self, topic: coordinator_pb2.Topic) -> int:
        texts = {entry.name: entry.value for entry in topic.configs}
        try:
            return effective_topic_config(self._configs, texts).integer("max.message.bytes")
        except InvalidConfig:  # the coordinator refuses such values, so this is another version's catalog
            return effective_topic_config(self._configs, {}).integer("max.message.bytes")

    def _batch(self, partition: int, limit_bytes: int) -> _Batch:
        writer = BatchWriter(limit_bytes, "lz4")
        now_ms = self._clock.now_ms()
        for record in self._lanes[partition]:
            if not writer.append(now_ms, record.key, record.value, ()):
                break
        return _Batch(partition, writer.count, writer.build())

    async def _produce(self, topic_id: bytes, address: str, batches: list[_Batch]) -> list[str]:
        """Sends batches to a leader; returns the problems that a retry may solve."""
        request = leader_pb2.ProduceRequest(acks=-1, timeout_ms=PRODUCE_TIMEOUT_MS)
        for batch in batches:
            request.partitions.add(topic_id=topic_id, partition=batch.partition, records_length=len(batch.data))
        payload = [batch.data for batch in batches]
        try:
            answer, _ = await self._channel(address).call(PRODUCE, request, payload, timeout_ms=PRODUCE_TIMEOUT_MS)
        except CallFailed as failure:
            return [f"leader {address}: {failure}"]
        found: list[str] = []
        results = {result.partition: result for result in answer.partitions}
        for batch in batches:
            result = results.get(batch.partition)
            if result is None:
                found.append(f"leader {address} left partition {batch.partition} out of its answer")
            elif result.error_code == ErrorCode.NONE:
                self._counts.published += self._finish(batch)
                self._counts.published_bytes += len(batch.data)
            elif result.error_code in _REFUSED:
                self._report(f"{HISTORY_TOPIC}-{batch.partition} refuses delivery events: {result.error_message}")
                self._counts.dropped += self._finish(batch)
            else:
                text = result.error_message or f"error {result.error_code}"
                found.append(f"partition {batch.partition} of {HISTORY_TOPIC}: {text}")
        return found

    def _finish(self, batch: _Batch) -> int:
        """Removes the batch's records, which are stored or given up; returns their number of events."""
        lane = self._lanes[batch.partition]
        done = [lane.popleft() for _ in range(batch.records)]
        if not lane:
            del self._lanes[batch.partition]
        self.buffer.release(sum(record.size_bytes for record in done))
        return sum(record.events for record in done)
