"""`kshare state partitions`: the owners of the partitions of `__share_group_state`, and reassignments."""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import call_coordinator
from kshare.failure import CommandFailed
from kshare.output import Listing, Row, counted, show
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DESCRIBE_STATE_PARTITIONS


def describe_state_partitions(coordinator: Address) -> pb.DescribeStatePartitionsResponse:
    """The owners and the share coordinators of the catalog; CommandFailed."""
    answer = call_coordinator(coordinator, DESCRIBE_STATE_PARTITIONS, pb.DescribeStatePartitionsRequest())
    if answer.error_code:
        raise CommandFailed(f"the coordinator failed to describe the state partitions: {answer.error_message}")
    return answer


def show_state_partitions(coordinator: Address, console: Console, *, as_json: bool = False) -> None:
    """Prints two tables: the state partitions, and the share coordinators with the number that each owns."""
    answer = describe_state_partitions(coordinator)
    show(console, state_partitions_listing(answer), share_coordinators_listing(answer), as_json=as_json)


def state_partitions_listing(answer: pb.DescribeStatePartitionsResponse) -> Listing:
    rows: list[Row] = [
        {
            "partition": owner.state_partition,
            "owner": owner.node_id,
            "epoch": owner.owner_epoch,
            "moving_to": owner.moving_to_node_id if owner.is_moving else "",
        }
        for owner in answer.state_partitions
    ]
    headings = {"partition": "partition", "owner": "owner", "epoch": "epoch", "moving_to": "moving to"}
    moving = sum(owner.is_moving for owner in answer.state_partitions)
    return Listing("state_partitions", headings, rows, f"{counted(len(rows), 'state partition')}, {moving:,} moving")


def share_coordinators_listing(answer: pb.DescribeStatePartitionsResponse) -> Listing:
    counts = Counter(owner.node_id for owner in answer.state_partitions)
    rows: list[Row] = []
    for node in answer.share_coordinators:
        state = "live" if node.is_live else "gone"
        if node.is_draining:
            state = "draining" if counts[node.node_id] else "drained"
        rows.append(
            {
                "share_coordinator": node.node_id,
                "state": state,
                "state_partitions": counts[node.node_id],
                "address": node.rpc_address,
            }
        )
    headings = {
        "share_coordinator": "share coordinator",
        "state": "state",
        "state_partitions": "state partitions",
        "address": "address",
    }
    return Listing("share_coordinators", headings, rows)
