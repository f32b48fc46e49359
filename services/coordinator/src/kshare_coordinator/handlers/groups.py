"""Handlers of ShareGroupHeartbeat, ShareGroupDescribe, ListGroups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kshare_coordinator.core import Core
from kshare_coordinator.handlers.topic_look_up import LookUp
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups import administration as group_administration
from kshare_coordinator.machine.groups.share import queries as group_queries
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.metadata.port import GROUP_PARTITIONS
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Clients find the coordinator anew and retry; for a storage error they would not."""


Group = TypeVar("Group")


def described(
    core: Core,
    group_ids: Sequence[str],
    describe: Callable[[CoordinatorState, Sequence[str]], Iterable[Group]],
    refused: Callable[[str, ErrorCode, str], Group],
) -> list[Group]:
    """Descriptions of groups: by `describe` for groups of this coordinator, by `refused` for each other group."""
    others: list[Group] = []
    own: list[str] = []
    for group_id in group_ids:
        try:
            core.state_of_group(group_id)
            own.append(group_id)
        except KafkaError as error:
            others.append(refused(group_id, error.code, error.message))
        except StorageFailure as failure:
            others.append(refused(group_id, UNAVAILABLE, str(failure)))
    return [*describe(core.state, own), *others] if own else others


class GroupHandlers:
    """Handlers of groups; `look_up` makes the catalog know the topics that a member subscribes to."""

    def __init__(self, core: Core, look_up: LookUp) -> None:
        self._core = core
        self._look_up = look_up

    @serves(methods.SHARE_GROUP_HEARTBEAT)
    async def heartbeat(
        self, request: pb.ShareGroupHeartbeatRequest, payload: memoryview
    ) -> pb.ShareGroupHeartbeatResponse:
        if request.subscribed_topic_names:
            await self._look_up(request.subscribed_topic_names)
        return await self._core.submit(commands.ShareGroupHeartbeat(request=request))

    @serves(methods.SHARE_GROUP_DESCRIBE)
    async def describe(
        self, request: pb.ShareGroupDescribeRequest, payload: memoryview
    ) -> pb.ShareGroupDescribeResponse:
        def refused(group_id: str, code: ErrorCode, message: str) -> group_queries.DescribedGroup:
            return group_queries.DescribedGroup(group_id=group_id, error_code=code, error_message=message)

        return pb.ShareGroupDescribeResponse(
            groups=described(
                self._core,
                request.group_ids,
                lambda state, own: group_queries.describe(state, pb.ShareGroupDescribeRequest(group_ids=own)).groups,
                refused,
            )
        )

    @serves(methods.LIST_GROUPS)
    async def list_groups(self, request: pb.ListGroupsRequest, payload: memoryview) -> pb.ListGroupsResponse:
        answer = group_administration.list_groups(self._core.state, request)
        partitions = self._core.own_group_partitions()
        if len(partitions) < GROUP_PARTITIONS:
            own = dict.fromkeys(partitions)
            kept = [group for group in answer.groups if partition_of_group(group.group_id) in own]
            answer = pb.ListGroupsResponse(groups=kept)
        answer.group_partitions.extend(partitions)
        return answer
