"""Handlers of AlterShareGroupOffsets, DeleteShareGroupOffsets and the end of a share group's deletion.

Each has two stages. In the first, the machine durably records the wanted change; from then on the change will happen,
even if nodes crash. In the second, share coordinators and leaders make the change (`group_state`), and the client is
answered when they are done. If that takes too long the client gets COORDINATOR_NOT_AVAILABLE and may retry. The
recorded change continues in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kshare_coordinator.core import Core
from kshare_coordinator.group_state import GroupStateKeeper
from kshare_coordinator.handlers.topic_look_up import LookUp
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.share.administration import is_being_deleted, partitions_being_altered
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
SECOND_STAGE_TIMEOUT_MS = 20_000
"""Timeout of share coordinators and leaders, after which the client gets a retriable error."""


Part = TypeVar("Part")


class ShareGroupAdministrationHandlers:
    """The handlers; `look_up` makes the catalog know the topics of a request."""

    def __init__(self, core: Core, keeper: GroupStateKeeper, look_up: LookUp) -> None:
        self._core = core
        self._keeper = keeper
        self._look_up = look_up

    @serves(methods.ALTER_SHARE_GROUP_OFFSETS)
    async def alter_offsets(
        self, request: pb.AlterShareGroupOffsetsRequest, payload: memoryview
    ) -> pb.AlterShareGroupOffsetsResponse:
        group_id = request.group_id
        await self._look_up(topic.topic_name for topic in request.topics)
        answer = await self._core.submit(commands.AlterShareGroupOffsets(request=request))
        accepted = [result for result in answer.results if not result.error_code]

        def pending() -> list[pb.AlterShareGroupOffsetsResponse.Result]:
            altered = partitions_being_altered(self._core.state, group_id)
            return [result for result in accepted if TopicPartition(result.topic_id, result.partition) in altered]

        left = await self._pending_in_the_end(group_id, pending, accepted)
        for result in left:
            result.error_code, result.error_message = UNAVAILABLE, self._why_pending(group_id)
        return answer

    @serves(methods.DELETE_SHARE_GROUP_OFFSETS)
    async def delete_offsets(
        self, request: pb.DeleteShareGroupOffsetsRequest, payload: memoryview
    ) -> pb.DeleteShareGroupOffsetsResponse:
        group_id = request.group_id
        answer = await self._core.submit(commands.DeleteShareGroupOffsets(request=request))
        accepted = [result for result in answer.results if not result.error_code]

        def pending() -> list[pb.DeleteShareGroupOffsetsResponse.Result]:
            state = self._core.state
            return [result for result in accepted if is_being_deleted(state, group_id, result.topic_id)]

        left = await self._pending_in_the_end(group_id, pending, accepted)
        for result in left:
            result.error_code, result.error_message = UNAVAILABLE, self._why_pending(group_id)
        return answer

    async def finish_deletion(self, group_id: str) -> ErrorCode:
        """Waits after a group was deleted; NONE once all its state is deleted. StorageFailure if that is unknown."""
        left = await self._pending_in_the_end(
            group_id, lambda: [group_id] if self._is_being_deleted(group_id) else [], [group_id]
        )
        return UNAVAILABLE if left else ErrorCode.NONE

    async def _pending_in_the_end(
        self, group_id: str, pending: Callable[[], list[Part]], parts: list[Part]
    ) -> list[Part]:
        """The parts that are still pending after SECOND_STAGE_TIMEOUT_MS, or all of them if the group was lost.

        The group's new coordinator continues the recorded change. NOT_COORDINATOR would be wrong: it would mean that
        nothing was done.
        """
        await self._keeper.wait_until(
            lambda: not self._core.has_group(group_id) or not pending(), timeout_ms=SECOND_STAGE_TIMEOUT_MS
        )
        return pending() if self._core.has_group(group_id) else parts

    def _is_being_deleted(self, group_id: str) -> bool:
        group = self._core.state.share_groups.get(group_id)
        return group is not None and group.is_deleting

    def _why_pending(self, group_id: str) -> str:
        if not self._core.has_group(group_id):
            return "The operation was stored; another coordinator now has the group and completes it"
        problem = self._keeper.problem(group_id) or "share coordinators and leaders are still working on it"
        return f"The operation was stored and will be completed, but not within {SECOND_STAGE_TIMEOUT_MS} ms: {problem}"
