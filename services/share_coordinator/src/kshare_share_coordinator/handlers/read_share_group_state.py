"""ReadShareGroupState (key 84)."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import SharePartitionKey, key_to_keep
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE
from kshare_rpc.serving import answers
from kshare_share_coordinator.handlers.operation_service import OperationHandler
from kshare_share_coordinator.machine.operations import ReadState, Result


class ReadShareGroupStateHandler(OperationHandler):
    """Answers `ShareCoordinator/ReadShareGroupState`."""

    @answers(READ_SHARE_GROUP_STATE)
    def __call__(
        self, request: messages.ReadShareGroupStateRequest, payload: memoryview
    ) -> asyncio.Future[messages.ReadShareGroupStateResponse]:
        operations = [
            ReadState(
                key=key_to_keep(request.group_id, partition.topic_id, partition.partition),
                leader_epoch=partition.leader_epoch,
            )
            for partition in request.partitions
        ]
        return self._service.execute(
            operations,
            lambda results: messages.ReadShareGroupStateResponse(
                results=[_answer(operation.key, result) for operation, result in zip(operations, results, strict=True)]
            ),
            owner_epochs=[partition.owner_epoch for partition in request.partitions],
        )


def _answer(key: SharePartitionKey, result: Result) -> messages.ReadShareGroupStateResponse.Result:
    answer = messages.ReadShareGroupStateResponse.Result(
        topic_id=key.topic_id,
        partition=key.partition,
        error_code=result.error_code,
        error_message=result.error_message,
    )
    if result.state is not None:
        answer.state_epoch = result.state.state_epoch
        answer.start_offset = result.state.start_offset
        answer.leader_epochs = result.state.leader_epochs
        if result.state.truncation is not None:
            answer.truncation_leader_epoch = result.state.truncation.leader_epoch
            answer.truncation_offset = result.state.truncation.offset
        for first_offset, last_offset, delivery_state, delivery_count in result.state.state_batches:
            answer.state_batches.add(
                first_offset=first_offset,
                last_offset=last_offset,
                delivery_state=delivery_state,
                delivery_count=delivery_count,
            )
    return answer
