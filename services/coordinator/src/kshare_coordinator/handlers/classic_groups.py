"""Handlers of JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, DeleteGroups, OffsetDelete."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable

from kshare_coordinator.classic_group_calls import ClassicGroupCalls
from kshare_coordinator.core import Core
from kshare_coordinator.handlers.groups import described
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.classic import queries as classic_group_queries
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Clients find the coordinator anew and retry."""
NO_GENERATION = -1

DeletionResult = pb.DeleteGroupsResponse.Result
DescribedGroup = pb.DescribeGroupsResponse.DescribedGroup


def _not_joined(request: pb.JoinGroupRequest, code: ErrorCode, message: str) -> pb.JoinGroupResponse:
    return pb.JoinGroupResponse(
        error_code=code, error_message=message, generation_id=NO_GENERATION, member_id=request.member_id
    )


class ClassicGroupHandlers:
    """Handlers of classic groups; `finish_deletion` waits until a deleted share group's state is deleted elsewhere."""

    def __init__(
        self,
        core: Core,
        calls: ClassicGroupCalls,
        source: random.Random,
        finish_deletion: Callable[[str], Awaitable[ErrorCode]],
    ) -> None:
        self._core = core
        self._calls = calls
        self._random = source
        self._finish_deletion = finish_deletion

    @serves(methods.JOIN_GROUP, refused=_not_joined)
    async def join(self, request: pb.JoinGroupRequest, payload: memoryview) -> pb.JoinGroupResponse:
        suffix = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        answer = await self._calls.join(request, suffix)
        self._core.state_of_group(request.group_id)
        if isinstance(answer, pb.JoinGroupResponse):
            return answer
        assert isinstance(answer, ErrorCode), "a join is answered as a join"
        return _not_joined(request, answer, "")

    @serves(methods.SYNC_GROUP)
    async def sync(self, request: pb.SyncGroupRequest, payload: memoryview) -> pb.SyncGroupResponse:
        answer = await self._calls.sync(request)
        self._core.state_of_group(request.group_id)
        if isinstance(answer, pb.SyncGroupResponse):
            return answer
        assert isinstance(answer, ErrorCode), "a sync is answered as a sync"
        return pb.SyncGroupResponse(error_code=answer)

    @serves(methods.HEARTBEAT)
    async def heartbeat(self, request: pb.HeartbeatRequest, payload: memoryview) -> pb.HeartbeatResponse:
        return pb.HeartbeatResponse(error_code=await self._core.submit(commands.ClassicHeartbeat(request=request)))

    @serves(methods.LEAVE_GROUP)
    async def leave(self, request: pb.LeaveGroupRequest, payload: memoryview) -> pb.LeaveGroupResponse:
        return await self._core.submit(commands.LeaveGroup(request=request))

    @serves(methods.DESCRIBE_GROUPS)
    async def describe(self, request: pb.DescribeGroupsRequest, payload: memoryview) -> pb.DescribeGroupsResponse:
        def refused(group_id: str, code: ErrorCode, message: str) -> DescribedGroup:
            return DescribedGroup(group_id=group_id, error_code=code, error_message=message)

        return pb.DescribeGroupsResponse(
            groups=described(
                self._core,
                request.group_ids,
                lambda state, own: (
                    classic_group_queries.describe(state, pb.DescribeGroupsRequest(group_ids=own)).groups
                ),
                refused,
            )
        )

    @serves(methods.DELETE_GROUPS)
    async def delete(self, request: pb.DeleteGroupsRequest, payload: memoryview) -> pb.DeleteGroupsResponse:
        """Deletes each group separately; a group that is named twice is deleted once."""
        group_ids = list(dict.fromkeys(request.group_ids))
        return pb.DeleteGroupsResponse(
            results=await asyncio.gather(*(self._delete(group_id) for group_id in group_ids))
        )

    async def _delete(self, group_id: str) -> DeletionResult:
        try:
            code = await self._core.submit(commands.DeleteGroup(group_id=group_id))
            code = code or await self._finish_deletion(group_id)
        except KafkaError as error:
            return DeletionResult(group_id=group_id, error_code=error.code, error_message=error.message)
        except StorageFailure:
            code = UNAVAILABLE
        return DeletionResult(group_id=group_id, error_code=code)

    @serves(methods.OFFSET_DELETE)
    async def delete_offsets(self, request: pb.OffsetDeleteRequest, payload: memoryview) -> pb.OffsetDeleteResponse:
        return await self._core.submit(commands.DeleteOffsets(request=request))
