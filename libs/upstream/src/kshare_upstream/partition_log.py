"""The log of one partition of an existing cluster: append, read, its offsets, and the removal of its beginning.

Requests go to the partition's leader. Where the leader has changed, is not reachable or asks for patience, they are
repeated until the deadline. An append is repeated with the bytes that it had, so a batch with a producer id is stored
once: the broker answers a repetition with the offset of the first (KIP-98).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from kshare_core.errors import ErrorCode
from kshare_upstream.connection import ConnectionLost
from kshare_upstream.list_offsets import list_offsets
from kshare_upstream.port import REQUESTS, LeaderUnknown, Upstream, UpstreamPartitionName
from kshare_upstream.shared_lookups import SharedLookups, ends_of_epochs
from kshare_upstream.shared_produce import SharedProduce
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest, FetchTopic
from kshare_wire.generated.responses.list_offsets import ListOffsetsPartitionResponse

FETCH = VersionRange(11, 12)
"""Topics by name; version 11 has the client's rack (KIP-392), version 12 the epoch of the last record (KIP-595)."""
FETCH_BY_ID = VersionRange(11, 13)
"""As FETCH, and topics by id: a topic that was made anew under the same name is another one (KIP-516)."""
DELETE_RECORDS = VersionRange(0, 2)
EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = -2, -1
RETRY_BACKOFF_MS = 100
"""Kafka's retry.backoff.ms."""

LEADER_CHANGED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which the leader is looked up again."""
PATIENCE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors after which the same leader may succeed."""

AResult = TypeVar("AResult")


class Refused(Exception):
    """A broker refused a request with an error code that no repetition changes."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        known = code in ErrorCode.__members__.values()
        name = ErrorCode(code).name if known else f"error {code}"
        super().__init__(f"{what}: {name}{f' ({message})' if message else ''}")
        self.code = code


class OutcomeUnknown(OSError):
    """The deadline passed; whether the last request took effect is unknown."""


class _Again(Exception):
    """The request is to be repeated, after the leader is looked up again if `leader_changed`."""

    def __init__(self, reason: str, *, leader_changed: bool) -> None:
        super().__init__(reason)
        self.leader_changed = leader_changed


@dataclass(frozen=True, slots=True)
class Records:
    """Batches as they are in the log; the last one may be cut off."""

    data: bytes | memoryview
    high_watermark: int
    log_start_offset: int


class PartitionLog:
    """One partition; `deadline_ms` is how long a call repeats its request.

    Reads have the connection of `read_purpose`: one that waits for records delays the requests behind it. With the same
    `produce`, appends to several partitions share requests. With the same `lookups` look-ups do, and wait for the
    request that is under way; without, none waits.
    """

    def __init__(
        self,
        upstream: Upstream,
        at: UpstreamPartitionName,
        *,
        deadline_ms: int = 30_000,
        read_purpose: str = REQUESTS,
        produce: SharedProduce | None = None,
        lookups: SharedLookups | None = None,
    ) -> None:
        self.at = at
        self._upstream = upstream
        self.deadline_ms = deadline_ms
        self._read_purpose = read_purpose
        self._produce = produce or SharedProduce(upstream, timeout_ms=deadline_ms)
        self._lookups = lookups

    async def append(self, batch: bytes) -> int:
        """Appends one batch with acks=all and returns its base offset; Refused, OutcomeUnknown.

        A refusal of a repeated request says nothing about the requests before it: one may have taken effect, and the
        topic's configs may have changed since.
        """
        attempts = 0

        async def attempt(node_id: int) -> int:
            nonlocal attempts
            attempts += 1
            partition = await self._produce.append(node_id, self.at, batch)
            try:
                self._check(partition.error_code, "Produce", partition.error_message)
            except Refused as refused:
                if attempts > 1:
                    raise OutcomeUnknown(f"{refused}; an earlier request may have taken effect") from None
                raise
            return partition.base_offset

        return await self._repeated(attempt)

    async def read(self, offset: int, *, max_bytes: int = 1 << 20, wait_ms: int = 0) -> Records:
        """Batches from the one with `offset` on, empty at the end of the log; Refused (OFFSET_OUT_OF_RANGE, …)."""

        async def attempt(node_id: int) -> Records:
            wanted = FetchPartition(
                partition=self.at.partition, fetch_offset=offset, partition_max_bytes=max_bytes, log_start_offset=-1
            )
            request = FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=max_bytes,
                session_epoch=-1,
                topics=[FetchTopic(topic=self.at.topic, partitions=[wanted])],
            )
            answer = await self._upstream.ask_broker(
                node_id, request, FETCH, wait_ms=wait_ms, purpose=self._read_purpose
            )
            self._check(answer.error_code, "Fetch")
            if not answer.responses:
                # How a broker answers a client above its quota: without an error, and without the partition.
                text = f"Fetch of partition {self.at}: the cluster throttles kshare by a quota of its user or client id"
                raise _Again(f"{text} ({answer.throttle_time_ms} ms)", leader_changed=False)
            (partition,) = answer.responses[0].partitions
            self._check(partition.error_code, "Fetch")
            parts = partition.records or ()
            data = memoryview(parts[0]) if len(parts) == 1 else b"".join(parts)
            return Records(data, partition.high_watermark, partition.log_start_offset)

        return await self._repeated(attempt)

    async def offset_at(self, timestamp: int, *, read_committed: bool = False) -> int:
        """The offset for EARLIEST_TIMESTAMP, LATEST_TIMESTAMP or a time in milliseconds; -1 if there is none.

        With `read_committed` the latest offset is the last stable one.
        """

        return (await self.find_timestamp(timestamp, read_committed=read_committed))[1]

    async def find_timestamp(self, timestamp: int, *, read_committed: bool = False) -> tuple[int, int]:
        """As `offset_at`, with the found record's timestamp before the offset; -1 where the broker tells none."""
        found = await self._list_offset(timestamp, read_committed=read_committed)
        return found.timestamp, found.offset

    async def end(self) -> tuple[int, int]:
        """The offset at LATEST_TIMESTAMP, and the epoch of the leader that told it; -1 before ListOffsets version 4."""
        found = await self._list_offset(LATEST_TIMESTAMP)
        return found.offset, found.leader_epoch

    async def _list_offset(self, timestamp: int, *, read_committed: bool = False) -> ListOffsetsPartitionResponse:
        async def attempt(node_id: int) -> ListOffsetsPartitionResponse:
            if self._lookups is not None:
                partition = await self._lookups.offset_at(node_id, self.at, timestamp, read_committed=read_committed)
            else:
                wanted = {self.at: timestamp}
                answers = await list_offsets(self._upstream, node_id, wanted, read_committed=read_committed)
                partition = answers[self.at]
            self._check(partition.error_code, "ListOffsets")
            return partition

        return await self._repeated(attempt)

    async def topic_id(self) -> bytes:
        """The id of the topic that has this name now; zero where the cluster has no ids. Refused."""
        view = await self._upstream.describe([self.at.topic])
        topic = view.topics[self.at.topic]
        if topic.error_code:
            raise Refused(topic.error_code, f"Metadata of topic {self.at.topic}")
        return topic.topic_id

    async def leader_epochs(self, current: int = -1, *, limit: int = 32) -> list[tuple[int, int]]:
        """The newest leader epochs, each with the offset of its first record, ascending; Refused, OutcomeUnknown.

        A broker tells where an epoch ends (KIP-320), so the epochs are asked for one after the other, from the newest.
        `current` is the leader's own epoch if that is known: other brokers may know of an election a little later.
        """
        log_start = await self.offset_at(EARLIEST_TIMESTAMP)
        if current < 0:
            view = await self._upstream.describe([self.at.topic])
            leader = view.topics[self.at.topic].leaders.get(self.at.partition)
            if leader is None:
                raise OutcomeUnknown(f"partition {self.at} has no leader")
            current = leader.leader_epoch
        newest, _ = await self.end_of_epoch(current)
        epochs: list[tuple[int, int]] = []
        while newest >= 0 and len(epochs) < limit:
            before, start = await self.end_of_epoch(newest - 1) if newest > 0 else (-1, log_start)
            epochs.append((newest, max(start, log_start)))
            if start <= log_start:
                break
            newest = before
        return epochs[::-1]

    async def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The newest epoch up to this one that has records, and the offset after its last record; -1 if unknown."""

        async def attempt(node_id: int) -> tuple[int, int]:
            if self._lookups is not None:
                partition = await self._lookups.end_of_epoch(node_id, self.at, leader_epoch)
            else:
                partition = (await ends_of_epochs(self._upstream, node_id, {self.at: leader_epoch}))[self.at]
            self._check(partition.error_code, "OffsetForLeaderEpoch")
            return partition.leader_epoch, partition.end_offset

        return await self._repeated(attempt)

    async def delete_before(self, offset: int) -> int:
        """Removes the records below `offset`; returns the log's new start. Refused, OutcomeUnknown."""

        async def attempt(node_id: int) -> int:
            wanted = DeleteRecordsPartition(partition_index=self.at.partition, offset=offset)
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=self.at.topic, partitions=[wanted])], timeout_ms=self.deadline_ms
            )
            answer = await self._upstream.ask_broker(node_id, request, DELETE_RECORDS)
            (partition,) = answer.topics[0].partitions
            self._check(partition.error_code, "DeleteRecords")
            return partition.low_watermark

        return await self._repeated(attempt)

    def _check(self, code: int, api: str, message: str | None = None) -> None:
        if code == ErrorCode.NONE:
            return
        reason = str(Refused(code, f"{api} of partition {self.at}", message))
        if code in LEADER_CHANGED or code in PATIENCE:
            raise _Again(reason, leader_changed=code in LEADER_CHANGED)
        raise Refused(code, f"{api} of partition {self.at}", message)

    async def _repeated(self, attempt: Callable[[int], Awaitable[AResult]]) -> AResult:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.deadline_ms / 1000
        while True:
            try:
                return await attempt(await self._upstream.leader_of(self.at))
            except _Again as again:
                reason, leader_changed = str(again), again.leader_changed
            except (ConnectionLost, LeaderUnknown) as error:
                reason, leader_changed = str(error), True
            if leader_changed:
                self._upstream.forget_leader(self.at)
            if loop.time() + RETRY_BACKOFF_MS / 1000 > deadline_s:
                raise OutcomeUnknown(f"{reason}; given up after {self.deadline_ms} ms")
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
