"""Produce (key 0): slices the payload into the partitions' batches and appends them.

Requests with a transactional id go through the TransactionVerifier. Their transactional batches must be of one
producer; otherwise all of them get INVALID_PRODUCER_ID_MAPPING, as in Kafka.

`timeout_ms` has no effect: it bounds the wait for replicas, and a log has none. acks 0 is handled as acks 1; the
gateway sends no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_fastpath.prompt_future import PromptFuture, when_all_ended
from kshare_leader.handlers.partitions import UNKNOWN, key_of, leader_in_answer
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.pending_appends import Appended
from kshare_leader.log.producers.transaction_verifier import TransactionVerifier
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import PRODUCE
from kshare_rpc.serving import answers
from kshare_wire.record_batches import read_header
from kshare_wire.record_checks import InvalidRecords

ACKS = (-1, 0, 1)
PARTITIONS_LIMIT = 10_000
"""Partitions of one request; more get INVALID_REQUEST."""


class ProduceHandler:
    """Answers `Leader/Produce`."""

    def __init__(self, logs: PartitionLogs, verifier: TransactionVerifier) -> None:
        self._logs = logs
        self._verifier = verifier

    @answers(PRODUCE)
    def __call__(
        self, request: leader_pb2.ProduceRequest, payload: memoryview
    ) -> asyncio.Future[leader_pb2.ProduceResponse]:
        answer: PromptFuture[leader_pb2.ProduceResponse] = PromptFuture(loop=asyncio.get_running_loop())
        problem = _request_problem(request, payload)
        if problem is None and request.transactional_id:
            problem = _producers_problem(request, payload)
        if problem is not None:
            refused = [self._answer(partition, problem) for partition in request.partitions]
            answer.set_result(leader_pb2.ProduceResponse(partitions=refused))
            return answer
        futures: list[asyncio.Future[Appended]] = []
        position = 0
        for partition in request.partitions:
            records = payload[position : position + partition.records_length]
            futures.append(self._append(request, partition, records))
            position += partition.records_length
        when_all_ended(futures, lambda: answer.complete(lambda: self._response(request, futures)))
        return answer

    def _response(
        self, request: leader_pb2.ProduceRequest, appends: Sequence[asyncio.Future[Appended]]
    ) -> leader_pb2.ProduceResponse:
        """The response when all appends have ended; raises an error that is not Kafka's."""
        partitions = []
        for partition, append in zip(request.partitions, appends, strict=True):
            failure = append.exception()  # not raised: its traceback would refer to this frame, which refers to it
            result = failure if isinstance(failure, KafkaError) else append.result()
            partitions.append(self._answer(partition, result))
        return leader_pb2.ProduceResponse(partitions=partitions)

    def _append(
        self, request: leader_pb2.ProduceRequest, partition: leader_pb2.ProduceRequest.Partition, records: memoryview
    ) -> asyncio.Future[Appended]:
        key, leader_epoch = key_of(partition), partition.leader_epoch
        if not request.transactional_id:
            return self._logs.append(key, records, leader_epoch=leader_epoch)
        return self._verifier.append(
            key,
            records,
            transactional_id=request.transactional_id,
            adds_partition=request.add_to_transaction,
            leader_epoch=leader_epoch,
        )

    def _answer(
        self, partition: leader_pb2.ProduceRequest.Partition, result: Appended | KafkaError
    ) -> leader_pb2.ProduceResponse.Partition:
        if isinstance(result, KafkaError):
            return leader_pb2.ProduceResponse.Partition(
                topic_id=partition.topic_id,
                partition=partition.partition,
                error_code=result.code,
                error_message=result.message,
                base_offset=UNKNOWN,
                log_append_time_ms=UNKNOWN,
                log_start_offset=UNKNOWN,
                current_leader=leader_in_answer(self._logs, key_of(partition), result.code),
                record_errors=_record_errors(result),
            )
        return leader_pb2.ProduceResponse.Partition(
            topic_id=partition.topic_id,
            partition=partition.partition,
            base_offset=result.base_offset,
            log_append_time_ms=result.log_append_time_ms,
            log_start_offset=result.log_start_offset,
            current_leader=leader_in_answer(self._logs, key_of(partition), ErrorCode.NONE),
        )


def _record_errors(error: KafkaError) -> list[leader_pb2.ProduceResponse.RecordError]:
    found = error.record_errors if isinstance(error, InvalidRecords) else ()
    return [leader_pb2.ProduceResponse.RecordError(batch_index=index, message=message) for index, message in found]


def _producers_problem(request: leader_pb2.ProduceRequest, payload: memoryview) -> KafkaError | None:
    """The error where transactional batches of one request come from several producers."""
    producers: dict[tuple[int, int], None] = {}
    position = 0
    for partition in request.partitions:
        records = payload[position : position + partition.records_length]
        position += partition.records_length
        try:
            header = read_header(records)
        except KafkaError:
            continue  # the append raises the error
        if header.is_transactional and header.has_producer_id:
            producers[(header.producer_id, header.producer_epoch)] = None
    if len(producers) <= 1:
        return None
    text = f"the transactional batches of one request are of {len(producers)} producers: {list(producers)[:5]}"
    return KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)


def _request_problem(request: leader_pb2.ProduceRequest, payload: memoryview) -> KafkaError | None:
    if request.acks not in ACKS:
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
    if len(request.partitions) > PARTITIONS_LIMIT:
        text = f"a request must name no more than {PARTITIONS_LIMIT} partitions; this one has {len(request.partitions)}"
        return KafkaError(ErrorCode.INVALID_REQUEST, text)
    lengths = [partition.records_length for partition in request.partitions]
    if any(length < 0 for length in lengths) or sum(lengths) != len(payload):
        text = f"records lengths {lengths[:10]} do not add up to the payload's {len(payload)} bytes"
        return KafkaError(ErrorCode.INVALID_REQUEST, text)
    return None
