"""Work on a group of many share-partitions grows with their number, not with its square."""

from __future__ import annotations

from kshare_coordinator.machine.commands import Initialized
from kshare_coordinator.machine.groups.share.group import InitializingPartitions, PartitionMetadata
from kshare_coordinator.machine.groups.share.partitions import SharePartitions

PARTITIONS = 2_000
TOPIC = b"topic-0000000001"


class Counted(int):
    """A number that counts how often such numbers are compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int.__eq__(self, other) is True

    __hash__ = int.__hash__


def test_initialized_partitions_are_not_searched_for_one_by_one() -> None:
    waiting = InitializingPartitions(
        topic_id=TOPIC,
        topic_name="orders",
        partitions=tuple(Counted(index) for index in range(PARTITIONS)),
        state_epoch=1,
        start_offset=-1,
        known_partition_count=PARTITIONS,
    )
    partitions = SharePartitions(PartitionMetadata(initializing=(waiting,)))
    Counted.comparisons = 0
    partitions.complete(Initialized(topic_id=TOPIC, partition=index, state_epoch=1) for index in range(1, PARTITIONS))
    assert Counted.comparisons <= 10 * PARTITIONS
    assert partitions.metadata.initialized[TOPIC].partitions == tuple(range(1, PARTITIONS))
    assert [entry.partitions for entry in partitions.metadata.initializing] == [(0,)]
