"""Whether this node may answer for a share-partition now.

It may while the catalog says that the share-partition's state partition is its own, and its lease certainly lasts: a
node that may have lost its lease stops before anyone else may start (correctness rule 5 of the design).

The number of state partitions is written to the store at the first use, because it decides where state lies: should the
catalog ever say another number, this node answers COORDINATOR_NOT_AVAILABLE rather than finding no state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.catalog import CatalogView
from kshare_share_coordinator.machine.operations import Result

PLACES_CACHE_LIMIT = 50_000


class StatePartitionCount(Protocol):
    """Where the number of state partitions is kept; raises StorageFailure."""

    def state_partition_count(self) -> int | None: ...

    def write_state_partition_count(self, count: int) -> None: ...


class Lease(Protocol):
    """What the catalog's follower knows; see CatalogFollower."""

    @property
    def view(self) -> CatalogView: ...

    @property
    def heard_at(self) -> float | None: ...

    @property
    def lease_ms(self) -> int: ...


class Ownership:
    """Answers for one node; `now` is the loop's time in seconds."""

    def __init__(self, *, node_id: int, lease: Lease, count: StatePartitionCount, now: Callable[[], float]) -> None:
        self._node_id = node_id
        self._lease = lease
        self._count_store = count
        self._now = now
        self._count = 0
        self._count_problem: str | None = None
        self._place = lru_cache(maxsize=PLACES_CACHE_LIMIT)(state_partition_of)

    def state_partition_of(self, key: SharePartitionKey) -> int:
        """The state partition of a share-partition that was not refused."""
        return self._place(key, self._count)

    def refusal(self, key: SharePartitionKey) -> Result | None:
        """Why this node does not answer for the share-partition, None where it does."""
        view = self._lease.view
        if not view.version:
            return Result(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the share coordinator has no catalog yet")
        if not self._has_count():
            problem = self._adopt(view.state_partition_count)
            if problem:
                return Result(ErrorCode.COORDINATOR_NOT_AVAILABLE, problem)
        expired = self.lease_refusal()
        if expired:
            return expired
        state_partition = self._place(key, self._count)
        owner = view.state_partition_owners.get(state_partition)
        if owner != self._node_id:
            return Result(
                ErrorCode.NOT_COORDINATOR,
                f"state partition {state_partition} of {key} belongs to node {owner}, not to {self._node_id}",
            )
        return None

    def lease_refusal(self) -> Result | None:
        """Why this node answers for nothing at all, None while its lease lasts."""
        heard_at = self._lease.heard_at
        if heard_at is not None and self._now() < heard_at + self._lease.lease_ms / 1000:
            return None
        text = f"share coordinator {self._node_id} has not heard the coordinator for {self._lease.lease_ms} ms"
        return Result(ErrorCode.NOT_COORDINATOR, text)

    def problems(self) -> list[str]:
        """For the health check."""
        problems = [self._count_problem] if self._count_problem and not self._has_count() else []
        expired = self.lease_refusal() if self._lease.view.version else None
        return [*problems, expired.error_message] if expired else problems

    def _has_count(self) -> bool:
        return 0 < self._count == self._lease.view.state_partition_count

    def _adopt(self, count: int) -> str | None:
        self._count_problem = self._adoption_problem(count)
        if self._count_problem is None:
            self._count = count
        return self._count_problem

    def _adoption_problem(self, count: int) -> str | None:
        if count <= 0:
            return "the catalog has no state partitions yet"
        try:
            stored = self._count_store.state_partition_count()
            if stored is None:
                self._count_store.write_state_partition_count(count)
        except StorageFailure as failure:
            return f"the number of state partitions cannot be read or written: {failure}"
        if stored not in (None, count):
            return (
                f"the catalog has {count} state partitions, but the states here were written with {stored}; "
                "share.coordinator.state.topic.num.partitions cannot change"
            )
        return None
