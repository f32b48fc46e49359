"""The part of WatchCatalog's answers about coordinators: the live ones, and the owners of group partitions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from kshare_coordinator.metadata.port import CATALOG, GROUP_PARTITIONS, CoordinatorMember
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


def coordinators_view(members: Sequence[CoordinatorMember], owners: Mapping[int, int]) -> pb.WatchCatalogResponse:
    """An answer with only the fields about coordinators; `owners` has node ids by partition, CATALOG among them.

    The version is a hash, so that the answers of all coordinators agree on it.
    """
    view = pb.WatchCatalogResponse(group_partition_count=GROUP_PARTITIONS)
    for member in members:
        view.coordinators.add(
            role=pb.ROLE_COORDINATOR,
            node_id=member.node_id,
            incarnation=member.incarnation,
            rpc_address=member.rpc_address,
        )
        if member.node_id == owners.get(CATALOG):
            view.active_coordinator_address = member.rpc_address
    for partition, node_id in sorted(owners.items()):
        if partition != CATALOG:
            view.group_partition_owners.add(partition=partition, node_id=node_id)
    digest = hashlib.blake2b(view.SerializeToString(deterministic=True), digest_size=8).digest()
    view.coordinators_version = int.from_bytes(digest, "big") >> 1 or 1
    return view
