"""Planted bugs of share groups: their epochs and their assignments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.share import draft
from kshare_coordinator.machine.groups.share.draft import ShareGroupDraft
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import UNNAMED, PlantedBug

Subscriptions = Mapping[str, list[bytes]]
Assignable = Mapping[bytes, Sequence[int]]
Assign = Callable[[Subscriptions, Assignable, Mapping[str, Assignment]], dict[str, Assignment]]


def _leave_a_partition_out(assign: Assign) -> Assign:
    """The last partition of each topic is assigned to no member."""

    def changed(
        subscriptions: Subscriptions,
        assignable: Assignable,
        previous: Mapping[str, Assignment],
    ) -> dict[str, Assignment]:
        fewer = {topic_id: sorted(partitions)[:-1] for topic_id, partitions in assignable.items()}
        return assign(subscriptions, fewer, previous)

    return changed


def _epoch_goes_back(remove: Callable[[ShareGroupDraft, str], None]) -> Callable[[ShareGroupDraft, str], None]:
    """A member that leaves lowers the group's epoch."""

    def changed(one: ShareGroupDraft, member_id: str) -> None:
        remove(one, member_id)
        one._epoch -= 2
        one._assignment_epoch = min(one._assignment_epoch, one._epoch)

    return changed


PLANTED = (
    PlantedBug(
        name="one partition of a topic is assigned to no member",
        mutation=planted(Patch(draft, "assign", _leave_a_partition_out)),
        rules=("not drained",),
        seed=1,
    ),
    PlantedBug(
        name="the group epoch goes back when a member leaves",
        mutation=planted(Patch(ShareGroupDraft, "remove", _epoch_goes_back)),
        rules=(UNNAMED,),
        words="the member epoch went from",
        seed=2,
    ),
)
