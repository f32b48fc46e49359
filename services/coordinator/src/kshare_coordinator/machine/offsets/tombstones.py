"""Records that delete committed offsets and offsets in open transactions."""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.offsets.table import OffsetTable
from kshare_coordinator.machine.records import Record
from kshare_core.identifiers import TopicPartition


def records_of_deletion(offsets: OffsetTable, group_id: str, partition: TopicPartition) -> list[Record]:
    """Tombstones for the partition's committed offset and its offsets in open transactions."""
    found: list[Record] = []
    if offsets.get(group_id, partition) is not None:
        found.append(records.committed_offset(group_id, *partition, None))
    for producer_id in offsets.open_producers.get(group_id, {}).get(partition, {}):
        found.append(records.pending_offset(producer_id, group_id, *partition, None))
    return found


def records_at_group_deletion(offsets: OffsetTable, group_id: str) -> list[Record]:
    """All offsets of the group, those in open transactions too."""
    partitions = {**dict.fromkeys(offsets.committed.get(group_id, {})), **offsets.open_producers.get(group_id, {})}
    return [record for partition in partitions for record in records_of_deletion(offsets, group_id, partition)]
