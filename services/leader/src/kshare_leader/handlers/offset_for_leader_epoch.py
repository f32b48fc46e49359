"""OffsetForLeaderEpoch (key 23): where the records of a leader epoch end (KIP-320).

A consumer whose partition has a new leader asks for the epoch of the last record that it read. If the log's records of
this epoch end below its position, the log lost records that it had read, as after a leader's disk was given up.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.leader_epochs import NO_EPOCH_END, end_of_epoch
from kshare_leader.handlers.partitions import key_of, log_at_epoch
from kshare_leader.ports import ServedLogs
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import OFFSET_FOR_LEADER_EPOCH
from kshare_rpc.serving import answers


class OffsetForLeaderEpochHandler:
    """Answers `Leader/OffsetForLeaderEpoch`."""

    def __init__(self, logs: ServedLogs) -> None:
        self._logs = logs

    @answers(OFFSET_FOR_LEADER_EPOCH)
    async def __call__(
        self, request: leader_pb2.OffsetForLeaderEpochRequest, payload: memoryview
    ) -> leader_pb2.OffsetForLeaderEpochResponse:
        return leader_pb2.OffsetForLeaderEpochResponse(
            partitions=[await self._answer(partition) for partition in request.partitions]
        )

    async def _answer(
        self, partition: leader_pb2.OffsetForLeaderEpochRequest.Partition
    ) -> leader_pb2.OffsetForLeaderEpochResponse.Partition:
        code, found = ErrorCode.NONE, NO_EPOCH_END
        try:
            log = log_at_epoch(self._logs, key_of(partition), partition.current_leader_epoch)
            await log.refresh()
            found = end_of_epoch(log.leader_epochs, partition.leader_epoch, log.high_watermark)
            if found != NO_EPOCH_END:  # Kafka moves the oldest epoch's start with the log's
                found = found._replace(end_offset=max(found.end_offset, log.log_start_offset))
        except (KafkaError, StorageFailure) as error:
            code = error.code
        return leader_pb2.OffsetForLeaderEpochResponse.Partition(
            topic_id=partition.topic_id,
            partition=partition.partition,
            error_code=code,
            leader_epoch=found.leader_epoch,
            end_offset=found.end_offset,
        )
