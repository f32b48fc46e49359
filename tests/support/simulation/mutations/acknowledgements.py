"""Planted bugs of acknowledgements, as leaders take them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from kshare_core.errors import ErrorCode
from kshare_core.states import RecordState
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateWrite
from kshare_leader.share.state_writing import StateWriting
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE
from kshare_rpc.network import Handler, Payload
from support.simulation.mutations.mutation import Patch, at_role, planted
from support.simulation.mutations.planted_bug import PlantedBug

BecameDurable = Callable[[StateWriting, SharePartition, StateWrite], None]
Spans = Sequence[tuple[int, int]]


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


def _give_rejected_to_waiting(became_durable: BecameDurable) -> BecameDurable:
    """A record whose rejection has just become durable is given to a fetch that waits; without one it stays ended."""

    def changed(writing: StateWriting, machine: SharePartition, write: StateWrite) -> None:
        rejected = [  # no limit is one delivery, and a record with a dead letter would be Archiving
            (run.first_offset, run.last_offset)
            for run in machine.runs()
            if (run.write_id, run.delivery_count) == (write.write_id, 1)
            and (run.state, run.target) == (RecordState.ACQUIRED, RecordState.ARCHIVED)
        ]
        became_durable(writing, machine, write)
        _move(machine, rejected, RecordState.ARCHIVED, RecordState.AVAILABLE)
        loop = asyncio.get_running_loop()
        # The waiting fetches are woken in the next step, and this is the one behind it.
        loop.call_soon(loop.call_soon, _move, machine, rejected, RecordState.AVAILABLE, RecordState.ARCHIVED)

    return changed


def _move(machine: SharePartition, spans: Spans, before: RecordState, after: RecordState) -> None:
    """Moves what is in the state `before` to the other; below the start offset there is nothing any more."""
    for first, last in spans:
        if last < machine.start_offset:
            continue
        start, stop = machine._window.runs.slice_of(max(first, machine.start_offset), last)
        for run in machine._window.runs.runs(start, stop):
            if run.state is before:
                machine._window.move(run, after)
    machine._move_start_without_write()


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
    PlantedBug(
        name="a record that was just rejected is given to a fetch that waits",
        mutation=planted(Patch(StateWriting, "_became_durable", _give_rejected_to_waiting)),
        rules=("acquired after its confirmed end", "ended twice"),
        seed=2,
    ),
)
