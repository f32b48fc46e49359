"""Where a log in this node's store diverges from a copy of it: from the records that a state knows."""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.leader_epochs import EpochEntry, common_end_offset
from kshare_leader.ports import TopicLog


def diverging_offset(log: TopicLog, known: Sequence[EpochEntry], end_offset: int) -> int | None:
    """See TopicLog.diverging_offset; every record below the log's end can be read. Raises StorageFailure."""
    log_end = log.high_watermark
    offset = log_end
    if known:
        offset = common_end_offset(known, log.leader_epochs, log_end)
    offset = max(offset, min(log.log_start_offset, log_end))
    if end_offset <= offset:
        return None
    if offset < log_end:  # no records up to the next batch, so the copy is right there
        batches = log.read(offset, 1)
        offset = max(offset, batches[0].base_offset) if batches else log_end
    return offset if offset < end_offset else None
