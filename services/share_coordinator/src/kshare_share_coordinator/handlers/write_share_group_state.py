"""WriteShareGroupState (key 85): every acknowledgement waits for it, so its path is kept minimal."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import key_to_keep
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import WRITE_SHARE_GROUP_STATE
from kshare_rpc.serving import answers
from kshare_share_coordinator.handlers.operation_service import OperationHandler
from kshare_share_coordinator.handlers.results import share_partition_results
from kshare_share_coordinator.machine.operations import WriteState
from kshare_share_coordinator.machine.state_batches import StateBatch


class WriteShareGroupStateHandler(OperationHandler):
    """Answers `ShareCoordinator/WriteShareGroupState`."""

    @answers(WRITE_SHARE_GROUP_STATE)
    def __call__(
        self, request: messages.WriteShareGroupStateRequest, payload: memoryview
    ) -> asyncio.Future[messages.WriteShareGroupStateResponse]:
        operations = [
            WriteState(
                key=key_to_keep(request.group_id, partition.topic_id, partition.partition),
                state_epoch=partition.state_epoch,
                leader_epoch=partition.leader_epoch,
                start_offset=partition.start_offset,
                delivery_complete_count=partition.delivery_complete_count,
                state_batches=[
                    StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                    for batch in partition.state_batches
                ],
                leader_epochs=partition.leader_epochs,
                has_brokers_epochs=partition.has_brokers_epochs,
            )
            for partition in request.partitions
        ]
        return self._service.execute(
            operations,
            lambda results: messages.WriteShareGroupStateResponse(results=share_partition_results(operations, results)),
        )
