"""Ownership of state partitions: whether this node may answer for a share-partition now.

Two conditions must hold. The catalog says that this node owns the share-partition's state partition, without a
reassignment under way. And its lease certainly lasts: a node that may have lost its lease stops before another one may
start (correctness rule 5 of the design). During a reassignment of a state partition, both its owner and its new node
answer COORDINATOR_LOAD_IN_PROGRESS.

A reader also names the owner epoch of its catalog. A node that has an older one may have been the owner before, and not
have learned that another one was it since, so the other's writes are not in its memory.

The cluster's id, this node's id and the number of state partitions are written to the store at the first use. The
number decides where state is stored, another cluster's catalog knows nothing of the states here, and under another
node's id the catalog gives them to another node. If one of them ever differs, this node answers
COORDINATOR_NOT_AVAILABLE rather than finding no state, and removes and copies nothing. A store that an older version
wrote has no node id. It gets one unless the catalog gives all of its state partitions to other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_core.leases import held_s
from kshare_rpc.catalog import CatalogView
from kshare_share_coordinator.machine.operations import Result


class StoreIdentity(Protocol):
    """The stored cluster id, node id and number of state partitions of the store's states; raises StorageFailure."""

    def cluster_id(self) -> str | None: ...

    def write_cluster_id(self, cluster_id: str) -> None: ...

    def state_partition_count(self) -> int | None: ...

    def write_state_partition_count(self, count: int) -> None: ...

    def node_id(self) -> int | None: ...

    def write_node_id(self, node_id: int) -> None: ...

    def filled_state_partitions(self) -> list[int]:
        """The state partitions that have rows."""
        ...


class Lease(Protocol):
    """The part of CatalogFollower that ownership reads."""

    @property
    def view(self) -> CatalogView: ...

    @property
    def lease_renewed_at(self) -> float | None: ...

    @property
    def lease_ms(self) -> int: ...


class Ownership:
    """The ownership of one node; `now` is the loop's time in seconds."""

    def __init__(self, *, node_id: int, lease: Lease, identity: StoreIdentity, now: Callable[[], float]) -> None:
        self.node_id = node_id
        self._lease = lease
        self._identity = identity
        self._now = now
        self._cluster_id = ""
        self._count = 0
        self._identity_problem: str | None = None
        self.is_disk_refusing = False
        """Whether the newest identity problem is the disk's: it may end without any change of the catalog."""
        self.is_anothers_store = False
        """Whether the newest identity problem is that another node wrote the store."""

    @property
    def view(self) -> CatalogView:
        """The catalog as this node sees it now."""
        return self._lease.view

    def state_partition_of(self, key: SharePartitionKey) -> int:
        """The state partition of a share-partition that was not refused."""
        return state_partition_of(key, self._count)

    def owned_count(self) -> int:
        """How many state partitions the catalog says this node owns, moving ones too."""
        return sum(owner == self.node_id for owner in self._lease.view.state_partition_owners.values())

    def refusal(self, key: SharePartitionKey, owner_epoch: int = 0) -> Result | None:
        """Why this node does not answer for the share-partition; None if it does.

        `owner_epoch` is that of the state partition in the reader's catalog, 0: not known.
        """
        refusal = self._refusal_of_everything()
        if refusal is not None:
            return refusal
        state_partition = state_partition_of(key, self._count)
        return self._refusal_of_place(state_partition, key) or self._refusal_of_age(state_partition, owner_epoch)

    def node_refusal(self) -> Result | None:
        """Why this node answers for no state partition now; None if it answers for those that it owns."""
        return self._refusal_of_everything()

    def owned_state_partitions(self) -> list[int]:
        """The state partitions that this node owns by the catalog, moving ones too, in order."""
        return sorted(
            number for number, owner in self._lease.view.state_partition_owners.items() if owner == self.node_id
        )

    def state_partition_refusal(self, state_partition: int) -> Result | None:
        """Why this node does not answer for a state partition as a whole; None if it does."""
        return self._refusal_of_everything() or self._refusal_of_place(state_partition, None)

    def _refusal_of_everything(self) -> Result | None:
        if not self._lease.view.version:
            return Result(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the share coordinator has not received the catalog yet"
            )
        problem = self.identity_problem()
        if problem:
            return Result(ErrorCode.COORDINATOR_NOT_AVAILABLE, problem)
        return self.lease_refusal()

    def _refusal_of_place(self, state_partition: int, key: SharePartitionKey | None) -> Result | None:
        view = self._lease.view
        owner = view.state_partition_owners.get(state_partition)
        move = view.state_partition_moves.get(state_partition)
        if move is None and owner == self.node_id:
            return None
        place = f"state partition {state_partition}" + ("" if key is None else f" of {key}")
        if move is not None and self.node_id in (move.node_id, move.moving_to_node_id):
            text = f"{place} moves from node {move.node_id} to node {move.moving_to_node_id}"
            return Result(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        return Result(ErrorCode.NOT_COORDINATOR, f"{place} belongs to node {owner}, not to {self.node_id}")

    def _refusal_of_age(self, state_partition: int, owner_epoch: int) -> Result | None:
        own_epoch = self._lease.view.state_partition_owner_epochs.get(state_partition, 0)
        if own_epoch >= owner_epoch:
            return None
        text = (
            f"state partition {state_partition} has owner epoch {owner_epoch} by now, which this node has not received "
            f"yet; it has owner epoch {own_epoch}"
        )
        return Result(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)

    def lease_refusal(self) -> Result | None:
        """Why this node answers no requests at all; None while its lease lasts."""
        lease_renewed_at, lasts_s = self._lease.lease_renewed_at, held_s(self._lease.lease_ms)
        if lease_renewed_at is not None and self._now() < lease_renewed_at + lasts_s:
            return None
        text = f"share coordinator {self.node_id} has had no response from the coordinator for {lasts_s * 1000:.0f} ms"
        return Result(ErrorCode.NOT_COORDINATOR, text)

    def identity_problem(self) -> str | None:
        """Why the catalog does not match the states in the store; None if it does."""
        view = self._lease.view
        if not view.version:
            return "the share coordinator has not received the catalog yet"
        if 0 < self._count == view.state_partition_count and self._cluster_id == view.cluster_id:
            return None
        self._identity_problem = self._adoption_problem(view)
        if self._identity_problem is None:
            self._count, self._cluster_id = view.state_partition_count, view.cluster_id
        return self._identity_problem

    def problems(self) -> list[str]:
        """Problems for the health check."""
        view = self._lease.view
        if not view.version:
            return []
        has_adopted = self._count == view.state_partition_count and self._cluster_id == view.cluster_id
        problems = [self._identity_problem] if self._identity_problem and not has_adopted else []
        expired = self.lease_refusal()
        return [*problems, expired.error_message] if expired else problems

    def _adoption_problem(self, view: CatalogView) -> str | None:
        count = view.state_partition_count
        self.is_disk_refusing = self.is_anothers_store = False
        if count <= 0:
            return "the catalog has no state partitions yet"
        try:
            return self._cluster_problem(view.cluster_id) or self._count_problem(count) or self._node_problem(view)
        except StorageFailure as failure:
            self.is_disk_refusing = True
            return f"the store's cluster id cannot be read or written: {failure}"

    def _node_problem(self, view: CatalogView) -> str | None:
        stored = self._identity.node_id()
        if stored == self.node_id:
            return None
        if stored is not None:
            whose = f"the states here belong to share coordinator {stored}"
        else:
            others = {number: self._other_owner(view, number) for number in self._identity.filled_state_partitions()}
            if not others or None in others.values():
                with suppress(StorageFailure):  # a full disk can still be read, and the next start writes it
                    self._identity.write_node_id(self.node_id)
                return None
            number, owner = next(iter(others.items()))
            whose = f"the states here belong to other share coordinators, those of state partition {number} to {owner}"
        self.is_anothers_store = True
        return (
            f"{whose}, but this is share coordinator {self.node_id}: nothing is served, copied or removed. Start it "
            "with the node id of its data directory, or with another data directory"
        )

    def _other_owner(self, view: CatalogView, state_partition: int) -> int | None:
        """The owner of a state partition that neither belongs to this node nor moves to it; None else."""
        move = view.state_partition_moves.get(state_partition)
        owner = view.state_partition_owners.get(state_partition)
        is_own = owner == self.node_id or (move is not None and move.moving_to_node_id == self.node_id)
        return None if is_own else owner

    def _cluster_problem(self, cluster_id: str) -> str | None:
        if not cluster_id:
            return None
        stored = self._identity.cluster_id()
        if stored is None:
            self._identity.write_cluster_id(cluster_id)
        if stored not in (None, cluster_id):
            return (
                f"the states here belong to cluster {stored!r}, but the coordinator's catalog is that of cluster "
                f"{cluster_id!r}: nothing is served, copied or removed. Give this node the coordinator of its cluster, "
                "or another data directory"
            )
        return None

    def _count_problem(self, count: int) -> str | None:
        stored = self._identity.state_partition_count()
        if stored is None:
            self._identity.write_state_partition_count(count)
        if stored not in (None, count):
            return (
                f"the catalog has {count} state partitions, but the states here were written with {stored}; "
                "share.coordinator.state.topic.num.partitions cannot change"
            )
        return None
