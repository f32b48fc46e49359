"""InitializeShareGroupState (key 83)."""

from __future__ import annotations

import asyncio

from kshare_core.identifiers import key_to_keep
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import INITIALIZE_SHARE_GROUP_STATE
from kshare_rpc.serving import answers
from kshare_share_coordinator.handlers.operation_service import OperationHandler
from kshare_share_coordinator.handlers.request_order import Sent
from kshare_share_coordinator.handlers.results import share_partition_results
from kshare_share_coordinator.machine.operations import InitializeState


class InitializeShareGroupStateHandler(OperationHandler):
    """Answers `ShareCoordinator/InitializeShareGroupState`."""

    @answers(INITIALIZE_SHARE_GROUP_STATE)
    def __call__(
        self, request: messages.InitializeShareGroupStateRequest, payload: memoryview
    ) -> asyncio.Future[messages.InitializeShareGroupStateResponse]:
        operations = [
            InitializeState(
                key=key_to_keep(request.group_id, partition.topic_id, partition.partition),
                state_epoch=partition.state_epoch,
                start_offset=partition.start_offset,
            )
            for partition in request.partitions
        ]
        return self._service.execute(
            operations,
            lambda results: messages.InitializeShareGroupStateResponse(
                results=share_partition_results(operations, results)
            ),
            Sent(request.sender, request.sent_number),
        )
