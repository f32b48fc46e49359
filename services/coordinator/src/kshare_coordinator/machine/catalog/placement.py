"""Placement of new topic partitions. (Moves: see `partition_moves`; state partitions: see `state_partitions`.)

In the embedded engine the data of a partition is on one node's disk. A placed partition therefore stays, even when its
node is gone, until an administrator moves it. A partition without a node goes to the live node with the fewest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from kshare_coordinator.machine import records
from kshare_coordinator.machine.state import CoordinatorState
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

NO_LEADER = -1
Placement = records_pb.TopicRecord.Placement


class LeastLoaded:
    """Gives out the live node that has least, the lowest id first; each node given out has one more from then on."""

    def __init__(self, live: Iterable[int], load: Mapping[int, int]) -> None:
        self._heap = [(load.get(node_id, 0), node_id) for node_id in live]
        heapq.heapify(self._heap)

    def take(self) -> int | None:
        """None while no node is live."""
        if not self._heap:
            return None
        load, node_id = self._heap[0]
        heapq.heapreplace(self._heap, (load + 1, node_id))
        return node_id


def placements(leaders: LeastLoaded, count: int, placement_epoch: int) -> list[Placement]:
    """Partitions 0 to count - 1 on leaders, or on NO_LEADER while there is none."""
    found = []
    for partition in range(count):
        leader = leaders.take()
        found.append(
            Placement(
                partition=partition,
                leader_node_id=NO_LEADER if leader is None else leader,
                placement_epoch=0 if leader is None else placement_epoch,
            )
        )
    return found


def draining_leaders(state: CoordinatorState) -> list[int]:
    """The draining leaders."""
    prefix = records.DRAINING_LEADER
    return sorted(int(name.removeprefix(prefix)) for name in state.texts if name.startswith(prefix))


def takers(live: Sequence[int], draining: Sequence[int]) -> list[int]:
    """The leaders that may get new partitions; draining leaders only if there are no others."""
    return [node_id for node_id in live if node_id not in draining] or list(live)


def new_partition_leaders(state: CoordinatorState) -> LeastLoaded:
    """Gives out leaders for partitions that are created."""
    live = takers(state.live_nodes(pb.ROLE_LEADER), draining_leaders(state))
    return LeastLoaded(live, state.partitions_placed)
