"""FetchStateTopic and ListStateTopicOffsets: `__share_group_state` for ordinary consumers, and its old tombstones.

Only durable records can be read, and only while this node answers for the state partition. Otherwise the answer is
NOT_LEADER_OR_FOLLOWER, which clients retry. Earliest is always offset 0, as in a compacted topic: a consumer at an
offset without a record continues at the next one. A fetch waits until its state partitions have enough bytes, or until
a later fetch of the same client connection comes (`kshare_rpc.fetch_waits`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from kshare_core.contained_bugs import restarted_after_bugs
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_rpc.fetch_waits import FetchWait, FetchWaits
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH_STATE_TOPIC, LIST_STATE_TOPIC_OFFSETS
from kshare_rpc.serving import answers
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.state_store import family_of
from kshare_share_coordinator.state_topic import LEADER_EPOCH, StateTopicIndex

PARTITIONS_PER_REQUEST_LIMIT = 10_000
"""Larger requests get INVALID_REQUEST for each partition."""
MAXIMUM_WAIT_MS = 60_000
FETCH_BYTES_LIMIT = 50 * 1024 * 1024
"""Limit of one answer, whatever the request's limit."""
TOMBSTONES_PRUNED_AT_ONCE = 500
LATEST, EARLIEST, GREATEST_TIMESTAMP = -1, -2, -3
LOG_START_OFFSET = 0

log = logging.getLogger(__name__)

Asked = leader_pb2.FetchRequest.Partition
Fetched = leader_pb2.FetchResponse.Partition
Wanted = leader_pb2.ListOffsetsRequest.Partition
Listed = leader_pb2.ListOffsetsResponse.Partition


class StateTopicService:
    """`prune_interval_ms` is share.coordinator.state.topic.prune.interval.ms; `delete_retention_ms` is how long
    tombstones stay."""

    def __init__(
        self, *, index: StateTopicIndex, ownership: Ownership, delete_retention_ms: int, prune_interval_ms: int
    ) -> None:
        self._index = index
        self._ownership = ownership
        self._delete_retention_ms = delete_retention_ms
        self._prune_interval_ms = prune_interval_ms
        self._waiting: dict[asyncio.Event, Sequence[str]] = {}
        self._waits = FetchWaits()
        self._pruner: asyncio.Task[None] | None = None
        index.on_written = self._wake

    def start(self) -> None:
        """Starts removing old tombstones."""
        work = restarted_after_bugs("the removal of old tombstones", self._prune_for_ever)
        self._pruner = asyncio.get_running_loop().create_task(work, name="prune-state-topic")

    async def stop(self) -> None:
        if self._pruner is not None:
            self._pruner.cancel()
            await asyncio.gather(self._pruner, return_exceptions=True)

    @answers(FETCH_STATE_TOPIC)
    async def fetch(
        self, request: leader_pb2.FetchRequest, payload: memoryview
    ) -> tuple[leader_pb2.FetchResponse, list[bytes]]:
        """The answer and the records of its partitions."""
        if len(request.partitions) > PARTITIONS_PER_REQUEST_LIMIT:
            refused = [_refused(asked, ErrorCode.INVALID_REQUEST) for asked in request.partitions]
            return leader_pb2.FetchResponse(partitions=refused), []
        wait = self._waits.begin(request.waiter)
        try:
            return await self._read_or_wait(request, wait)
        finally:
            self._waits.finish(request.waiter, wait)

    async def _read_or_wait(
        self, request: leader_pb2.FetchRequest, wait: FetchWait
    ) -> tuple[leader_pb2.FetchResponse, list[bytes]]:
        families = list(dict.fromkeys(family_of(asked.partition) for asked in request.partitions))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(0, request.max_wait_ms), MAXIMUM_WAIT_MS) / 1000
        written = asyncio.Event()
        self._waiting[written] = families
        wait.wake = written.set
        try:
            while not wait.is_over:
                written.clear()
                answer, records = await self._read(request)
                is_refused = any(found.error_code for found in answer.partitions)
                remaining = deadline - loop.time()
                if is_refused or remaining <= 0 or sum(map(len, records)) >= request.min_bytes:
                    return answer, records
                try:
                    await asyncio.wait_for(written.wait(), remaining)
                except TimeoutError:
                    deadline = loop.time()
            return leader_pb2.FetchResponse(), []
        finally:
            del self._waiting[written]

    @answers(LIST_STATE_TOPIC_OFFSETS)
    async def list_offsets(
        self, request: leader_pb2.ListOffsetsRequest, payload: memoryview
    ) -> leader_pb2.ListOffsetsResponse:
        """One offset for each partition of the request."""
        too_many = len(request.partitions) > PARTITIONS_PER_REQUEST_LIMIT
        return leader_pb2.ListOffsetsResponse(
            partitions=[
                Listed(topic_id=wanted.topic_id, partition=wanted.partition, error_code=ErrorCode.INVALID_REQUEST)
                if too_many
                else self._list(wanted)
                for wanted in request.partitions
            ]
        )

    def prune(self, state_partition: int, now_ms: int) -> bool:
        """Removes some expired tombstones; returns whether more may remain. Raises StorageFailure."""
        before_ms = now_ms - self._delete_retention_ms
        limit = TOMBSTONES_PRUNED_AT_ONCE
        return self._index.prune(family_of(state_partition), before_ms=before_ms, limit=limit) == limit

    # Reading

    async def _read(self, request: leader_pb2.FetchRequest) -> tuple[leader_pb2.FetchResponse, list[bytes]]:
        answer = leader_pb2.FetchResponse()
        pieces: list[bytes] = []
        budget = min(max(0, request.max_bytes), FETCH_BYTES_LIMIT)
        for asked in request.partitions:
            limit = min(asked.partition_max_bytes, budget)
            found, records = await self._read_partition(asked, limit, must_have_one=not pieces)
            answer.partitions.append(found)
            pieces += records
            budget -= found.records_length
        return answer, pieces

    async def _read_partition(self, asked: Asked, limit: int, *, must_have_one: bool) -> tuple[Fetched, list[bytes]]:
        """Record batches of up to `limit` bytes; the first may be larger if `must_have_one`."""
        refused = self._refusal(asked.partition, asked.current_leader_epoch)
        if refused:
            return _refused(asked, refused), []
        family = family_of(asked.partition)
        pieces: list[bytes] = []
        size = 0
        try:
            position = asked.fetch_offset
            if not LOG_START_OFFSET <= position <= self._index.next_offset(family):
                return self._found(asked, family, ErrorCode.OFFSET_OUT_OF_RANGE), []
            while position < self._index.next_offset(family) and (size < limit or (must_have_one and not pieces)):
                batch, position = self._index.read_batch(family, position, limit - size)
                if batch and size + len(batch) > limit and not (must_have_one and not pieces):
                    break
                pieces += [batch] if batch else []
                size += len(batch)
                await asyncio.sleep(0)
                refused = self._refusal(asked.partition, asked.current_leader_epoch)
                if refused:
                    return _refused(asked, refused), []
            found = self._found(asked, family, ErrorCode.NONE)
        except CorruptRecord as problem:
            log.error("__share_group_state cannot be read: %s", problem)
            return _refused(asked, ErrorCode.CORRUPT_MESSAGE), []
        except StorageFailure as failure:
            log.error("%s of __share_group_state cannot be read: %s", family, failure)
            return _refused(asked, ErrorCode.KAFKA_STORAGE_ERROR), []
        found.records_length = size
        return found, pieces

    def _found(self, asked: Asked, family: str, error_code: ErrorCode) -> Fetched:
        end_offset = self._index.next_offset(family)
        return Fetched(
            topic_id=asked.topic_id,
            partition=asked.partition,
            error_code=error_code,
            high_watermark=end_offset,
            last_stable_offset=end_offset,
            log_start_offset=LOG_START_OFFSET,
        )

    def _refusal(self, state_partition: int, leader_epoch: int) -> ErrorCode | None:
        if not 0 <= state_partition < self._ownership.view.state_partition_count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._ownership.state_partition_refusal(state_partition) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_LEADER_EPOCH if leader_epoch > LEADER_EPOCH else None

    def _list(self, wanted: Wanted) -> Listed:
        listed = Listed(topic_id=wanted.topic_id, partition=wanted.partition, timestamp=-1, offset=-1)
        refused = self._refusal(wanted.partition, wanted.current_leader_epoch)
        if refused:
            listed.error_code = refused
            return listed
        listed.leader_epoch = LEADER_EPOCH
        family = family_of(wanted.partition)
        try:
            if wanted.timestamp == LATEST:
                listed.offset = self._index.next_offset(family)
                return listed
            if wanted.timestamp == EARLIEST:
                listed.offset = LOG_START_OFFSET
                return listed
            by_greatest = wanted.timestamp == GREATEST_TIMESTAMP
            entry = self._index.newest(family) if by_greatest else self._index.first_since(family, wanted.timestamp)
        except StorageFailure as failure:
            log.error("%s of __share_group_state cannot be read: %s", family, failure)
            listed.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return listed
        if entry is not None:
            listed.offset, listed.timestamp = entry.offset, entry.timestamp_ms
        return listed

    def _wake(self, families: Sequence[str]) -> None:
        if self._waiting:
            changed = dict.fromkeys(families)
            for event, wanted in self._waiting.items():
                if any(family in changed for family in wanted):
                    event.set()

    # Pruning

    async def _prune_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._prune_interval_ms / 1000)
            for state_partition in range(self._ownership.view.state_partition_count):
                await self._prune(state_partition)

    async def _prune(self, state_partition: int) -> None:
        try:
            while self._ownership.state_partition_refusal(state_partition) is None and self.prune(
                state_partition, self._index.now_ms()
            ):
                await asyncio.sleep(0)
        except StorageFailure as failure:
            log.warning("old tombstones of state partition %d cannot be removed: %s", state_partition, failure)
        await asyncio.sleep(0)


def _refused(asked: Asked, error_code: ErrorCode) -> Fetched:
    return Fetched(
        topic_id=asked.topic_id,
        partition=asked.partition,
        error_code=error_code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
    )
