"""The port to the rows of the catalog and of the groups, and to their ownership.

Rows are divided into partitions of metadata: CATALOG (topics, configs, nodes, placement, transactions) and the group
partitions 0 to GROUP_PARTITIONS - 1. Kafka's hash of a group's id gives its partition. Each partition has at most one
owner among the coordinators; the owner of CATALOG is the active coordinator. All coordinators follow the catalog's
rows.

All calls of a listener come from the event loop, and of the store's methods only `start` makes some directly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kshare_runtime.ports import Write

CATALOG = -1
GROUP_PARTITIONS = 50
"""Partitions of groups, as many as Kafka's offsets.topic.num.partitions; numbered from 0."""


@dataclass(frozen=True, slots=True)
class CoordinatorMember:
    """A live coordinator and its address for other roles. `incarnation` is new at each start."""

    node_id: int
    incarnation: str
    rpc_address: str


class OwnershipLost(Exception):
    """A write was fenced: another coordinator may own one of its partitions by now.

    Callers must treat its outcome as unknown: the lease may also have run out while the write was in flight.
    """


class MetadataListener(Protocol):
    """Callbacks to the coordinator, in the order in which the events happened."""

    def catalog_loaded(self, rows: Sequence[Write]) -> None:
        """All rows of the catalog as they are stored now; they replace all earlier ones."""
        ...

    def catalog_changed(self, writes: Sequence[Write]) -> None:
        """One append of another coordinator to the catalog."""
        ...

    def gained(self, partition: int, rows: Sequence[Write]) -> None:
        """This coordinator owns the partition from now on. `rows`: all of a group partition; none for CATALOG, whose
        rows were delivered before."""
        ...

    def lost(self, partition: int) -> None:
        """This coordinator no longer owns the partition: it drops the rows and refuses requests for them.

        After CATALOG was lost, `catalog_loaded` is called again as soon as the store can be read.
        """
        ...

    def members_changed(self, members: Sequence[CoordinatorMember], owners: Mapping[int, int]) -> None:
        """The live coordinators in order of node ids, and the node ids of owners by partition that has one."""
        ...


class MetadataStore(Protocol):
    """Durable, fenced rows; see the module's text."""

    async def start(self, member: CoordinatorMember, listener: MetadataListener) -> None:
        """Returns when the catalog is loaded; StorageFailure if the stored rows cannot be read."""
        ...

    def owns(self, partition: int) -> bool:
        """Whether this coordinator may serve the partition now; False as soon as its lease may have expired."""
        ...

    def append(self, writes: Mapping[int, Sequence[Write]]) -> Awaitable[None] | None:
        """Applies all writes of all partitions or none; done when the awaitable returns, or already if it is None.

        At most one append at a time. StorageFailure: it could not be made durable, and no read after this coordinator's
        reload will see it. OwnershipLost: fenced.
        """
        ...

    def rows(self) -> Mapping[int, Sequence[Write]]:
        """All durable rows of the catalog and of every owned partition, from which a machine is rebuilt.

        That happens after a failed append. Not to be called while an append is in flight. StorageFailure: unreadable.
        """
        ...

    def problems(self) -> list[str]:
        """Problems for the health check, without failed appends; empty means healthy."""
        ...

    async def stop(self) -> None:
        """Closes the store and gives up all ownership, so that others need not wait for the lease to expire.

        The listener is not called.
        """
        ...
