"""The port to the rows of the catalog and of the groups, and to who owns them.

Rows are divided into partitions of metadata: CATALOG (topics, configs, nodes, placement, transactions) and the group
partitions 0 to GROUP_PARTITIONS - 1, to which a group belongs by Kafka's hash of its id. Each has at most one owner
among the coordinators; the owner of CATALOG is the active coordinator. Everyone follows the catalog's rows.

All calls of a listener come from the event loop, never from within a call of the store's methods but `start`.
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
    """A coordinator that lives: where other roles reach it. `incarnation` is new at each start."""

    node_id: int
    incarnation: str
    rpc_address: str


class OwnershipLost(Exception):
    """The write had no effect, because another coordinator may own one of its partitions by now."""


class MetadataListener(Protocol):
    """What the coordinator is told. Everything in the order in which it happened."""

    def catalog_loaded(self, rows: Sequence[Write]) -> None:
        """All rows of the catalog as they are stored now; what was known of it before is void."""
        ...

    def catalog_changed(self, writes: Sequence[Write]) -> None:
        """What another coordinator wrote to the catalog in one append."""
        ...

    def gained(self, partition: int, rows: Sequence[Write]) -> None:
        """It is ours from now on. `rows` are all of a group partition; those of CATALOG are known already."""
        ...

    def lost(self, partition: int) -> None:
        """It is ours no more: its rows are forgotten and nothing is answered for it.

        After CATALOG was lost, `catalog_loaded` comes again as soon as the store can be read.
        """
        ...

    def members_changed(self, members: Sequence[CoordinatorMember], owners: Mapping[int, int]) -> None:
        """Who lives, by node id, and which node owns which partition; partitions without an owner are not in it."""
        ...


class MetadataStore(Protocol):
    """Durable, fenced rows; see the module's text."""

    async def start(self, member: CoordinatorMember, listener: MetadataListener) -> None:
        """Returns when the catalog is loaded. StorageFailure where what is stored cannot be read."""
        ...

    def owns(self, partition: int) -> bool:
        """Whether this coordinator may answer for it now; False as soon as its lease may have run out."""
        ...

    def append(self, writes: Mapping[int, Sequence[Write]]) -> Awaitable[None] | None:
        """Applies all writes of all partitions or none; None: done already, else when the awaitable returns.

        At most one append at a time. StorageFailure: it could not be made durable (it has no effect that anyone will
        read after this one's reload). OwnershipLost: fenced.
        """
        ...

    def rows(self) -> Mapping[int, Sequence[Write]]:
        """All rows of the catalog and of every owned partition, as they are durable now; partitions without are empty.

        To make a machine anew after a failed append. Not between `append` and its end. StorageFailure: unreadable.
        """
        ...

    def problems(self) -> list[str]:
        """What keeps it from its work, for the health check; empty: nothing. Failed appends are not in it."""
        ...

    async def stop(self) -> None:
        """Gives everything that is owned back, so that others need not wait for the lease to run out.

        Does not call the listener; what was opened is closed.
        """
        ...
