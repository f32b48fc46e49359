"""WriteTxnMarkers (key 27): appends the markers with which the transaction coordinator ends transactions.

Each partition has its own result, and the answer is sent once all markers are durable. A partition that is not led here
gets UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER; the coordinator then retries at the right leader.
"""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.handlers.partitions import key_of
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.transactions import MAX_PRODUCER_EPOCH, EndTransaction
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import WRITE_TXN_MARKERS
from kshare_rpc.serving import answers

PARTITIONS_LIMIT = 10_000
"""Partitions of one request, over all its markers; more get INVALID_REQUEST."""


class WriteTxnMarkersHandler:
    """Answers `Leader/WriteTxnMarkers`."""

    def __init__(self, logs: PartitionLogs) -> None:
        self._logs = logs

    @answers(WRITE_TXN_MARKERS)
    async def __call__(
        self, request: leader_pb2.WriteTxnMarkersRequest, payload: memoryview
    ) -> leader_pb2.WriteTxnMarkersResponse:
        pairs = [(marker, partition) for marker in request.markers for partition in marker.partitions]
        results: list[BaseException | None]
        if len(pairs) > PARTITIONS_LIMIT:
            text = f"a request must name no more than {PARTITIONS_LIMIT} partitions; this one has {len(pairs)}"
            results = [KafkaError(ErrorCode.INVALID_REQUEST, text)] * len(pairs)
        else:
            futures = [self._end(marker, partition) for marker, partition in pairs]
            results = await asyncio.gather(*futures, return_exceptions=True)
        return leader_pb2.WriteTxnMarkersResponse(
            results=[
                leader_pb2.WriteTxnMarkersResponse.Result(
                    producer_id=marker.producer_id,
                    topic_id=partition.topic_id,
                    partition=partition.partition,
                    error_code=_code(result),
                )
                for (marker, partition), result in zip(pairs, results, strict=True)
            ]
        )

    def _end(
        self,
        marker: leader_pb2.WriteTxnMarkersRequest.Marker,
        partition: leader_pb2.WriteTxnMarkersRequest.Partition,
    ) -> asyncio.Future[None]:
        if marker.producer_id < 0 or not 0 <= marker.producer_epoch <= MAX_PRODUCER_EPOCH:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            text = f"there is no producer {marker.producer_id} with epoch {marker.producer_epoch}"
            refused.set_exception(KafkaError(ErrorCode.INVALID_REQUEST, text))
            return refused
        end = EndTransaction(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
        return self._logs.end_transaction(key_of(partition), end)


def _code(result: BaseException | None) -> ErrorCode:
    if result is None:
        return ErrorCode.NONE
    if not isinstance(result, KafkaError):
        raise result
    # Kafka's coordinator knows partitions by name and has no error for an id.
    is_unknown = result.code == ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_unknown else result.code
