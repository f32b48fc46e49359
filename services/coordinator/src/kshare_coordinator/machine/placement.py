"""Where topic partitions go. (State partitions: see `state_partitions`.)

In the embedded engine the data of a partition is on one node's disk. So what is placed stays, even when its node is
gone; only what has no node yet is placed, on the live node that has least.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from kshare_coordinator.machine import records
from kshare_coordinator.machine.records import Record
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


def place_waiting_partitions(state: CoordinatorState, live: Sequence[int], placement_epoch: int) -> list[Record]:
    """Records that place every partition that waits for a leader."""
    if not live or not state.partitions_placed.get(NO_LEADER):
        return []
    leaders = LeastLoaded(live, state.partitions_placed)
    found = []
    for _, topic in sorted(state.topics.items()):
        if all(placement.leader_node_id != NO_LEADER for placement in topic.placements):
            continue
        changed = records_pb.TopicRecord()
        changed.CopyFrom(topic)
        for placement in changed.placements:
            if placement.leader_node_id == NO_LEADER:
                leader = leaders.take()
                assert leader is not None, "there are live leaders"
                placement.leader_node_id = leader
                placement.placement_epoch = placement_epoch
        found.append(records.topic(changed))
    return found


def live_with(state: CoordinatorState, role: pb.Role.ValueType, node_id: int) -> list[int]:
    """The live nodes of a role once `node_id` has joined them."""
    return sorted({*state.live_nodes(role), node_id})
