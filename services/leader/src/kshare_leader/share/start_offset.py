"""Where a share-partition starts that never had a start offset: share.auto.offset.reset (KIP-932)."""

from __future__ import annotations

from kshare_core.configs.rows import BY_DURATION, duration_ms
from kshare_leader.ports import TopicLog


def find_start_offset(auto_offset_reset: str, log: TopicLog, wall_now_ms: int) -> int:
    """The start offset by `latest`, `earliest` or `by_duration:<ISO 8601 duration>`; raises StorageFailure."""
    if auto_offset_reset == "earliest":
        return log.log_start_offset
    if auto_offset_reset.startswith(BY_DURATION):
        found = log.offset_for_timestamp(wall_now_ms - duration_ms(auto_offset_reset.removeprefix(BY_DURATION)))
        if found is not None:
            return found.offset
    return log.high_watermark
