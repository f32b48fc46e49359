"""Planted bugs of dead letters: twice, lost, or of records that were not given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from kshare_leader.dead_letters.appended import AppendedOffsets
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import Run
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.transitions import Event
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import APPEND_DEAD_LETTERS
from kshare_rpc.network import Handler, Payload
from support.simulation.mutations.mutation import Patch, at_role, planted
from support.simulation.mutations.planted_bug import Focus, PlantedBug, all_with_dead_letters, often, only_faults


def _lose_dead_letters(handler: Handler) -> Handler:
    """The receiver says that it appended dead letters, and forgets some of them."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 3:
            return await handler(request, payload)
        return leader_pb2.AppendDeadLettersResponse(appended=request.offsets)

    return changed


def _repeat_dead_letters(handler: Handler) -> Handler:
    """The receiver does not know its sources, so that a repeated request is appended again."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        other = leader_pb2.AppendDeadLettersRequest.FromString(request.SerializeToString())
        other.group_id += " again"
        await handler(other, payload)
        return await handler(request, payload)

    return changed


Appended = Callable[[AppendedOffsets, Iterable[OffsetRun]], list[OffsetRun]]
EndDelivery = Callable[[SharePartition, Run, Event, GroupLimits], int]


def _know_no_source(appended: Appended) -> Appended:
    """A request that is repeated because its answer was lost is appended again."""

    def changed(row: AppendedOffsets, asked: Iterable[OffsetRun]) -> list[OffsetRun]:
        return []

    return changed


def _none_of_rejected(end_delivery: EndDelivery) -> EndDelivery:
    """A rejected record is archived at once, without a dead letter."""

    def changed(machine: SharePartition, run: Run, event: Event, limits: GroupLimits) -> int:
        return end_delivery(
            machine, run, event, replace(limits, dead_letters=False) if event is Event.REJECT else limits
        )

    return changed


def _also_of_accepted(end_delivery: EndDelivery) -> EndDelivery:
    """An accepted record that had more than one delivery gets a dead letter."""

    def changed(machine: SharePartition, run: Run, event: Event, limits: GroupLimits) -> int:
        is_accepted = event is Event.ACCEPT and run.delivery_count > 1 and limits.dead_letters
        return end_delivery(machine, run, Event.REJECT if is_accepted else event, limits)

    return changed


PLANTED = (
    PlantedBug(
        name="a repeated request appends its dead letters again",
        mutation=planted(Patch(AppendedOffsets, "appended", _know_no_source)),
        rules=("two dead letters of one record",),
        focus=Focus(
            "all groups have dead letters, rejects often, crashes and faults of links",
            (
                all_with_dead_letters,
                often("rejects"),
                only_faults("crash", "drops", "cut", "slow-link", "power-loss", "crash-between-writes"),
            ),
        ),
        seed=8,
    ),
    PlantedBug(
        name="a rejected record gets no dead letter",
        mutation=planted(Patch(SharePartition, "_end_delivery", _none_of_rejected)),
        rules=("given up without a dead letter",),
        seed=2,
    ),
    PlantedBug(
        name="an accepted record gets a dead letter",
        mutation=planted(Patch(SharePartition, "_end_delivery", _also_of_accepted)),
        rules=("a dead letter of a record that was not given up",),
        seed=2,
    ),
    PlantedBug(
        name="confirmed dead letters are lost",
        mutation=at_role("leader", APPEND_DEAD_LETTERS, _lose_dead_letters),
        rules=("given up without a dead letter",),
        seed=2,
    ),
    PlantedBug(
        name="dead letters are appended under another group's name too",
        mutation=at_role("leader", APPEND_DEAD_LETTERS, _repeat_dead_letters),
        rules=("two dead letters of one record",),
        seed=2,
    ),
)
