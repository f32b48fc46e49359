"""Handlers of ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

import random

from kshare_coordinator.core import Core
from kshare_coordinator.handlers.catalog import random_topic_id
from kshare_coordinator.handlers.groups import described
from kshare_coordinator.machine.commands import ConsumerGroupHeartbeat
from kshare_coordinator.machine.groups.consumer import view as consumer_groups_view
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import topic_id_text
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.serving import serves


class ConsumerGroupHandlers:
    """Handlers of consumer groups; `source` generates ids for members that send none."""

    def __init__(self, core: Core, settings: ConsumerGroupSettings, source: random.Random) -> None:
        self._core = core
        self._settings = settings
        self._random = source

    @serves(methods.CONSUMER_GROUP_HEARTBEAT)
    async def heartbeat(
        self, request: pb.ConsumerGroupHeartbeatRequest, payload: memoryview
    ) -> pb.ConsumerGroupHeartbeatResponse:
        new_member_id = "" if request.member_id else topic_id_text(random_topic_id(self._random))
        command = ConsumerGroupHeartbeat(request=request, new_member_id=new_member_id)
        return await self._core.submit(command)

    @serves(methods.CONSUMER_GROUP_DESCRIBE)
    async def describe(
        self, request: pb.ConsumerGroupDescribeRequest, payload: memoryview
    ) -> pb.ConsumerGroupDescribeResponse:
        def refused(group_id: str, code: ErrorCode, message: str) -> consumer_groups_view.DescribedGroup:
            return consumer_groups_view.DescribedGroup(group_id=group_id, error_code=code, error_message=message)

        return pb.ConsumerGroupDescribeResponse(
            groups=described(
                self._core,
                request.group_ids,
                lambda state, own: (
                    consumer_groups_view.describe(
                        state, self._settings, pb.ConsumerGroupDescribeRequest(group_ids=own)
                    ).groups
                ),
                refused,
            )
        )
