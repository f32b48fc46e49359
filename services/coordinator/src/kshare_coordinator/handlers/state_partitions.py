"""Handlers of CompleteStatePartitionMove, DrainShareCoordinator, DescribeStatePartitions."""

from __future__ import annotations

from kshare_coordinator.core import Core
from kshare_coordinator.handlers.catalog import error_of
from kshare_coordinator.machine import commands, state_partitions
from kshare_core.errors import KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


class StatePartitionHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def complete_move(
        self, request: pb.CompleteStatePartitionMoveRequest, payload: memoryview
    ) -> pb.CompleteStatePartitionMoveResponse:
        try:
            return await self._core.submit(commands.CompleteStatePartitionMove(request=request))
        except (KafkaError, StorageFailure) as error:
            code, message = error_of(error)
            return pb.CompleteStatePartitionMoveResponse(error_code=code, error_message=message)

    async def drain(
        self, request: pb.DrainShareCoordinatorRequest, payload: memoryview
    ) -> pb.DrainShareCoordinatorResponse:
        try:
            return await self._core.submit(commands.DrainShareCoordinator(request=request))
        except (KafkaError, StorageFailure) as error:
            code, message = error_of(error)
            return pb.DrainShareCoordinatorResponse(error_code=code, error_message=message)

    async def describe(
        self, request: pb.DescribeStatePartitionsRequest, payload: memoryview
    ) -> pb.DescribeStatePartitionsResponse:
        try:
            return state_partitions.describe(self._core.state_of_catalog())
        except (KafkaError, StorageFailure) as failure:
            code, message = error_of(failure)
            return pb.DescribeStatePartitionsResponse(error_code=code, error_message=message)
