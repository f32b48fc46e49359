"""The decisions about committed offsets (OffsetMetadataManager of Kafka 4.3.1)."""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.offsets_table import OffsetCommitValue
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState


def records_at_transaction_end(state: CoordinatorState, producer_id: int, committed: bool, now_ms: int) -> list[Record]:
    """What the end of a producer's transaction means for the offsets in it; empty where it holds none.

    A committed offset takes the place of what is in force unless that was committed later, and counts for retention
    from now on, when it takes effect.
    """
    found: list[Record] = []
    for (group_id, key), pending in state.offsets.rows_of_producer(producer_id):
        topic_id, partition = key
        found.append(records.pending_offset(producer_id, group_id, topic_id, partition, None))
        known = state.offsets.get(group_id, key)
        if committed and (known is None or known.sequence < pending.sequence):
            value = OffsetCommitValue()
            value.CopyFrom(pending)
            value.commit_timestamp_ms = now_ms
            found.append(records.committed_offset(group_id, topic_id, partition, value))
    return found
