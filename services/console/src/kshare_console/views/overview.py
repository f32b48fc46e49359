"""The overview: throughput, lag, redeliveries, dead letters, and the state of every role. Pure.

Roles, addresses and totals of all topics are shown to principals that may describe the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_console.views.observation import STEP_MS, Point, Snapshot
from kshare_console.views.paging import Json
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

HEALTHY, DRAINING, UNREACHABLE, STANDBY = "healthy", "draining", "unreachable", "standby"
LATE_LEASE_MS = 5_000
"""A lease of 10 s that has less left was not renewed in time."""


def overview(snapshot: Snapshot, history: Iterable[Point]) -> Json:
    rates = snapshot.rates
    partitions = [partition for topic in snapshot.placement.topics for partition in topic.partitions]
    live = {leader.node_id for leader in snapshot.placement.leaders if leader.is_live}
    shown = snapshot.may_see_roles
    return {
        "time_ms": snapshot.time_ms,
        "throughput": {
            "delivered_per_s": rates.delivered if rates else None,
            "acknowledged_per_s": rates.accepted if rates else None,
            "produced_per_s": rates.appended if rates and shown else None,
        },
        "redelivered_per_s": rates.redelivered if rates else None,
        "lag_records": snapshot.lag_records,
        "dead_letters": snapshot.dead_letters if snapshot.groups_problem is None else None,
        "groups": len(snapshot.groups) if snapshot.groups_problem is None else None,
        "partitions": {
            "total": len(partitions) if shown else None,
            "offline": sum(partition.leader_node_id not in live for partition in partitions) if shown else None,
        },
        "oldest_acquired": list(snapshot.oldest_acquired),
        "roles": roles(snapshot) if shown else [],
        "problems": problems(snapshot) if shown else [],
        "history": {"step_ms": STEP_MS, "points": [_point(point) for point in history]},
    }


def _point(point: Point) -> Json:
    rates = point.rates
    return {
        "time_ms": point.time_ms,
        "delivered_per_s": rates.delivered if rates else None,
        "redelivered_per_s": rates.redelivered if rates else None,
        "lag_records": point.lag_records,
    }


def roles(snapshot: Snapshot) -> list[Json]:
    """All nodes: coordinators, share coordinators, leaders, gateways."""
    found: list[Json] = []
    for number, (address, state) in enumerate(snapshot.coordinators.items(), start=1):
        is_known = state in ("active", STANDBY)
        found.append(
            {
                "role": "coordinator",
                "name": f"coordinator-{number}",
                "address": address,
                "state": (HEALTHY if state == "active" else state) if is_known else UNREACHABLE,
                "reason": state,
            }
        )
    draining = {("leader", each.node_id) for each in snapshot.placement.leaders if each.is_draining}
    draining |= {("share-coordinator", each.node_id) for each in snapshot.states.share_coordinators if each.is_draining}
    nodes = sorted(snapshot.nodes.nodes, key=lambda each: (_role(each.node), each.node.node_id))
    listed = {(_role(each.node), each.node.node_id) for each in nodes}
    for described in nodes:
        node = described.node
        role = _role(node)
        address = node.rpc_address or f"{node.advertised_host}:{node.advertised_port}"
        state, reason = HEALTHY, ""
        if role == "leader" and address in snapshot.unreachable_leaders:
            state, reason = UNREACHABLE, snapshot.unreachable_leaders[address]
        elif described.lease_remaining_ms < LATE_LEASE_MS:
            state, reason = "late", f"its lease ends in {described.lease_remaining_ms / 1000:.1f} s if it stays silent"
        elif (role, node.node_id) in draining:
            state, reason = DRAINING, "it gives its partitions away"
        found.append({"role": role, "name": name_of(role, node.node_id), "address": address} | _state(state, reason))
    found += _placed(snapshot, listed)
    return found


def _placed(snapshot: Snapshot, listed: set[tuple[str, int]]) -> list[Json]:
    """Nodes that partitions are placed at and that are not listed: their lease ran out.

    The lists are read side by side. A node that is live in only one of them has registered meanwhile.
    """
    leaders, owners = snapshot.placement.leaders, snapshot.states.share_coordinators
    found: list[Json] = []
    for role, placed in (("share-coordinator", owners), ("leader", leaders)):
        for each in placed:
            if (role, each.node_id) in listed:
                continue
            state, reason = HEALTHY, ""
            if not each.is_live:
                state, reason = UNREACHABLE, "its lease ran out; its partitions wait for it"
            elif role == "leader" and each.rpc_address in snapshot.unreachable_leaders:
                state, reason = UNREACHABLE, snapshot.unreachable_leaders[each.rpc_address]
            elif each.is_draining:
                state, reason = DRAINING, "it gives its partitions away"
            name, address = name_of(role, each.node_id), each.rpc_address
            found.append({"role": role, "name": name, "address": address} | _state(state, reason))
    return found


def _state(state: str, reason: str) -> dict[str, object]:
    return {"state": state, "reason": reason}


def name_of(role: str, node_id: int) -> str:
    return f"{role}-{node_id}"


def _role(node: pb.Node) -> str:
    return {pb.ROLE_GATEWAY: "gateway", pb.ROLE_SHARE_COORDINATOR: "share-coordinator", pb.ROLE_LEADER: "leader"}.get(
        node.role, f"role {node.role}"
    )


def problems(snapshot: Snapshot) -> list[Json]:
    """What keeps the cluster from serving, in words; `where` is the page, and of the overview the role, to look at."""
    placement: Json = {"page": "placement"}
    found = [_problem(words, placement) for words in snapshot.nodes.cluster_problems]
    found += [_problem(words, None) for words in snapshot.problems]
    leaders = {leader.rpc_address: name_of("leader", leader.node_id) for leader in snapshot.placement.leaders}
    found += [
        _problem(words, _role_of_overview(leaders.get(address)))
        for address, words in snapshot.unreachable_leaders.items()
    ]
    found += [
        _problem(f"{role['name']} does not answer: {role['reason']}", _role_of_overview(role["name"]))
        for role in roles(snapshot)
        if role["role"] == "coordinator" and role["state"] == UNREACHABLE
    ]
    return found


def _problem(words: str, where: Json | None) -> Json:
    return {"words": words, "where": where}


def _role_of_overview(name: object) -> Json | None:
    return None if name is None else {"page": "overview", "role": name}
