"""Placement of new topic partitions. (Moves: see `partition_moves`; state partitions: see `state_partitions`.)

In the embedded engine the data of a partition is on one node's disk. A placed partition therefore stays, even when its
node is gone, until an administrator moves it. A partition without a node goes to the live node with the fewest.

In the kafka engine any node can serve any partition at once. Partitions follow the live nodes: `spread` says which ones
change whenever a node comes, goes or drains.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from kshare_coordinator.machine import records
from kshare_coordinator.machine.state import CoordinatorState
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

NO_LEADER = -1
Placement = records_pb.TopicRecord.Placement

Part = TypeVar("Part")
"""What is spread: a topic partition or a state partition."""


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


def is_spread(loads: Mapping[int, int], takers: Sequence[int]) -> bool:
    """Whether `spread` would change nothing; `loads` has the number of parts of each node."""
    found = [loads.get(node_id, 0) for node_id in takers]
    return not takers or (sum(loads.values()) == sum(found) and max(found) - min(found) < 2)


def spread(owners: Mapping[Part, int], takers: Sequence[int]) -> dict[Part, int]:
    """The new node of every part that gets another one: each of `takers` has as many as the others then, or one more.

    Only parts of other nodes change, and those that a taker has above its share: no assignment that is even needs fewer
    changes. A taker gives them up at even distances, so that what is busy together is spread. Without takers nothing
    changes.
    """
    if not takers:
        return {}
    shares = _shares(Counter(owners.values()), takers)
    parts: dict[int, list[Part]] = {node_id: [] for node_id in shares}
    homeless: list[Part] = []
    for part, node_id in owners.items():
        parts.get(node_id, homeless).append(part)
    for node_id, own in parts.items():
        homeless += _evenly(own, len(own) - shares[node_id])
    loads = {node_id: min(len(own), shares[node_id]) for node_id, own in parts.items()}
    given = LeastLoaded(takers, loads)
    return {part: taker for part in homeless if (taker := given.take()) is not None}


def _shares(loads: Mapping[int, int], takers: Sequence[int]) -> dict[int, int]:
    """How many parts each taker may keep: one more for as many as there are left over, for those that have most."""
    whole, left_over = divmod(sum(loads.values()), len(takers))
    by_load = sorted(takers, key=lambda node_id: (-loads.get(node_id, 0), node_id))
    return {node_id: whole + (place < left_over) for place, node_id in enumerate(by_load)}


def _evenly(parts: Sequence[Part], count: int) -> list[Part]:
    """`count` of the parts, at even distances; none where it is below 1."""
    length = len(parts)
    return [part for at, part in enumerate(parts) if count > 0 and (at + 1) * count // length > at * count // length]
