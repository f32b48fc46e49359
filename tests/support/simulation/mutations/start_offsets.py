"""Planted bugs of start offsets: those of share-partitions, and those of logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from kshare_core.states import RecordState
from kshare_leader.machine.in_flight import InFlightWindow
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DELETE_RECORDS
from kshare_rpc.network import Handler, Payload
from support.simulation.mutations.mutation import Patch, at_role, planted
from support.simulation.mutations.planted_bug import PlantedBug

MoveStart = Callable[[InFlightWindow], bool]


def _pass_released(move_start: MoveStart) -> MoveStart:
    """The start offset passes a record that was released and waits for its next delivery."""

    def changed(window: InFlightWindow) -> bool:
        run = next(iter(window.runs), None)
        if run is not None and run.state is RecordState.AVAILABLE and run.delivery_count == 1:
            window.move(run, RecordState.ARCHIVED)
        return move_start(window)

    return changed


def _keep_deleted_records(handler: Handler) -> Handler:
    """The leader says that it deleted records, and does nothing."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        answer = leader_pb2.DeleteRecordsResponse()
        for partition in request.partitions:
            answer.results.add(
                topic_id=partition.topic_id, partition=partition.partition, low_watermark=partition.offset
            )
        return answer

    return changed


PLANTED = (
    PlantedBug(
        name="the start offset passes a released record",
        mutation=planted(Patch(InFlightWindow, "move_start", _pass_released)),
        rules=("skipped",),
        seed=1,
    ),
    PlantedBug(
        name="deleted records are kept",
        mutation=at_role("leader", DELETE_RECORDS, _keep_deleted_records),
        rules=("the log start went back", "deleted, and delivered afterwards"),
        seed=4,
    ),
)
