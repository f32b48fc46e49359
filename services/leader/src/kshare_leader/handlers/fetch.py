"""Fetch (key 1): reads batches from an offset on, and waits for more where the request allows it.

A gateway has a buffer of limited length: a first batch above `longest_batch_bytes` is left out, and `least_bytes` of
the answer says how many bytes it needs, also where other partitions had shorter ones.

The rules of ReplicaManager.readFromLog and DelayedFetch of Kafka 4.3: the partitions share `max_bytes` in their order;
the first one with records returns at least one batch whatever its size, so that a consumer always makes progress; a
first batch may start below the fetch offset. The answer waits up to `max_wait_ms` until `min_bytes` are available,
unless a partition has an error, which is answered at once.

Read-committed consumers (isolation level 1) get batches up to the last stable offset, and the list of aborted
transactions among them; the client filters those out.

Long requests are read in slices (`kshare_core.work_slices`); each partition's part of the answer is then as old as its
slice.

While it waits, a fetch holds only a listener on each log. It wakes only when enough became readable for `min_bytes`, so
many small appends do not cause many reads. Appends of an open transaction do not wake read-committed fetches; its end
does. A later fetch of the same client connection ends the wait (`kshare_rpc.fetch_waits`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.work_slices import ElementCount, WorkSlices
from kshare_leader.handlers.partitions import UNKNOWN, key_of, leader_in_answer, log_at_epoch
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.ports import AbortedTransaction, ServedLog, ServedLogs, StoredBatch
from kshare_rpc.fetch_waits import FetchWait, FetchWaits
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH
from kshare_rpc.network import Payload
from kshare_rpc.serving import answers

READ_COMMITTED = 1
WAITING_LIMIT = 10_000
"""Fetches that wait for records at once; one more only pauses, for at most PAUSE_MS."""
PAUSE_MS = 200
"""Keeps clients from a tight retry loop while too many fetches wait."""


@dataclass(slots=True)
class _Reading:
    """The result of one pass over the partitions."""

    is_committed: bool
    response: leader_pb2.FetchResponse = field(default_factory=leader_pb2.FetchResponse)
    payload: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    has_error: bool = False
    logs: list[ServedLog] = field(default_factory=list)
    sent: list[tuple[bytes, int, int]] = field(default_factory=list)
    """Topic id, number of offsets and number of bytes of each partition with batches."""
    readable_bytes: int = 0
    """The sum over `logs` of readable bytes, each at the time of its read."""

    def add(self, log: ServedLog) -> None:
        self.logs.append(log)
        self.readable_bytes += self.readable_of(log)

    def readable_of(self, log: ServedLog) -> int:
        return log.stable_bytes if self.is_committed else log.appended_bytes

    def readable_now(self) -> int:
        return sum([self.readable_of(log) for log in self.logs])

    def is_worth_another(self, min_bytes: int) -> bool:
        """Whether another pass can reach `min_bytes`, or a log was closed."""
        if self.size_bytes + self.readable_now() - self.readable_bytes >= min_bytes:
            return True
        return any([log.is_closed for log in self.logs])


class FetchHandler:
    """Answers `Leader/Fetch`."""

    def __init__(self, logs: ServedLogs, metrics: LeaderMetrics | None = None) -> None:
        self._logs = logs
        self._metrics = metrics or LeaderMetrics()
        self._waiting = 0
        self._waits = FetchWaits()
        self._slices = WorkSlices()

    @answers(FETCH)
    async def __call__(
        self, request: leader_pb2.FetchRequest, payload: memoryview
    ) -> tuple[leader_pb2.FetchResponse, Payload]:
        wait = self._waits.begin(request.waiter)
        try:
            reading = await self._read_or_wait(request, wait)
        finally:
            self._waits.finish(request.waiter, wait)
        for topic_id, records, size_bytes in reading.sent:
            counts = self._metrics.of_topic(topic_id)
            counts.fetch_records_out += records
            counts.fetch_bytes_out += size_bytes
        return reading.response, reading.payload

    async def _read_or_wait(self, request: leader_pb2.FetchRequest, wait: FetchWait) -> _Reading:
        reading = await self._read_all(request)
        if self._is_complete(request, reading) or wait.is_over:
            return reading
        if self._waiting >= WAITING_LIMIT:
            return await self._pause(request, wait)
        self._waiting += 1
        try:
            return await self._wait(request, reading, wait)
        finally:
            self._waiting -= 1

    def _is_complete(self, request: leader_pb2.FetchRequest, reading: _Reading) -> bool:
        return (
            reading.has_error
            or reading.response.least_bytes > 0
            or reading.size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or not request.partitions
        )

    async def _pause(self, request: leader_pb2.FetchRequest, wait: FetchWait) -> _Reading:
        """Waits without a listener, and reads what is there then."""
        ended = asyncio.Event()
        wait.wake = ended.set
        with suppress(TimeoutError):
            async with asyncio.timeout(min(request.max_wait_ms, PAUSE_MS) / 1000):
                await ended.wait()
        return _Reading(request.isolation_level == READ_COMMITTED) if wait.is_over else await self._read_all(request)

    async def _wait(self, request: leader_pb2.FetchRequest, reading: _Reading, wait: FetchWait) -> _Reading:
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        is_late = False

        def end() -> None:
            nonlocal is_late
            is_late = True
            wake.set()

        def changed() -> None:
            if reading.is_worth_another(request.min_bytes):
                wake.set()

        wait.wake = wake.set
        timer = loop.call_later(request.max_wait_ms / 1000, end)
        removals = [log.add_listener(changed, read_committed=reading.is_committed) for log in reading.logs]
        try:
            while True:
                changed()  # since the log's slice was read
                await wake.wait()
                wake.clear()
                if wait.is_over:
                    return _Reading(reading.is_committed)
                reading = await self._read_all(request)
                if is_late or self._is_complete(request, reading):
                    return reading
        finally:
            timer.cancel()
            for remove in removals:
                remove()

    async def _read_all(self, request: leader_pb2.FetchRequest) -> _Reading:
        reading = _Reading(request.isolation_level == READ_COMMITTED)
        count = ElementCount(self._slices)
        for partition in request.partitions:
            if count.add():
                await count.next_slice()
            try:
                answer = self._read(request, partition, reading)
            except KafkaError as error:
                reading.has_error = True
                answer = self._error(partition, error.code)
            except StorageFailure as failure:
                reading.has_error = True
                answer = self._error(partition, failure.code)
            reading.response.partitions.append(answer)
        return reading

    def _read(
        self, request: leader_pb2.FetchRequest, partition: leader_pb2.FetchRequest.Partition, reading: _Reading
    ) -> leader_pb2.FetchResponse.Partition:
        log = log_at_epoch(self._logs, key_of(partition), partition.current_leader_epoch)
        if not log.log_start_offset <= partition.fetch_offset <= log.high_watermark:
            text = (
                f"offset {partition.fetch_offset} of partition {log.name} is out of range: "
                f"it has {log.log_start_offset} to {log.high_watermark}"
            )
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        reading.add(log)
        max_bytes = max(0, min(partition.partition_max_bytes, request.max_bytes - reading.size_bytes))
        at_least_one = reading.size_bytes == 0
        aborted: list[AbortedTransaction] = []
        if reading.is_committed:
            batches = _read_committed(log, partition.fetch_offset, max_bytes, at_least_one=at_least_one)
            if batches:
                end_offset = batches[-1].last_offset + 1
                aborted = _with_markers(log.aborted_transactions(partition.fetch_offset, end_offset), batches)
        else:
            batches = log.read(partition.fetch_offset, max_bytes, at_least_one=at_least_one)
        is_left_out = at_least_one and bool(batches) and 0 < request.longest_batch_bytes < batches[0].length
        if is_left_out:
            reading.response.least_bytes = max(reading.response.least_bytes, batches[0].length)
            batches, aborted = [], []
        data = [batch.data for batch in batches]
        records_length = sum([len(piece) for piece in data])
        reading.payload.extend(data)
        reading.size_bytes += records_length
        if batches:
            offsets = batches[-1].last_offset - batches[0].base_offset + 1
            reading.sent.append((partition.topic_id, offsets, records_length))
        return leader_pb2.FetchResponse.Partition(
            topic_id=partition.topic_id,
            partition=partition.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[
                leader_pb2.FetchResponse.AbortedTransaction(
                    producer_id=transaction.producer_id, first_offset=transaction.first_offset
                )
                for transaction in aborted
            ],
            records_length=records_length,
            current_leader=leader_in_answer(self._logs, log.topic_partition, ErrorCode.NONE),
            is_left_out=is_left_out,
        )

    def _error(
        self, partition: leader_pb2.FetchRequest.Partition, code: ErrorCode
    ) -> leader_pb2.FetchResponse.Partition:
        return leader_pb2.FetchResponse.Partition(
            topic_id=partition.topic_id,
            partition=partition.partition,
            error_code=code,
            high_watermark=UNKNOWN,
            last_stable_offset=UNKNOWN,
            log_start_offset=UNKNOWN,
            current_leader=leader_in_answer(self._logs, key_of(partition), code),
        )


def _read_committed(log: ServedLog, fetch_offset: int, max_bytes: int, *, at_least_one: bool) -> list[StoredBatch]:
    """`ServedLog.read` up to the last stable offset."""
    end_offset = log.last_stable_offset
    if fetch_offset >= end_offset:
        return []
    batches = log.read(fetch_offset, max_bytes, at_least_one=at_least_one, read_committed=True)
    while batches and batches[-1].base_offset >= end_offset:
        batches.pop()
    return batches


def _with_markers(aborted: list[AbortedTransaction], batches: list[StoredBatch]) -> list[AbortedTransaction]:
    """Those whose markers are in a response or behind it.

    A client skips all batches of such a producer until it sees the marker. Earlier versions left a transaction in the
    index when compaction removed its marker.
    """
    if not aborted:
        return aborted
    end_offset = batches[-1].last_offset + 1
    markers = {batch.base_offset for batch in batches if batch.is_control}
    return [each for each in aborted if each.last_offset >= end_offset or each.last_offset in markers]
