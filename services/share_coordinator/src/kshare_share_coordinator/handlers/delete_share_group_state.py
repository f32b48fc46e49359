"""DeleteShareGroupState (key 86)."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import DELETE_SHARE_GROUP_STATE
from kshare_rpc.serving import answers
from kshare_share_coordinator.handlers.operation_service import OperationHandler
from kshare_share_coordinator.handlers.request_order import Sent
from kshare_share_coordinator.handlers.results import share_partition_results
from kshare_share_coordinator.machine.operations import DeleteState


class DeleteShareGroupStateHandler(OperationHandler):
    """Answers `ShareCoordinator/DeleteShareGroupState`."""

    @answers(DELETE_SHARE_GROUP_STATE)
    def __call__(
        self, request: messages.DeleteShareGroupStateRequest, payload: memoryview
    ) -> asyncio.Future[messages.DeleteShareGroupStateResponse]:
        operations = [
            DeleteState(SharePartitionKey(request.group_id, partition.topic_id, partition.partition))
            for partition in request.partitions
        ]
        return self._service.execute(
            operations,
            lambda results: messages.DeleteShareGroupStateResponse(
                results=share_partition_results(operations, results)
            ),
            Sent(request.sender, request.sent_number),
        )
