"""AppendDeadLetters: appends dead letters of a share-partition to a partition led here, each exactly once (KIP-1191).

The batch is appended like a produced one. The row with the source offsets that the log now has is in the same atomic
write (`dead_letters.appended`). A batch is not appended where the log already has some of its dead letters: the answer
names those, and the sender sends the rest. Requests for one row are handled one after the other, because the second
must see what the first wrote.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.dead_letters.appended import (
    AppendedOffsets,
    decode_row,
    encode_row,
    parse_row_key,
    row_key,
    row_of_epoch,
)
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.dead_letters.limits import APPENDED_RUNS_LIMIT, ROW_KEPT_MS, ROWS_REMOVED_LIMIT
from kshare_leader.log import keys
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.share.start_offset import Truncation
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import common_pb2, leader_pb2
from kshare_rpc.generated.methods import APPEND_DEAD_LETTERS
from kshare_rpc.serving import answers
from kshare_runtime.ports import Clock, KeyValueStore, Write
from kshare_wire.record_batches import read_produced_batch

TOPIC_ID_BYTES = 16


class AppendDeadLettersHandler:
    """Answers `Leader/AppendDeadLetters`."""

    def __init__(
        self,
        logs: PartitionLogs,
        store: KeyValueStore,
        clock: Clock,
        *,
        keeps: Callable[[bytes], bool] = lambda topic_id: False,
    ) -> None:
        """`keeps`: whether a topic that the catalog does not know may be no deleted one (`StrayTopics.keeps`)."""
        self._logs = logs
        self._keeps = keeps
        self._store = store
        self._clock = clock
        self._under_way: dict[bytes, asyncio.Future[None]] = {}

    @answers(APPEND_DEAD_LETTERS)
    async def __call__(
        self, request: leader_pb2.AppendDeadLettersRequest, payload: memoryview
    ) -> leader_pb2.AppendDeadLettersResponse:
        try:
            appended = await self._take_turn(request, payload)
        except KafkaError as error:
            return leader_pb2.AppendDeadLettersResponse(error_code=error.code, error_message=error.message)
        except StorageFailure as failure:
            code = ErrorCode.KAFKA_STORAGE_ERROR
            return leader_pb2.AppendDeadLettersResponse(error_code=code, error_message=str(failure))
        ranges = [common_pb2.OffsetRange(first_offset=first, last_offset=last) for first, last in appended]
        return leader_pb2.AppendDeadLettersResponse(appended=ranges)

    async def _take_turn(self, request: leader_pb2.AppendDeadLettersRequest, payload: memoryview) -> list[OffsetRun]:
        destination = TopicPartition(request.topic_id, request.partition)
        self._logs.lookup(destination)
        source = SharePartitionKey(request.group_id, request.source_topic_id, request.source_partition)
        if len(source.topic_id) != TOPIC_ID_BYTES or source.partition < 0:
            text = f"the source has a topic id of {len(source.topic_id)} bytes and partition {source.partition}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        key = row_key(destination, source)
        while (earlier := self._under_way.get(key)) is not None:
            await asyncio.wait([earlier])
        mine = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            return await self._append(key, request, payload)
        finally:
            del self._under_way[key]
            mine.set_result(None)

    async def _append(
        self, key: bytes, request: leader_pb2.AppendDeadLettersRequest, payload: memoryview
    ) -> list[OffsetRun]:
        """Appends the batch; returns the source offsets of the request that the log has now."""
        destination = TopicPartition(request.topic_id, request.partition)
        self._logs.lookup(destination)
        asked = _asked_offsets(request, payload)
        truncation = Truncation(request.source_truncation_leader_epoch, request.source_truncation_offset)
        row = row_of_epoch(self._row(key), request.state_epoch, truncation)
        already = row.appended(asked)
        if already:
            return already
        changed = row.after(request.source_start_offset, asked, self._clock.now_ms())
        if len(changed.runs) > APPENDED_RUNS_LIMIT:
            text = f"the source has more than {APPENDED_RUNS_LIMIT} runs of dead letters above its start offset"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        # The payload is the caller's buffer; it stays unchanged until this call is answered.
        await self._logs.append(destination, payload, writes=[Write(keys.DEAD_LETTERS, key, encode_row(changed))])
        return asked

    def _row(self, key: bytes) -> AppendedOffsets | None:
        value = self._store.get(keys.DEAD_LETTERS, key)
        return None if value is None else _decoded(value)

    def remove_unneeded(self, view: CatalogView, report: Callable[[str], None]) -> None:
        """Removes rows of sources whose topic was deleted, or whose group has had no dead-letter topic for ROW_KEPT_MS.

        Rows of a deleted dead-letter topic are removed with its records. A disk failure is reported and retried at the
        next call. A catalog of another cluster removes nothing.
        """
        if self._logs.is_foreign:
            return
        try:
            self._remove_unneeded(view)
        except StorageFailure as failure:
            report(f"the index of appended dead letters could not be pruned: {failure}")

    def _remove_unneeded(self, view: CatalogView) -> None:
        forgotten_before_ms = self._clock.now_ms() - ROW_KEPT_MS
        removed: list[Write] = []
        for key, value in self._store.scan(keys.DEAD_LETTERS, b""):
            _, source = parse_row_key(key)
            if source.topic_id in view.topics_by_id:
                has_topic = view.group_configs.get(source.group_id, {}).get("errors.deadletterqueue.topic.name")
                if has_topic or _decoded(value).last_append_ms >= forgotten_before_ms:
                    continue
            elif self._keeps(source.topic_id):
                continue
            if key not in self._under_way:
                removed.append(Write(keys.DEAD_LETTERS, key, None))
            if len(removed) == ROWS_REMOVED_LIMIT:
                break
        if removed:
            self._store.write(removed)


def _decoded(value: bytes) -> AppendedOffsets:
    try:
        return decode_row(value)
    except struct.error as error:
        raise StorageFailure(f"the index of appended dead letters is damaged: {error}") from error


def _asked_offsets(request: leader_pb2.AppendDeadLettersRequest, payload: memoryview) -> list[OffsetRun]:
    """The source offsets of the batch's records; KafkaError INVALID_REQUEST where they do not fit it."""
    asked = [OffsetRun(run.first_offset, run.last_offset) for run in request.offsets]
    _check_ascending(asked)
    count = sum(last - first + 1 for first, last in asked)
    header = read_produced_batch(payload)
    if header.record_count != count:
        text = f"the batch has {header.record_count} dead letters, but {count} source offsets are given"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    return asked


def _check_ascending(asked: Sequence[OffsetRun]) -> None:
    previous = -1
    for first, last in asked:
        if not previous < first <= last:
            text = f"source offsets {first}-{last} must begin after {previous} and be a valid range"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        previous = last
    if not asked:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no source offsets are given")
