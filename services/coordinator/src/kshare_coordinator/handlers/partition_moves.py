"""Handlers of MovePartitions, AdvancePartitionMove, DrainLeader, DescribePartitions, GiveUpNode."""

from __future__ import annotations

import logging

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.giving_up import describe_loss
from kshare_coordinator.machine.catalog.view import describe_partitions
from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves

log = logging.getLogger(__name__)

LOGGED_NAMES = 20


class PartitionMoveHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core

    @serves(methods.GIVE_UP_NODE, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def give_up(self, request: pb.GiveUpNodeRequest, payload: memoryview) -> pb.GiveUpNodeResponse:
        """Gives up a node at the active coordinator; each other coordinator reports its groups' state that is lost."""
        if not request.unsafe:
            return describe_loss(self._core.state, request)
        answer = await self._core.submit(commands.GiveUpNode(request=request))
        _log_loss(request, answer)
        return answer

    @serves(methods.MOVE_PARTITIONS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def move(self, request: pb.MovePartitionsRequest, payload: memoryview) -> pb.MovePartitionsResponse:
        return await self._core.submit(commands.MovePartitions(request=request))

    @serves(methods.ADVANCE_PARTITION_MOVE, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def advance(
        self, request: pb.AdvancePartitionMoveRequest, payload: memoryview
    ) -> pb.AdvancePartitionMoveResponse:
        return await self._core.submit(commands.AdvancePartitionMove(request=request))

    @serves(methods.DRAIN_LEADER, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def drain(self, request: pb.DrainLeaderRequest, payload: memoryview) -> pb.DrainLeaderResponse:
        return await self._core.submit(commands.DrainLeader(request=request))

    @serves(methods.DESCRIBE_PARTITIONS, storage_failed=ErrorCode.KAFKA_STORAGE_ERROR)
    async def describe(
        self, request: pb.DescribePartitionsRequest, payload: memoryview
    ) -> pb.DescribePartitionsResponse:
        return describe_partitions(self._core.state_of_catalog(), list(request.topic_names))


def _log_loss(request: pb.GiveUpNodeRequest, answer: pb.GiveUpNodeResponse) -> None:
    if request.role == pb.ROLE_LEADER:
        what, names = "records", [f"{lost.topic_name}:{lost.partition}" for lost in answer.partitions]
    else:
        what = "share group state"
        names = [
            f"{lost.group_id} of {lost.topic_name}:{','.join(map(str, lost.partitions))}" for lost in answer.states
        ]
    more = f" and {len(names) - LOGGED_NAMES} more" if len(names) > LOGGED_NAMES else ""
    role = pb.Role.Name(request.role).removeprefix("ROLE_").lower().replace("_", " ")
    log.warning(
        "%s %d was given up; lost %s: %s%s",
        role,
        request.node_id,
        what,
        "; ".join(names[:LOGGED_NAMES]) or "none",
        more,
    )
