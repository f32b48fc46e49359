"""The live coordinators and the owners of partitions, as etcd has them; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kshare_coordinator.metadata.etcd.port import KeyValue, Removal
from kshare_coordinator.metadata.layout import Layout, member_of, owner_of
from kshare_coordinator.metadata.port import CoordinatorMember
from kshare_core.errors import StorageFailure


@dataclass(frozen=True, slots=True)
class Owner:
    node_id: int
    create_revision: int
    lease: int


@dataclass(slots=True)
class Coordination:
    """Members and owners as of `revision`. Unreadable members are left out, unreadable owners have node id -1."""

    layout: Layout
    revision: int = 0
    members: dict[bytes, CoordinatorMember] = field(default_factory=dict)
    """Live coordinators by their keys."""
    owners: dict[int, Owner] = field(default_factory=dict)

    def replace(self, pairs: Sequence[KeyValue], revision: int) -> None:
        """Replaces everything with the pairs as of a revision."""
        self.members.clear()
        self.owners.clear()
        self.apply(pairs, revision)

    def apply(self, events: Sequence[KeyValue | Removal], revision: int) -> None:
        """Applies the events up to a revision."""
        for event in events:
            if self.layout.is_member(event.key):
                self._member(event)
            else:
                self._owner(event)
        self.revision = max(self.revision, revision)

    def live(self) -> list[CoordinatorMember]:
        """Members in order of node ids."""
        return sorted(self.members.values(), key=lambda member: member.node_id)

    def owner_nodes(self) -> dict[int, int]:
        """Node ids of owners by partition."""
        return {partition: self.owners[partition].node_id for partition in sorted(self.owners)}

    def _member(self, event: KeyValue | Removal) -> None:
        self.members.pop(event.key, None)
        if isinstance(event, KeyValue):
            try:
                self.members[event.key] = member_of(event.value)
            except StorageFailure:
                return

    def _owner(self, event: KeyValue | Removal) -> None:
        partition = self.layout.partition_of_owner(event.key)
        if partition is None:
            return
        self.owners.pop(partition, None)
        if isinstance(event, KeyValue):
            try:
                node_id = owner_of(event.value)
            except StorageFailure:
                node_id = -1  # owned, but by an unknown node
            self.owners[partition] = Owner(node_id, event.create_revision, event.lease)
