"""`kshare nodes`: all nodes of the catalog, with the remaining time of their leases."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import call_coordinator, call_each, coordinators_at
from kshare.failure import CommandFailed
from kshare.output import Listing, Row, show
from kshare_rpc.coordinator_calls import is_refused
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DESCRIBE_NODES
from kshare_rpc.network import CallFailed

ROLE_NAMES = {
    pb.ROLE_GATEWAY: "gateway",
    pb.ROLE_SHARE_COORDINATOR: "share-coordinator",
    pb.ROLE_LEADER: "leader",
}


def show_nodes(coordinator: Address, console: Console, *, as_json: bool = False) -> None:
    """Prints one table, coordinators first. Coordinators grant leases and have none themselves.

    With several coordinators the lease column shows "active", "standby" or "silent" (no response) for each.
    """
    answer = call_coordinator(coordinator, DESCRIBE_NODES, pb.DescribeNodesRequest())
    if answer.error_code:
        raise CommandFailed(f"the coordinator failed to list the nodes: {answer.error_message}")
    known = coordinators_at(coordinator)
    standings = [None] if len(known) == 1 else _standings(known)
    rows: list[Row] = [
        {"role": "coordinator", "node": None, "epoch": None, "address": str(address), "lease": standing}
        for address, standing in zip(known, standings, strict=True)
    ]
    for described in answer.nodes:
        node = described.node
        rows.append(
            {
                "role": ROLE_NAMES.get(node.role, f"role {node.role}"),
                "node": node.node_id,
                "epoch": node.node_epoch,
                "address": _address(node),
                "lease": f"{described.lease_remaining_ms / 1000:.1f} s",
                "lease_remaining_ms": described.lease_remaining_ms,
            }
        )
    headings = {"role": "role", "node": "node", "epoch": "epoch", "address": "address", "lease": "lease"}
    listings = [Listing("nodes", headings, rows)]
    problems: list[Row] = [{"problem": problem} for problem in answer.cluster_problems]
    if problems or as_json:
        listings.append(Listing("problems", {"problem": "problem"}, problems))
    show(console, *listings, as_json=as_json)


def _address(node: pb.Node) -> str:
    """The RPC address; for a gateway, the advertised address."""
    if node.role != pb.ROLE_GATEWAY:
        return node.rpc_address
    return str(Address(node.advertised_host, node.advertised_port))


def _standings(coordinators: Sequence[Address]) -> list[str]:
    answers = call_each(coordinators, DESCRIBE_NODES, pb.DescribeNodesRequest())
    return [_standing(answer) for answer in answers]


def _standing(answer: pb.DescribeNodesResponse | CallFailed) -> str:
    if isinstance(answer, CallFailed):
        return "silent"
    return "standby" if is_refused(answer) else "active"
