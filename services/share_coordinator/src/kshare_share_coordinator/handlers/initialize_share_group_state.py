"""InitializeShareGroupState (key 83)."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import key_to_keep
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.network import Handler
from kshare_share_coordinator.handlers.operation_service import OperationService
from kshare_share_coordinator.handlers.results import share_partition_results
from kshare_share_coordinator.machine.operations import InitializeState


def initialize_share_group_state(service: OperationService) -> Handler:
    """The handler of InitializeShareGroupState."""

    def handle(
        request: messages.InitializeShareGroupStateRequest, payload: memoryview
    ) -> asyncio.Future[messages.InitializeShareGroupStateResponse]:
        operations = [
            InitializeState(
                key=key_to_keep(request.group_id, partition.topic_id, partition.partition),
                state_epoch=partition.state_epoch,
                start_offset=partition.start_offset,
            )
            for partition in request.partitions
        ]
        return service.execute(
            operations,
            lambda results: messages.InitializeShareGroupStateResponse(
                results=share_partition_results(operations, results)
            ),
        )

    return handle
