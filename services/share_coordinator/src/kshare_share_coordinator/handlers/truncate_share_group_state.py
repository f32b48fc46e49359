"""TruncateShareGroupState: a leader replaces a state that refers to records missing from its log."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import key_to_keep
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import TRUNCATE_SHARE_GROUP_STATE
from kshare_rpc.serving import answers
from kshare_share_coordinator.handlers.operation_service import OperationHandler
from kshare_share_coordinator.handlers.results import share_partition_results
from kshare_share_coordinator.machine.operations import TruncateState
from kshare_share_coordinator.machine.state_batches import StateBatch


class TruncateShareGroupStateHandler(OperationHandler):
    """Answers `ShareCoordinator/TruncateShareGroupState`."""

    @answers(TRUNCATE_SHARE_GROUP_STATE)
    def __call__(
        self, request: messages.TruncateShareGroupStateRequest, payload: memoryview
    ) -> asyncio.Future[messages.TruncateShareGroupStateResponse]:
        operations = [
            TruncateState(
                key=key_to_keep(request.group_id, partition.topic_id, partition.partition),
                state_epoch=partition.state_epoch,
                leader_epoch=partition.leader_epoch,
                offset=partition.offset,
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
            lambda results: messages.TruncateShareGroupStateResponse(
                results=share_partition_results(operations, results)
            ),
        )
