"""Share-group state that is lost because its share coordinator was given up.

A state partition keeps the epoch of the catalog at which an owner of it was given up; a group keeps the newest such
epoch that it has taken into account. So a share-partition is restarted exactly once, also if the group's
coordinator is not the one that gave the node up, or was not running.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kshare_coordinator.machine.groups.share.group import PartitionMetadata
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, slots=True)
class GivenUpState:
    """`epochs` has the state partitions that were given up at least once; of `count` in all."""

    epochs: Mapping[int, int]
    count: int

    @classmethod
    def of(cls, owners: Mapping[int, pb.StatePartitionOwner], count: int) -> GivenUpState:
        found = {number: owner.given_up_epoch for number, owner in owners.items() if owner.given_up_epoch}
        return cls(found, count)

    @property
    def newest(self) -> int:
        """0: none was ever given up."""
        return max(self.epochs.values(), default=0)

    def lost_to(self, group_id: str, partitions: PartitionMetadata) -> dict[bytes, list[int]]:
        """The initialized share-partitions of a group whose state was given up since the group looked, by topic id."""
        newer = {number for number, epoch in self.epochs.items() if epoch > partitions.given_up_epoch}
        if not newer:
            return {}
        return initialized_in(newer, self.count, group_id, partitions)


def initialized_in(
    state_partitions: Collection[int], count: int, group_id: str, partitions: PartitionMetadata
) -> dict[bytes, list[int]]:
    """The initialized share-partitions of a group that are in these state partitions, of `count`, by topic id."""
    found: dict[bytes, list[int]] = {}
    for topic_id, topic in partitions.initialized.items():
        for partition in topic.partitions:
            if state_partition_of(SharePartitionKey(group_id, topic_id, partition), count) in state_partitions:
                found.setdefault(topic_id, []).append(partition)
    return found
