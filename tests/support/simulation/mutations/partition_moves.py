"""Planted bugs of moves: of partitions between leaders, of state partitions between share coordinators."""

from __future__ import annotations

from collections.abc import Callable

from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_share_coordinator.machine.operations import Result
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.ownership import Ownership
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import PlantedBug

Forget = Callable[[ShareCoordinatorMachine, Callable[[SharePartitionKey], bool]], None]
Refusal = Callable[[Ownership, int, SharePartitionKey | None], Result | None]


def _forget_nothing(forget: Forget) -> Forget:
    """States that came back with a moved state partition are answered from an old cache."""

    def changed(machine: ShareCoordinatorMachine, is_forgotten: Callable[[SharePartitionKey], bool]) -> None:
        return None

    return changed


def _serve_while_moving(refusal: Refusal) -> Refusal:
    """The former owner of a state partition takes writes while its rows are copied."""

    def changed(ownership: Ownership, state_partition: int, key: SharePartitionKey | None) -> Result | None:
        move = ownership.view.state_partition_moves.get(state_partition)
        if move is not None and move.node_id == ownership.node_id:
            return None
        return refusal(ownership, state_partition, key)

    return changed


def _serve_fenced(check: Callable[[SharePartitionDirectory, TopicPartition], int]) -> Callable[..., int]:
    """A leader acquires records of a partition whose log is being copied to another leader."""

    def changed(directory: SharePartitionDirectory, key: TopicPartition) -> int:
        partition = directory._view().partition(key)
        if partition is not None and partition.is_fenced and partition.leader_node_id == directory._node_id:
            return partition.leader_epoch
        return check(directory, key)

    return changed


PLANTED = (
    PlantedBug(
        name="a leader gives out records of a partition that moves away",
        mutation=planted(Patch(SharePartitionDirectory, "check_leadership", _serve_fenced)),
        rules=("two leaders", "acquired by a former leader"),
        seed=None,
    ),
    PlantedBug(
        name="states are answered from an old cache after a move",
        mutation=planted(Patch(ShareCoordinatorMachine, "forget", _forget_nothing)),
        rules=("a confirmed state was not stored", "state went back", "a bug came to light"),
        seed=17,
    ),
    PlantedBug(
        name="the former owner of a state partition takes writes while it moves",
        mutation=planted(Patch(Ownership, "_refusal_of_place", _serve_while_moving)),
        rules=("a confirmed state was not stored",),
        seed=None,
    ),
)
