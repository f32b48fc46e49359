"""Problems in the catalog that keep the cluster from serving; see kshare_rpc.cluster_health."""

from __future__ import annotations

from collections import Counter

from kshare_coordinator.machine.state import CoordinatorState
from kshare_rpc.cluster_health import cluster_problems
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


def problems_of(state: CoordinatorState) -> list[str]:
    """Empty: every topic partition and every state partition has a live node."""
    return cluster_problems(
        live_leaders=state.live_nodes(pb.ROLE_LEADER),
        partitions_by_leader=state.partitions_placed,
        live_share_coordinators=state.live_nodes(pb.ROLE_SHARE_COORDINATOR),
        state_partitions_by_owner=Counter(state.state_partition_owners.values()),
    )
