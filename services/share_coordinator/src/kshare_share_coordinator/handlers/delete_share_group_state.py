"""DeleteShareGroupState (key 86)."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.network import Handler
from kshare_share_coordinator.handlers.operation_service import OperationService
from kshare_share_coordinator.handlers.results import share_partition_results
from kshare_share_coordinator.machine.operations import DeleteState


def delete_share_group_state(service: OperationService) -> Handler:
    """The handler of DeleteShareGroupState."""

    def handle(
        request: messages.DeleteShareGroupStateRequest, payload: memoryview
    ) -> asyncio.Future[messages.DeleteShareGroupStateResponse]:
        operations = [
            DeleteState(SharePartitionKey(request.group_id, partition.topic_id, partition.partition))
            for partition in request.partitions
        ]
        return service.execute(
            operations,
            lambda results: messages.DeleteShareGroupStateResponse(
                results=share_partition_results(operations, results)
            ),
        )

    return handle
