"""Planted bugs of leases and of the epochs that fence whoever lost one."""

from __future__ import annotations

from collections.abc import Callable

from kshare_coordinator.machine.catalog import nodes
from kshare_leader.node import LeaderNode
from kshare_share_coordinator.machine.operations import Result
from kshare_share_coordinator.ownership import Ownership
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import Focus, PlantedBug, only_faults


def _always_leased(has_lease: Callable[[LeaderNode], bool]) -> Callable[[LeaderNode], bool]:
    """A leader serves on when its lease has run out."""

    def changed(node: LeaderNode) -> bool:
        return node._follower.lease_renewed_at is not None

    return changed


def _never_refuse(lease_refusal: object) -> Callable[[Ownership], Result | None]:
    """A share coordinator serves on when its lease has run out."""

    def changed(ownership: Ownership) -> Result | None:
        return None

    return changed


def _same_epoch(next_epoch: Callable[..., int]) -> Callable[..., int]:
    """Each life of a node gets the epoch of the life before."""

    def changed(*arguments: object) -> int:
        return max(1, next_epoch(*arguments) - 1)

    return changed


CUT_OFF = Focus("nodes stand still or are cut off", (only_faults("pause", "isolate", "partition", "one-way"),))

PLANTED = (
    PlantedBug(
        name="a leader serves on after its lease",
        mutation=planted(Patch(LeaderNode, "_has_lease", _always_leased)),
        rules=("served after its lease", "acquired by a former leader"),
        focus=CUT_OFF,
        seed=8,
    ),
    PlantedBug(
        name="a share coordinator serves on after its lease",
        mutation=planted(Patch(Ownership, "lease_refusal", _never_refuse)),
        rules=("served after its lease",),
        focus=CUT_OFF,
        seed=2,
    ),
    PlantedBug(
        name="a node gets the same epoch in its next life",
        mutation=planted(Patch(nodes, "next_epoch", _same_epoch)),
        rules=("two leaders",),
        seed=1,
    ),
)
