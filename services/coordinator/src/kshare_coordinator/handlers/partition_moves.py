"""MovePartitions, AdvancePartitionMove, DrainLeader, DescribePartitions."""

from __future__ import annotations

from kshare_coordinator.core import Core
from kshare_coordinator.handlers.catalog import error_of
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog_view import describe_partitions
from kshare_core.errors import KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


class PartitionMoveHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def move(self, request: pb.MovePartitionsRequest, payload: memoryview) -> pb.MovePartitionsResponse:
        try:
            return await self._core.submit(commands.MovePartitions(request=request))
        except (KafkaError, StorageFailure) as error:
            code, message = error_of(error)
            return pb.MovePartitionsResponse(error_code=code, error_message=message)

    async def advance(
        self, request: pb.AdvancePartitionMoveRequest, payload: memoryview
    ) -> pb.AdvancePartitionMoveResponse:
        try:
            return await self._core.submit(commands.AdvancePartitionMove(request=request))
        except (KafkaError, StorageFailure) as error:
            code, message = error_of(error)
            return pb.AdvancePartitionMoveResponse(error_code=code, error_message=message)

    async def drain(self, request: pb.DrainLeaderRequest, payload: memoryview) -> pb.DrainLeaderResponse:
        try:
            return await self._core.submit(commands.DrainLeader(request=request))
        except (KafkaError, StorageFailure) as error:
            code, message = error_of(error)
            return pb.DrainLeaderResponse(error_code=code, error_message=message)

    async def describe(
        self, request: pb.DescribePartitionsRequest, payload: memoryview
    ) -> pb.DescribePartitionsResponse:
        try:
            return describe_partitions(self._core.state_of_catalog(), list(request.topic_names))
        except (KafkaError, StorageFailure) as error:
            code, message = error_of(error)
            return pb.DescribePartitionsResponse(error_code=code, error_message=message)
