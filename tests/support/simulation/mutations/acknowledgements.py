"""Planted bugs of acknowledgements, as leaders take them."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE
from kshare_rpc.network import Handler, Payload
from support.simulation.mutations.mutation import at_role
from support.simulation.mutations.planted_bug import PlantedBug


def _drop_acknowledgements(handler: Handler) -> Handler:
    """The leader says that acknowledgements were taken, and forgets some of them."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 5:
            return await handler(request, payload)
        answer = leader_pb2.ShareAcknowledgeResponse()
        for partition in request.partitions:
            answer.partitions.add(topic_id=partition.topic_id, partition=partition.partition)
        return answer

    return changed


def _refuse_acknowledgements(handler: Handler) -> Handler:
    """The leader refuses some acknowledgements of what is held."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 10:
            return await handler(request, payload)
        answer = leader_pb2.ShareAcknowledgeResponse()
        for partition in request.partitions:
            answer.partitions.add(
                topic_id=partition.topic_id,
                partition=partition.partition,
                error_code=ErrorCode.INVALID_RECORD_STATE,
            )
        return answer

    return changed


PLANTED = (
    PlantedBug(
        name="the leader forgets acknowledgements that it confirmed",
        mutation=at_role("leader", SHARE_ACKNOWLEDGE, _drop_acknowledgements),
        rules=("delivered after its confirmation", "delivery count forgotten"),
        seed=1,
    ),
    PlantedBug(
        name="acknowledgements of what is held are refused",
        mutation=at_role("leader", SHARE_ACKNOWLEDGE, _refuse_acknowledgements),
        rules=("acknowledgement refused without a reason",),
        seed=2,
    ),
)
