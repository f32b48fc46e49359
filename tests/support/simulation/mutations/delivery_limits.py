"""Planted bugs of delivery counts and of the limit at which a record is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from kshare_core.states import RecordState
from kshare_leader.machine import share_partition
from kshare_leader.machine.acquisition import Piece
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import Run
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import PendingChanges
from kshare_leader.machine.transitions import Event
from kshare_rpc.generated.methods import SHARE_FETCH
from kshare_rpc.network import Handler, Payload
from support.simulation.mutations.mutation import Patch, at_role, planted
from support.simulation.mutations.planted_bug import PlantedBug

Joined = Callable[[Iterable[Piece]], list[Piece]]
EndDelivery = Callable[[SharePartition, Run, Event, GroupLimits], int]
Add = Callable[[PendingChanges, int, int, RecordState, int], None]


def _count_no_redelivery(joined: Joined) -> Joined:
    """A member is told the new delivery count, and the machine keeps the old one."""

    def changed(chosen: Iterable[Piece]) -> list[Piece]:
        return [piece._replace(delivery_count=max(piece.delivery_count - 1, 0)) for piece in joined(chosen)]

    return changed


def _limit_moved(end_delivery: EndDelivery, by: int) -> EndDelivery:
    def changed(machine: SharePartition, run: Run, event: Event, limits: GroupLimits) -> int:
        moved = replace(limits, delivery_count_limit=limits.delivery_count_limit + by)
        return end_delivery(machine, run, event, moved)

    return changed


def _no_limit(end_delivery: EndDelivery) -> EndDelivery:
    """A record that nobody can process is delivered again for ever."""
    return _limit_moved(end_delivery, 1_000)


def _limit_too_low(end_delivery: EndDelivery) -> EndDelivery:
    """A record is given up one delivery too early."""
    return _limit_moved(end_delivery, -1)


def _store_old_counts(add: Add) -> Add:
    """The delivery that ends is not in the count that is stored."""

    def changed(changes: PendingChanges, first: int, last: int, state: RecordState, delivery_count: int) -> None:
        add(changes, first, last, state, max(delivery_count - 1, 0))

    return changed


def _count_from_one(handler: Handler) -> Handler:
    """Every delivery is said to be the first."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        answer = await handler(request, payload)
        message: Any = answer[0] if isinstance(answer, tuple) else answer
        for partition in message.partitions:
            for acquired in partition.acquired_records:
                acquired.delivery_count = 1
        return answer

    return changed


PLANTED = (
    PlantedBug(
        name="a redelivery is not counted",
        mutation=planted(Patch(share_partition, "joined", _count_no_redelivery)),
        rules=("delivery count does not grow", "delivery count forgotten"),
        seed=2,
    ),
    PlantedBug(
        name="the delivery count limit is not applied",
        mutation=planted(Patch(SharePartition, "_end_delivery", _no_limit)),
        rules=("delivery count outside 1 to the limit",),
        seed=10,
    ),
    PlantedBug(
        name="a record is given up one delivery too early",
        mutation=planted(Patch(SharePartition, "_end_delivery", _limit_too_low)),
        rules=("skipped",),
        seed=10,
    ),
    PlantedBug(
        name="the delivery that ends is not in the stored count",
        mutation=planted(Patch(PendingChanges, "add", _store_old_counts)),
        rules=("delivery count forgotten",),
        seed=2,
    ),
    PlantedBug(
        name="every delivery counts as the first",
        mutation=at_role("leader", SHARE_FETCH, _count_from_one),
        rules=("delivery count does not grow",),
        seed=1,
    ),
)
