"""`kshare state partitions`: which share coordinator owns which partition of `__share_group_state`, and what moves."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import call_coordinator
from kshare.failure import CommandFailed
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.methods import DESCRIBE_STATE_PARTITIONS


def describe_state_partitions(coordinator: Address) -> pb.DescribeStatePartitionsResponse:
    """Owners and share coordinators as the catalog has them; CommandFailed."""
    answer = call_coordinator(coordinator, DESCRIBE_STATE_PARTITIONS, pb.DescribeStatePartitionsRequest())
    if answer.error_code:
        raise CommandFailed(f"the coordinator cannot say who owns what: {answer.error_message}")
    return answer


def show_state_partitions(coordinator: Address, console: Console) -> None:
    """Two tables: the state partitions, and the share coordinators with how many each owns."""
    answer = describe_state_partitions(coordinator)
    console.print(partitions_table(answer))
    console.print(share_coordinators_table(answer))


def partitions_table(answer: pb.DescribeStatePartitionsResponse) -> Table:
    table = Table("partition", "owner", "epoch", "moving to")
    for owner in answer.state_partitions:
        moving_to = str(owner.moving_to_node_id) if owner.is_moving else ""
        table.add_row(str(owner.state_partition), str(owner.node_id), str(owner.owner_epoch), moving_to)
    return table


def share_coordinators_table(answer: pb.DescribeStatePartitionsResponse) -> Table:
    counts = Counter(owner.node_id for owner in answer.state_partitions)
    table = Table("share coordinator", "state", "state partitions", "address")
    for node in answer.share_coordinators:
        state = "live" if node.is_live else "gone"
        if node.is_draining:
            state = "draining" if counts[node.node_id] else "drained"
        table.add_row(str(node.node_id), state, str(counts[node.node_id]), node.rpc_address)
    return table
