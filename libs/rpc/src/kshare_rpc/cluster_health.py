"""The health of the cluster as a whole, as a list of problems.

A role's own health says whether that process can do its work, and decides whether it gets traffic. In that sense a
coordinator and a gateway are healthy while leaders are gone. The cluster's health has its own service name
(`operations_server.CLUSTER`): partitions whose node is gone make it NOT_SERVING.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2


def cluster_problems(
    *,
    live_leaders: Collection[int],
    partitions_by_leader: Mapping[int, int],
    live_share_coordinators: Collection[int],
    state_partitions_by_owner: Mapping[int, int],
) -> list[str]:
    """One sentence per kind of missing node; empty: every partition has a live node."""
    found = []
    if not live_leaders:
        found.append("no leader is live")
    if not live_share_coordinators:
        found.append("no share coordinator is live")
    gone = _gone(partitions_by_leader, live_leaders)
    if gone:
        found.append(
            f"{sum(gone.values())} topic partitions have no live leader: {_nodes('leader', gone)}. "
            "Start it, or if it is lost, run kshare partitions give-up NODE"
        )
    gone = _gone(state_partitions_by_owner, live_share_coordinators)
    if gone:
        found.append(
            f"{sum(gone.values())} state partitions have no live owner: {_nodes('share coordinator', gone)}. "
            "Start it, or if it is lost, run kshare state give-up NODE"
        )
    return found


def _gone(counts: Mapping[int, int], live: Collection[int]) -> dict[int, int]:
    return {node_id: count for node_id, count in sorted(counts.items()) if node_id not in live}


def _nodes(role: str, gone: Mapping[int, int]) -> str:
    names = [f"{role} {node_id} is gone and has {count}" for node_id, count in gone.items() if node_id >= 0]
    if -1 in gone:
        names.append(f"{gone[-1]} wait for the first {role}")
    return ", ".join(names)


def problems_of_view(view: CatalogView) -> list[str]:
    """The cluster's problems in a role's view of the catalog; it visits every partition, so it is for probes."""
    if not view.version:
        return ["the catalog has not been received yet"]
    return cluster_problems(
        live_leaders=_live(view, coordinator_pb2.ROLE_LEADER),
        partitions_by_leader=Counter(
            partition.leader_node_id for topic in view.topics_by_id.values() for partition in topic.partitions
        ),
        live_share_coordinators=_live(view, coordinator_pb2.ROLE_SHARE_COORDINATOR),
        state_partitions_by_owner=Counter(view.state_partition_owners.values()),
    )


def _live(view: CatalogView, role: coordinator_pb2.Role.ValueType) -> set[int]:
    return {node.node_id for node in view.nodes if node.role == role}
