"""`kshare partitions list | move | drain`: which leader has which topic partition, and moving them.

A move copies the records while they are served, and is a pause of some milliseconds for clients at its end. It goes on
at the coordinator and the leaders whether anybody waits for it or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import CoordinatorUnreachable, call_coordinator
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import Listing, Row, show
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DESCRIBE_PARTITIONS, DRAIN_LEADER, MOVE_PARTITIONS

POLL_INTERVAL_S = 0.2
SHOWN_PROBLEMS = 10

NamedPartition = tuple[str, int]


def parse_partitions(text: str) -> list[NamedPartition]:
    """`TOPIC:PARTITION[,…]`; CommandFailed."""
    found: dict[NamedPartition, None] = {}
    for part in text.split(","):
        topic, colon, number = part.strip().rpartition(":")
        if not colon or not topic or not (number.isascii() and number.isdigit()):
            raise CommandFailed(
                f"partitions must be TOPIC:PARTITION[,…], such as orders:0,orders:1; found {part!r}", BAD_USE
            )
        found[topic, int(number)] = None
    return list(found)


# Listing


def describe_partitions(coordinator: Address, topics: Sequence[str]) -> pb.DescribePartitionsResponse:
    """Of some topics, or (none named) of all; CommandFailed."""
    answer = call_coordinator(coordinator, DESCRIBE_PARTITIONS, pb.DescribePartitionsRequest(topic_names=topics))
    if answer.error_code:
        raise CommandFailed(f"the coordinator cannot say who leads what: {answer.error_message}")
    return answer


def show_partitions(coordinator: Address, topics: Sequence[str], console: Console, *, as_json: bool = False) -> None:
    """Two tables: the partitions, and the leaders with how many each has."""
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
    return Listing("partitions", headings, rows)


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
    """Returns when the moves are noted, or those partitions are there already; CommandFailed names what is not."""
    _ask(coordinator, _request(partitions, to_node_id=to_node_id), "cannot be moved")


def take_back_moves(coordinator: Address, partitions: Sequence[NamedPartition]) -> None:
    """The partitions stay where they are; CommandFailed names those that do not move."""
    _ask(coordinator, _request(partitions, cancel=True), "cannot be told to stay")


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


def _ask(coordinator: Address, request: pb.MovePartitionsRequest, what: str) -> None:
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
    """Returns when the node leads all of them; CommandFailed when a move was taken back, or there is no time left."""
    deadline = time.monotonic() + timeout_s
    topics = list(dict.fromkeys(topic for topic, _ in partitions))
    shown = -1
    while True:
        left = _not_there(coordinator, topics, partitions, to_node_id)
        if not left:
            return
        if len(left) != shown:
            show(f"{len(left)} partitions are on their way to leader {to_node_id}")
            shown = len(left)
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"{len(left)} partitions are not at leader {to_node_id} after {timeout_s:g} s, {left[0]} among them; "
                "they go on moving (kshare partitions move … --cancel takes that back)"
            )
        time.sleep(POLL_INTERVAL_S)


def _not_there(
    coordinator: Address, topics: Sequence[str], partitions: Sequence[NamedPartition], to_node_id: int
) -> list[str]:
    """Those that still move; CommandFailed where one does not any more."""
    try:
        answer = describe_partitions(coordinator, topics)
    except CoordinatorUnreachable:  # it may be starting again; the moves are in the catalog
        return [f"{topic}:{partition}" for topic, partition in partitions]
    found = {(topic.name, partition.partition): partition for topic in answer.topics for partition in topic.partitions}
    left: list[str] = []
    for topic, number in partitions:
        partition = found[topic, number]
        if partition.is_moving and partition.moving_to_node_id == to_node_id:
            left.append(f"{topic}:{number}")
        elif partition.leader_node_id != to_node_id:
            raise CommandFailed(
                f"{topic}:{number} is at leader {partition.leader_node_id}: its move to leader {to_node_id} was taken "
                "back (that leader was lost, its disk refused the records, or somebody cancelled it; see its log)"
            )
    return left


# Emptying a leader


def drain_leader(coordinator: Address, node_id: int, *, timeout_s: float, show: Callable[[str], None]) -> None:
    """Returns when the leader can be stopped for good; CommandFailed when it is refused or not empty in time."""
    deadline = time.monotonic() + timeout_s
    shown = left = _ask_to_drain(coordinator, node_id, undo=False)
    show(f"leader {node_id} has {left} partitions")
    while left:
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"leader {node_id} still has {left} partitions after {timeout_s:g} s; "
                "it goes on being emptied (kshare partitions drain --undo takes that back)"
            )
        time.sleep(POLL_INTERVAL_S)
        try:
            left = _ask_to_drain(coordinator, node_id, undo=False)
        except CoordinatorUnreachable:  # it may be starting again; the drain is in the catalog
            continue
        if left != shown:
            show(f"leader {node_id} has {left} partitions")
            shown = left


def undo_drain_of_leader(coordinator: Address, node_id: int) -> None:
    """Lets the leader have partitions again; CommandFailed."""
    _ask_to_drain(coordinator, node_id, undo=True)


def _ask_to_drain(coordinator: Address, node_id: int, *, undo: bool) -> int:
    """How many partitions the leader has."""
    answer = call_coordinator(coordinator, DRAIN_LEADER, pb.DrainLeaderRequest(node_id=node_id, undo=undo))
    if answer.error_code:
        raise CommandFailed(answer.error_message)
    return answer.partitions_left
