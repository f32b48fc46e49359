"""`kshare nodes`: every node that the catalog knows, and how long its lease still runs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import ask, call_coordinator, coordinators_at
from kshare.failure import CommandFailed
from kshare_rpc.coordinator_calls import is_refused
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.methods import DESCRIBE_NODES
from kshare_rpc.network import CallFailed

NO_VALUE = "-"
ROLE_NAMES = {
    pb.ROLE_GATEWAY: "gateway",
    pb.ROLE_SHARE_COORDINATOR: "share-coordinator",
    pb.ROLE_LEADER: "leader",
}


def show_nodes(coordinator: Address, console: Console) -> None:
    """One table, the coordinators first; they have no lease there, for the leases are what they give.

    Of several coordinators each is "active", "standby" or "silent" instead.
    """
    answer = call_coordinator(coordinator, DESCRIBE_NODES, pb.DescribeNodesRequest())
    if answer.error_code:
        raise CommandFailed(f"the coordinator cannot say which nodes there are: {answer.error_message}")
    table = Table("role", "node", "epoch", "address", "lease")
    known = coordinators_at(coordinator)
    for address in known:
        standing = NO_VALUE if len(known) == 1 else _standing(address)
        table.add_row("coordinator", NO_VALUE, NO_VALUE, str(address), standing)
    for described in answer.nodes:
        node = described.node
        role = ROLE_NAMES.get(node.role, f"role {node.role}")
        lease = f"{described.lease_remaining_ms / 1000:.1f} s"
        table.add_row(role, str(node.node_id), str(node.node_epoch), _address(node), lease)
    console.print(table)


def _address(node: pb.Node) -> str:
    """Where other roles reach it; of a gateway, where clients do."""
    if node.role != pb.ROLE_GATEWAY:
        return node.rpc_address
    return str(Address(node.advertised_host, node.advertised_port))


def _standing(coordinator: Address) -> str:
    answer = ask(coordinator, DESCRIBE_NODES, pb.DescribeNodesRequest())
    if isinstance(answer, CallFailed):
        return "silent"
    return "standby" if is_refused(answer) else "active"
