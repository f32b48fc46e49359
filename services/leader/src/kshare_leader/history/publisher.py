"""The background publisher of buffered events to `__share_delivery_history`.

At most one round is in flight. Through the engine's `target` it creates the topic if it is missing, sorts the segments
by partition, and sends a batch per partition to the partition's leader. Batches that were not stored are retried, with
a back-off up to RETRY_INTERVAL_MAX_MS; meanwhile the buffer fills and then drops events. A batch whose response was
lost is retried too, and may then be stored twice. Batches that are refused permanently are dropped and counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.identifiers import group_partition_of
from kshare_leader.history.buffer import HistoryBuffer
from kshare_leader.history.limits import (
    BATCH_LIMIT_BYTES,
    FLUSH_INTERVAL_MS,
    REQUEST_LIMIT_BYTES,
    RETRY_INTERVAL_MAX_MS,
    RETRY_INTERVAL_MS,
    STOP_TIMEOUT_MS,
)
from kshare_leader.history.target import CannotPublish, HistoryBatch, HistoryTarget, HistoryTopic
from kshare_leader.metrics import HistoryCounts
from kshare_runtime.ports import Clock
from kshare_wire.record_writing import BatchWriter


class _Record(NamedTuple):
    """A record to be sent to the topic; `size_bytes` is its size in the buffer."""

    key: bytes
    value: bytes
    events: int
    size_bytes: int


class HistoryPublisher:
    """See the module docstring. Created and used on one event loop; `buffer_bytes` is the buffer's limit."""

    def __init__(
        self,
        *,
        target: HistoryTarget,
        buffer_bytes: int,
        clock: Clock,
        random: random.Random,
        report: Callable[[str], None],
        counts: HistoryCounts,
    ) -> None:
        self._target = target
        self._clock = clock
        self._random = random
        self._report = report
        self._counts = counts
        self.buffer = HistoryBuffer(limit_bytes=buffer_bytes, counts=counts, wake=self._wake)
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
        except (TimeoutError, CannotPublish) as problem:
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
            if not isinstance(error, CannotPublish):
                report_contained_bug("publishing the delivery history failed with an unexpected error", error)
            self._failed(str(error) if isinstance(error, CannotPublish) else repr(error))
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
        topic = await self._target.topic()
        self._sort_in(topic)
        await self._send(topic)

    def _sort_in(self, topic: HistoryTopic) -> None:
        """Appends all buffered records to the lanes of their partitions."""
        count = topic.partition_count
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

    async def _send(self, topic: HistoryTopic) -> None:
        """Sends a batch for each partition; raises CannotPublish at the end if some were not stored."""
        leaders = await self._target.leaders_of(topic, self._lanes)
        problems: list[str] = []
        by_leader: dict[str, list[HistoryBatch]] = {}
        sizes: dict[str, int] = {}
        limit_bytes = min(BATCH_LIMIT_BYTES, topic.max_message_bytes)
        for partition in self._lanes:
            leader = leaders.get(partition)
            if leader is None:
                problems.append(f"partition {partition} of {HISTORY_TOPIC} has no leader")
            elif sizes.get(leader, 0) < REQUEST_LIMIT_BYTES:
                batch = self._batch(partition, limit_bytes)
                by_leader.setdefault(leader, []).append(batch)
                sizes[leader] = sizes.get(leader, 0) + len(batch.data)
        calls = [self._append(topic, leader, batches) for leader, batches in by_leader.items()]
        for found in await asyncio.gather(*calls):
            problems.extend(found)
        if problems:
            raise CannotPublish(problems[0])

    def _batch(self, partition: int, limit_bytes: int) -> HistoryBatch:
        writer = BatchWriter(limit_bytes, "lz4")
        now_ms = self._clock.now_ms()
        for record in self._lanes[partition]:
            if not writer.append(now_ms, record.key, record.value, ()):
                break
        return HistoryBatch(partition, writer.count, writer.build())

    async def _append(self, topic: HistoryTopic, leader: str, batches: list[HistoryBatch]) -> list[str]:
        """Sends batches to a leader; returns the problems that a retry may solve."""
        found: list[str] = []
        for outcome in await self._target.append(topic, leader, batches):
            batch = outcome.batch
            if not outcome.problem:
                self._counts.published += self._finish(batch)
                self._counts.published_bytes += len(batch.data)
            elif outcome.is_refused:
                self._report(outcome.problem)
                self._counts.dropped += self._finish(batch)
            else:
                found.append(outcome.problem)
        return found

    def _finish(self, batch: HistoryBatch) -> int:
        """Removes the batch's records, which are stored or given up; returns their number of events."""
        lane = self._lanes[batch.partition]
        done = [lane.popleft() for _ in range(batch.records)]
        if not lane:
            del self._lanes[batch.partition]
        self.buffer.release(sum(record.size_bytes for record in done))
        return sum(record.events for record in done)
