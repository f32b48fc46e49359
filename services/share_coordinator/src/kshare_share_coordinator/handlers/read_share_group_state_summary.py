"""ReadShareGroupStateSummary (key 87)."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE_SUMMARY
from kshare_rpc.serving import answers
from kshare_share_coordinator.handlers.operation_service import OperationHandler
from kshare_share_coordinator.machine.operations import ReadStateSummary, Result


class ReadShareGroupStateSummaryHandler(OperationHandler):
    """Answers `ShareCoordinator/ReadShareGroupStateSummary`; as in Kafka, the reader's leader epoch is not checked."""

    @answers(READ_SHARE_GROUP_STATE_SUMMARY)
    def __call__(
        self, request: messages.ReadShareGroupStateSummaryRequest, payload: memoryview
    ) -> asyncio.Future[messages.ReadShareGroupStateSummaryResponse]:
        operations = [
            ReadStateSummary(SharePartitionKey(request.group_id, partition.topic_id, partition.partition))
            for partition in request.partitions
        ]
        return self._service.execute(
            operations,
            lambda results: messages.ReadShareGroupStateSummaryResponse(
                results=[_answer(operation.key, result) for operation, result in zip(operations, results, strict=True)]
            ),
            owner_epochs=[partition.owner_epoch for partition in request.partitions],
        )


def _answer(key: SharePartitionKey, result: Result) -> messages.ReadShareGroupStateSummaryResponse.Result:
    answer = messages.ReadShareGroupStateSummaryResponse.Result(
        topic_id=key.topic_id,
        partition=key.partition,
        error_code=result.error_code,
        error_message=result.error_message,
    )
    if result.state is not None:
        answer.state_epoch = result.state.state_epoch
        answer.leader_epoch = result.state.leader_epoch
        answer.start_offset = result.state.start_offset
        answer.delivery_complete_count = result.state.delivery_complete_count
    return answer
