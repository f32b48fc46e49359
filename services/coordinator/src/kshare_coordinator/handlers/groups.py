"""ShareGroupHeartbeat, ShareGroupDescribe, ListGroups."""

from __future__ import annotations

from kshare_coordinator.core import Core
from kshare_coordinator.machine import commands, group_administration, group_queries
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Clients look the coordinator up again and go on; for a storage error they would not."""


class GroupHandlers:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def heartbeat(
        self, request: pb.ShareGroupHeartbeatRequest, payload: memoryview
    ) -> pb.ShareGroupHeartbeatResponse:
        try:
            return await self._core.submit(commands.ShareGroupHeartbeat(request=request))
        except KafkaError as error:
            return pb.ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
        except StorageFailure as failure:
            return pb.ShareGroupHeartbeatResponse(error_code=UNAVAILABLE, error_message=str(failure))

    async def describe(
        self, request: pb.ShareGroupDescribeRequest, payload: memoryview
    ) -> pb.ShareGroupDescribeResponse:
        try:
            return group_queries.describe(self._core.state, request)
        except StorageFailure as failure:
            groups = [
                group_queries.DescribedGroup(group_id=group_id, error_code=UNAVAILABLE, error_message=str(failure))
                for group_id in request.group_ids
            ]
            return pb.ShareGroupDescribeResponse(groups=groups)

    async def list_groups(self, request: pb.ListGroupsRequest, payload: memoryview) -> pb.ListGroupsResponse:
        try:
            return group_administration.list_groups(self._core.state, request)
        except StorageFailure:
            return pb.ListGroupsResponse(error_code=UNAVAILABLE)
