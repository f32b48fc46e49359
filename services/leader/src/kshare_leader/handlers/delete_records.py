"""DeleteRecords (key 21): moves log start offsets; the records below are deleted for every reader.

The rules of Partition.deleteRecordsOnLeader of Kafka 4.3: a topic that is only compacted refuses (POLICY_VIOLATION);
offset -1 is the high watermark; any other negative offset, and one above the high watermark, is OFFSET_OUT_OF_RANGE; an
offset below the log start changes nothing. The answer has the resulting log start offset. All partitions of a request
share one durable write, done before the answer.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_leader.handlers.partitions import UNKNOWN, key_of
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DELETE_RECORDS
from kshare_rpc.serving import answers

HIGH_WATERMARK = -1
PARTITIONS_LIMIT = 10_000
"""Partitions of one request; more get INVALID_REQUEST."""

_Result = leader_pb2.DeleteRecordsResponse.Result


class DeleteRecordsHandler:
    """Answers `Leader/DeleteRecords`."""

    def __init__(self, logs: PartitionLogs) -> None:
        self._logs = logs

    @answers(DELETE_RECORDS)
    async def __call__(
        self, request: leader_pb2.DeleteRecordsRequest, payload: memoryview
    ) -> leader_pb2.DeleteRecordsResponse:
        if len(request.partitions) > PARTITIONS_LIMIT:
            results = [_refused(partition, ErrorCode.INVALID_REQUEST) for partition in request.partitions]
            return leader_pb2.DeleteRecordsResponse(results=results)
        found: list[tuple[leader_pb2.DeleteRecordsRequest.Partition, PartitionLog | ErrorCode]] = []
        starts: dict[PartitionLog, int] = {}
        for partition in request.partitions:
            try:
                log = self._logs.lookup(key_of(partition))
                starts[log] = max(starts.get(log, 0), _checked_offset(log, partition.offset))
                found.append((partition, log))
            except KafkaError as error:
                found.append((partition, error.code))
        failure = ErrorCode.NONE
        try:
            self._logs.move_starts(list(starts.items()))
        except StorageFailure:
            failure = ErrorCode.KAFKA_STORAGE_ERROR
        return leader_pb2.DeleteRecordsResponse(results=[_result(partition, log, failure) for partition, log in found])


def _checked_offset(log: PartitionLog, offset: int) -> int:
    """The requested log start offset; KafkaError where it must not be set."""
    settings = log.settings
    if settings.compacts and not settings.deletes:
        text = f"records of partition {log.name} cannot be deleted: its cleanup.policy is compact"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    if offset == HIGH_WATERMARK:
        return log.high_watermark
    if not 0 <= offset <= log.high_watermark:
        text = f"offset {offset} of partition {log.name} is not between 0 and its high watermark {log.high_watermark}"
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
    return offset


def _result(
    partition: leader_pb2.DeleteRecordsRequest.Partition, log: PartitionLog | ErrorCode, failure: ErrorCode
) -> _Result:
    if isinstance(log, ErrorCode):
        return _refused(partition, log)
    if failure:
        return _refused(partition, failure)
    return _Result(topic_id=partition.topic_id, partition=partition.partition, low_watermark=log.log_start_offset)


def _refused(partition: leader_pb2.DeleteRecordsRequest.Partition, code: ErrorCode) -> _Result:
    return _Result(topic_id=partition.topic_id, partition=partition.partition, low_watermark=UNKNOWN, error_code=code)
