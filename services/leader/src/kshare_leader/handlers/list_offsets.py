"""ListOffsets (key 2): looks up offsets by time, and the start and end offsets of a log.

Besides the times that the protocol lists, -4 (the earliest local offset) is the log start, because no log has remote
segments, and -5 (the latest offset in remote storage) does not exist, as in Kafka without tiered storage. Any other
negative time gets UNSUPPORTED_VERSION, as in Kafka. Look-ups by time yield to the event loop.

Read-committed consumers see nothing from the last stable offset on: it is their latest offset, and a record behind it
is not found.
"""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_leader.handlers.partitions import UNKNOWN, key_of, log_at_epoch
from kshare_leader.ports import ServedLog, ServedLogs, TimestampOffset
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import LIST_OFFSETS
from kshare_rpc.serving import answers

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5

READ_COMMITTED = 1
REFRESHED_TOGETHER = 500
"""Logs of an existing cluster that are refreshed at the same time share requests to it."""
_NOTHING = TimestampOffset(UNKNOWN, UNKNOWN)


class ListOffsetsHandler:
    """Answers `Leader/ListOffsets`."""

    def __init__(self, logs: ServedLogs) -> None:
        self._logs = logs

    @answers(LIST_OFFSETS)
    async def __call__(
        self, request: leader_pb2.ListOffsetsRequest, payload: memoryview
    ) -> leader_pb2.ListOffsetsResponse:
        answers = []
        for first in range(0, len(request.partitions), REFRESHED_TOGETHER):
            partitions = request.partitions[first : first + REFRESHED_TOGETHER]
            logs = await asyncio.gather(*map(self._refreshed, partitions))
            for partition, log in zip(partitions, logs, strict=True):
                answers.append(await _answer(partition, log, request.isolation_level))
        return leader_pb2.ListOffsetsResponse(partitions=answers)

    async def _refreshed(self, partition: leader_pb2.ListOffsetsRequest.Partition) -> ServedLog | KafkaError:
        try:
            log = log_at_epoch(self._logs, key_of(partition), partition.current_leader_epoch)
            await log.refresh()
        except KafkaError as error:
            return error
        return log


async def _answer(
    partition: leader_pb2.ListOffsetsRequest.Partition, log: ServedLog | KafkaError, isolation_level: int
) -> leader_pb2.ListOffsetsResponse.Partition:
    code, found, leader_epoch = ErrorCode.NONE, _NOTHING, UNKNOWN
    try:
        if isinstance(log, KafkaError):
            raise log
        found = await _find(log, partition.timestamp, isolation_level) or _NOTHING
        if found.offset != UNKNOWN:
            # As in Kafka, LATEST has the leader's own epoch also where it is the last stable offset.
            leader_epoch = log.epoch_at(log.high_watermark if partition.timestamp == LATEST else found.offset)
    except KafkaError as error:
        code, found = error.code, _NOTHING
    except StorageFailure as failure:
        code, found = failure.code, _NOTHING
    return leader_pb2.ListOffsetsResponse.Partition(
        topic_id=partition.topic_id,
        partition=partition.partition,
        error_code=code,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=leader_epoch,
    )


async def _find(log: ServedLog, timestamp_ms: int, isolation_level: int) -> TimestampOffset | None:
    end_offset = log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark
    if timestamp_ms >= 0 or timestamp_ms == MAX_TIMESTAMP:
        if timestamp_ms == MAX_TIMESTAMP:
            found = await log.offset_of_max_timestamp()
        else:
            found = await log.offset_for_timestamp(timestamp_ms)
        return found if found is not None and found.offset < end_offset else None
    if timestamp_ms == LATEST:
        return TimestampOffset(UNKNOWN, end_offset)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return TimestampOffset(UNKNOWN, log.log_start_offset)
    if timestamp_ms == LATEST_TIERED:
        return None
    text = f"time {timestamp_ms} is not supported; negative timestamps must be from -5 to -1"
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
