"""DescribeProducers (key 61): the producer entries of a partition, for `kafka-transactions.sh`.

`last_timestamp` is the time of the producer's last append by the leader's clock (Kafka: the newest timestamp of its
records).
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.work_slices import ElementCount, WorkSlices
from kshare_leader.handlers.partitions import key_of
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DESCRIBE_PRODUCERS
from kshare_rpc.serving import answers


class DescribeProducersHandler:
    """Answers `Leader/DescribeProducers`."""

    def __init__(self, logs: PartitionLogs) -> None:
        self._logs = logs
        self._slices = WorkSlices()

    @answers(DESCRIBE_PRODUCERS)
    async def __call__(
        self, request: leader_pb2.DescribeProducersRequest, payload: memoryview
    ) -> leader_pb2.DescribeProducersResponse:
        count = ElementCount(self._slices)
        results = [await self._describe(partition, count) for partition in request.partitions]
        return leader_pb2.DescribeProducersResponse(results=results)

    async def _describe(
        self, partition: leader_pb2.DescribeProducersRequest.Partition, count: ElementCount
    ) -> leader_pb2.DescribeProducersResponse.Result:
        result = leader_pb2.DescribeProducersResponse.Result(topic_id=partition.topic_id, partition=partition.partition)
        try:
            log = self._logs.lookup(key_of(partition))
        except KafkaError as error:
            is_unknown = error.code == ErrorCode.UNKNOWN_TOPIC_ID
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else error.code
            result.error_message = error.message
            return result
        for producer_id, entry in list(log.producers.items()):  # they may change between two slices
            if count.add():
                await count.next_slice()
            result.active_producers.add(
                producer_id=producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_append_ms,
                coordinator_epoch=entry.coordinator_epoch,
                current_transaction_start_offset=entry.transaction_first_offset,
            )
        return result
