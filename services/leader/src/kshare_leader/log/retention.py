"""Retention: which of a log's oldest segments are deleted by retention.bytes and retention.ms.

The rules of UnifiedLog.deleteOldSegments of Kafka 4.3: whole segments are deleted from the oldest on. By size, a
segment goes while the log would still have retention.bytes without it. By time, it goes while its newest record is
older than retention.ms. The active segment is deleted by the same rules; the log is empty then and continues at the
same offset. A segment with a timestamp in the future stays until that time is over. Topics without `delete` in
cleanup.policy keep everything.
"""

from __future__ import annotations

from kshare_leader.log.segments import Segment, SegmentTable
from kshare_leader.log.topic_settings import TopicSettings


def retained_from(segments: SegmentTable, settings: TopicSettings, now_ms: int, end_offset: int) -> int:
    """The log start that retention requires: the base offset of the first segment that stays, else `end_offset`."""
    rows = list(segments)
    if not settings.deletes:
        return rows[0].base_offset
    count = _beyond_size(rows, settings.retention_bytes)
    count += _beyond_time(rows[count:], settings.retention_ms, now_ms)
    return rows[count].base_offset if count < len(rows) else end_offset


def _beyond_size(rows: list[Segment], retention_bytes: int) -> int:
    """The number of oldest segments above the size limit; -1 is no limit."""
    if retention_bytes < 0:
        return 0
    excess_bytes = sum([row.size_bytes for row in rows]) - retention_bytes
    count = 0
    for row in rows:
        excess_bytes -= row.size_bytes
        if excess_bytes < 0 or _is_empty_end(row, rows):
            break
        count += 1
    return count


def _beyond_time(rows: list[Segment], retention_ms: int, now_ms: int) -> int:
    """The number of oldest segments older than the limit; -1 is no limit. A segment of unknown age stays."""
    if retention_ms < 0:
        return 0
    count = 0
    for row in rows:
        if row.newest_ms < 0 or now_ms - row.newest_ms <= retention_ms or _is_empty_end(row, rows):
            break
        count += 1
    return count


def _is_empty_end(row: Segment, rows: list[Segment]) -> bool:
    return row is rows[-1] and not row.size_bytes
