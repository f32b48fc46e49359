"""`kshare partitions rebalance`: moves partitions from leaders with many to leaders with few.

The plan moves as few partitions as possible: afterwards the partition counts of live leaders differ by at most one.
Leaders that drain, or are gone, get nothing, and nothing is moved off them. Of the partitions of a leader that has too
many, one is taken of the topic that this leader has most of compared with the receiver, so that topics are spread too.
Partitions that move already stay with their plan: they are counted at their destination.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from kshare.commands.partitions import NamedPartition
from kshare.output import Listing, Row, counted
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


class Move(NamedTuple):
    """One partition that goes from a leader to another."""

    partition: NamedPartition
    from_node_id: int
    to_node_id: int


def plan_moves(answer: pb.DescribePartitionsResponse, topics: Sequence[str] = ()) -> list[Move]:
    """The moves, in the order in which they reduce the largest difference; only of these topics if any are named."""
    able = {leader.node_id for leader in answer.leaders if leader.is_live and not leader.is_draining}
    counts: Counter[int] = Counter(dict.fromkeys(able, 0))
    by_topic: dict[int, Counter[str]] = {node_id: Counter() for node_id in able}
    movable: dict[tuple[int, str], list[int]] = defaultdict(list)
    for topic in answer.topics:
        for partition in topic.partitions:
            at = partition.moving_to_node_id if partition.is_moving else partition.leader_node_id
            if at not in able:
                continue
            counts[at] += 1
            by_topic[at][topic.name] += 1
            if not partition.is_moving and (not topics or topic.name in topics):
                movable[at, topic.name].append(partition.partition)
    moves: list[Move] = []
    while move := _next_move(counts, by_topic, movable):
        (name, _), source, receiver = move
        moves.append(move)
        counts[source] -= 1
        counts[receiver] += 1
        by_topic[source][name] -= 1
        by_topic[receiver][name] += 1
    return moves


def by_receiver(moves: Sequence[Move]) -> dict[int, list[NamedPartition]]:
    """The partitions of each leader that gets some."""
    found: dict[int, list[NamedPartition]] = {}
    for move in moves:
        found.setdefault(move.to_node_id, []).append(move.partition)
    return found


def moves_listing(moves: Sequence[Move], state: str) -> Listing:
    """The moves, with a summary that says how far they are: planned, moving or moved."""
    rows: list[Row] = [
        {"topic": topic, "partition": number, "from_leader": move.from_node_id, "to_leader": move.to_node_id}
        for move in moves
        for topic, number in (move.partition,)
    ]
    headings = {"topic": "topic", "partition": "partition", "from_leader": "from leader", "to_leader": "to leader"}
    summary = f"{counted(len(moves), 'partition')} {state}" if moves else "the leaders are balanced; nothing to move"
    return Listing("moves", headings, rows, summary)


def _next_move(
    counts: Counter[int], by_topic: dict[int, Counter[str]], movable: dict[tuple[int, str], list[int]]
) -> Move | None:
    """A move from the leader with most partitions that has a movable one; None if it would make no difference."""
    if len(counts) < 2:
        return None
    receiver = min(counts, key=lambda node_id: (counts[node_id], node_id))
    for source in sorted(counts, key=lambda node_id: (-counts[node_id], node_id)):
        if counts[source] - counts[receiver] < 2:
            return None
        names = [name for (node_id, name), numbers in movable.items() if node_id == source and numbers]
        if names:
            name = max(names, key=lambda name: (by_topic[source][name] - by_topic[receiver][name], name))
            return Move((name, movable[source, name].pop()), source, receiver)
    return None
