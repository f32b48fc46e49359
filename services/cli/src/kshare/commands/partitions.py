"""`kshare partitions list | move | drain`: the leaders of topic partitions, and reassignment.

A reassignment copies the records while they are served, and pauses clients for some milliseconds at its end. The
coordinator and the leaders carry it out whether the command waits for it or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import CoordinatorUnreachable, call_coordinator
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import Listing, Row, counted, show
from kshare_core.whole_numbers import LARGEST_INT, whole_number
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DESCRIBE_PARTITIONS, DRAIN_LEADER, MOVE_PARTITIONS

POLL_INTERVAL_S = 0.2
SHOWN_PROBLEMS = 10

NamedPartition = tuple[str, int]


def parse_partitions(text: str) -> list[NamedPartition]:
    """Parses `TOPIC:PARTITION[,…]`; CommandFailed."""
    found: dict[NamedPartition, None] = {}
    for part in text.split(","):
        topic, colon, number = part.strip().rpartition(":")
        partition = whole_number(number, LARGEST_INT)
        if not colon or not topic or partition is None:
            raise CommandFailed(
                f"partitions must be TOPIC:PARTITION[,…], such as orders:0,orders:1, found {part!r}", BAD_USE
            )
        found[topic, partition] = None
    return list(found)


# Listing


def describe_partitions(coordinator: Address, topics: Sequence[str]) -> pb.DescribePartitionsResponse:
    """The partitions of `topics`, of all topics if it is empty; CommandFailed."""
    answer = call_coordinator(coordinator, DESCRIBE_PARTITIONS, pb.DescribePartitionsRequest(topic_names=topics))
    if answer.error_code:
        raise CommandFailed(f"the coordinator failed to describe the partitions: {answer.error_message}")
    return answer


def show_partitions(coordinator: Address, topics: Sequence[str], console: Console, *, as_json: bool = False) -> None:
    """Prints two tables: the partitions, and the leaders with their partition counts."""
    answer = describe_partitions(coordinator, topics)
    show(console, partitions_listing(answer), leaders_listing(answer), as_json=as_json)


def partitions_listing(answer: pb.DescribePartitionsResponse) -> Listing:
    live = {leader.node_id for leader in answer.leaders if leader.is_live}
    rows: list[Row] = [
        {
            "topic": topic.name,
            "partition": partition.partition,
            "leader": _leader(partition.leader_node_id, live),
            "leader_node_id": partition.leader_node_id if partition.leader_node_id >= 0 else None,
            "is_leader_live": partition.leader_node_id in live,
            "epoch": partition.leader_epoch,
            "moving_to": _moving_to(partition),
        }
        for topic in answer.topics
        for partition in topic.partitions
    ]
    headings = {
        "topic": "topic",
        "partition": "partition",
        "leader": "leader",
        "epoch": "epoch",
        "moving_to": "moving to",
    }
    offline = sum(not row["is_leader_live"] for row in rows)
    moving = sum(bool(row["moving_to"]) for row in rows)
    extent = f"{counted(len(rows), 'partition')} of {counted(len(answer.topics), 'topic')}"
    summary = f"{extent}, {offline:,} without a live leader, {moving:,} moving"
    return Listing("partitions", headings, rows, summary)


def _leader(node_id: int, live: set[int]) -> str:
    if node_id < 0:
        return "none yet"
    return str(node_id) if node_id in live else f"{node_id} (gone)"


def _moving_to(partition: pb.Topic.Partition) -> str:
    if not partition.is_moving:
        return ""
    return f"{partition.moving_to_node_id} ({'switching' if partition.is_fenced else 'copying'})"


def leaders_listing(answer: pb.DescribePartitionsResponse) -> Listing:
    rows: list[Row] = []
    for leader in answer.leaders:
        state = "live" if leader.is_live else "gone"
        if leader.is_draining:
            state = "draining" if leader.partition_count else "drained"
        rows.append(
            {
                "leader": leader.node_id,
                "state": state,
                "partitions": leader.partition_count,
                "address": leader.rpc_address,
            }
        )
    headings = {"leader": "leader", "state": "state", "partitions": "partitions", "address": "address"}
    return Listing("leaders", headings, rows)


# Moving


def move_partitions(coordinator: Address, partitions: Sequence[NamedPartition], to_node_id: int) -> None:
    """Starts reassignments; partitions already at the node are left alone. CommandFailed names refused partitions.

    It returns once the coordinator has stored the reassignments, before they are complete.
    """
    _alter(coordinator, _request(partitions, to_node_id=to_node_id), "cannot be moved")


def cancel_moves(coordinator: Address, partitions: Sequence[NamedPartition]) -> None:
    """Cancels reassignments; CommandFailed names partitions that have none in progress."""
    _alter(coordinator, _request(partitions, cancel=True), "cannot be cancelled")


def _request(
    partitions: Sequence[NamedPartition], *, to_node_id: int = -1, cancel: bool = False
) -> pb.MovePartitionsRequest:
    request = pb.MovePartitionsRequest(to_node_id=to_node_id, cancel=cancel)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    for topic, numbers in by_topic.items():
        request.topics.add(topic_name=topic, partitions=numbers)
    return request


def _alter(coordinator: Address, request: pb.MovePartitionsRequest, what: str) -> None:
    answer = call_coordinator(coordinator, MOVE_PARTITIONS, request)
    if answer.error_code:
        raise CommandFailed(answer.error_message)
    problems = [
        f"{result.topic_name}:{result.partition} {what}: {result.error_message}"
        for result in answer.results
        if result.error_code
    ]
    if problems:
        more = f"\n… and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        raise CommandFailed("\n".join(problems[:SHOWN_PROBLEMS]) + more)


def wait_for_moves(
    coordinator: Address,
    partitions: Sequence[NamedPartition],
    to_node_id: int,
    *,
    timeout_s: float,
    show: Callable[[str], None],
) -> None:
    """Returns when the node leads all partitions; CommandFailed if a move was cancelled, or at the timeout."""
    deadline = time.monotonic() + timeout_s
    topics = list(dict.fromkeys(topic for topic, _ in partitions))
    shown = -1
    while True:
        left = _still_moving(coordinator, topics, partitions, to_node_id)
        if not left:
            return
        if len(left) != shown:
            show(f"{len(left)} partitions are still moving to leader {to_node_id}")
            shown = len(left)
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"{len(left)} partitions, such as {left[0]}, are not at leader {to_node_id} after {timeout_s:g} s; "
                "the moves continue (kshare partitions move … --cancel cancels them)"
            )
        time.sleep(POLL_INTERVAL_S)


def _still_moving(
    coordinator: Address, topics: Sequence[str], partitions: Sequence[NamedPartition], to_node_id: int
) -> list[str]:
    """The partitions that have not reached the node; CommandFailed if a move was cancelled, or a topic deleted."""
    try:
        answer = describe_partitions(coordinator, topics)
    except CoordinatorUnreachable:  # it may be restarting; the moves are stored in the catalog
        return [f"{topic}:{partition}" for topic, partition in partitions]
    found = {(topic.name, partition.partition): partition for topic in answer.topics for partition in topic.partitions}
    left: list[str] = []
    for topic, number in partitions:
        partition = found.get((topic, number))
        if partition is None:
            raise CommandFailed(
                f"{topic}:{number} does not exist any more: topic {topic} was deleted, and created again with fewer "
                "partitions; the moves of other topics continue"
            )
        if partition.is_moving and partition.moving_to_node_id == to_node_id:
            left.append(f"{topic}:{number}")
        elif partition.leader_node_id != to_node_id:
            raise CommandFailed(
                f"{topic}:{number} stays at leader {partition.leader_node_id}: its move to leader {to_node_id} was "
                "cancelled (that leader was lost, its disk failed, or an operator cancelled the move; see its log)"
            )
    return left


# Draining


def drain_leader(coordinator: Address, node_id: int, *, timeout_s: float, show: Callable[[str], None]) -> None:
    """Returns when the leader has no partitions; CommandFailed if the drain is refused or not complete in time."""
    deadline = time.monotonic() + timeout_s
    shown = left = _drain(coordinator, node_id, undo=False)
    show(f"leader {node_id} has {left} partitions")
    while left:
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"leader {node_id} still has {left} partitions after {timeout_s:g} s; "
                "the drain continues (kshare partitions drain --undo cancels it)"
            )
        time.sleep(POLL_INTERVAL_S)
        try:
            left = _drain(coordinator, node_id, undo=False)
        except CoordinatorUnreachable:  # it may be restarting; the drain is stored in the catalog
            continue
        if left != shown:
            show(f"leader {node_id} has {left} partitions")
            shown = left


def undo_drain_of_leader(coordinator: Address, node_id: int) -> None:
    """Allows partitions to be placed at the leader again; CommandFailed."""
    _drain(coordinator, node_id, undo=True)


def _drain(coordinator: Address, node_id: int, *, undo: bool) -> int:
    """Sets or clears the drain; returns the leader's partition count."""
    answer = call_coordinator(coordinator, DRAIN_LEADER, pb.DrainLeaderRequest(node_id=node_id, undo=undo))
    if answer.error_code:
        raise CommandFailed(answer.error_message)
    return answer.partitions_left
