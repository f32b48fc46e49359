"""Handlers of CompleteStatePartitionMove, DrainShareCoordinator, DescribeStatePartitions."""

from __future__ import annotations

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog import state_partitions
from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves


class StatePartitionHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core

    @serves(methods.COMPLETE_STATE_PARTITION_MOVE, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def complete_move(
        self, request: pb.CompleteStatePartitionMoveRequest, payload: memoryview
    ) -> pb.CompleteStatePartitionMoveResponse:
        return await self._core.submit(commands.CompleteStatePartitionMove(request=request))

    @serves(methods.DRAIN_SHARE_COORDINATOR, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def drain(
        self, request: pb.DrainShareCoordinatorRequest, payload: memoryview
    ) -> pb.DrainShareCoordinatorResponse:
        return await self._core.submit(commands.DrainShareCoordinator(request=request))

    @serves(methods.DESCRIBE_STATE_PARTITIONS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def describe(
        self, request: pb.DescribeStatePartitionsRequest, payload: memoryview
    ) -> pb.DescribeStatePartitionsResponse:
        return state_partitions.describe(self._core.state_of_catalog())
