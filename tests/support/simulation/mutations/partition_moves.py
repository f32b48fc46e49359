"""Planted bugs of moves: of partitions between leaders, of state partitions between share coordinators."""

from __future__ import annotations

from collections.abc import Callable

from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_share_coordinator.machine.operations import Result
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.ownership import Ownership
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import Focus, PlantedBug, at_least, only_faults, with_activities
from support.simulation.plan import MOVES

Partition = coordinator_pb2.Topic.Partition
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


def _keep_open(serves: Callable[[PartitionLogs, Partition], bool]) -> Callable[[PartitionLogs, Partition], bool]:
    """The log of a fenced partition stays open while its rest is copied to another leader."""

    def changed(logs: PartitionLogs, partition: Partition) -> bool:
        return partition.leader_node_id == logs._node_id

    return changed


def _lead_fenced(check: Callable[[SharePartitionDirectory, TopicPartition], int]) -> Callable[..., int]:
    """A leader acquires records of a partition whose log is being copied to another leader."""

    def changed(directory: SharePartitionDirectory, key: TopicPartition) -> int:
        partition = directory._view().partition(key)
        if partition is not None and partition.is_fenced and partition.leader_node_id == directory._node_id:
            return partition.leader_epoch
        return check(directory, key)

    return changed


PLANTED = (
    PlantedBug(
        name="a leader serves a partition on while its log moves away",
        mutation=planted(
            Patch(SharePartitionDirectory, "check_leadership", _lead_fenced),
            Patch(PartitionLogs, "_serves", _keep_open),
        ),
        rules=("acquired after its handover", "acquired by a former leader", "produced and confirmed, but lost"),
        focus=Focus(
            "two leaders, moves of partitions, slow links",
            (at_least(leaders=2, gateways=2), with_activities(MOVES), only_faults("slow-link", "slow-host")),
        ),
        seed=5,
    ),
    PlantedBug(
        name="states are answered from an old cache after a move",
        mutation=planted(Patch(ShareCoordinatorMachine, "forget", _forget_nothing)),
        rules=("a confirmed state was not stored", "state went back"),
        seed=7,
    ),
    PlantedBug(
        name="the former owner of a state partition takes writes while it moves",
        mutation=planted(Patch(Ownership, "_refusal_of_place", _serve_while_moving)),
        rules=("written after its handover", "a confirmed state was not stored"),
        focus=Focus(
            "two share coordinators, slow drains",
            (at_least(share_coordinators=2), only_faults("slow-drain", "slow-link")),
        ),
        seed=3,
    ),
)
