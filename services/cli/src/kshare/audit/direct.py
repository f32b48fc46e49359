"""The audit of a history in memory, without Spark, for tests and small files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kshare.audit.events import HistoryEvent, SharePartitionId, events_of, share_partition_of
from kshare.audit.findings import SharePartitionAudit
from kshare.audit.share_partition import DELIVERY_COUNT_LIMIT, SharePartitionAuditor
from kshare_core.delivery_history import HistoryRecord, decode_history_record


class BadHistory(Exception):
    """The input is no delivery history; the text has the position and the reason."""


def audit_records(
    records: Iterable[HistoryRecord], limit_of: Callable[[str], int] = lambda group: DELIVERY_COUNT_LIMIT
) -> list[SharePartitionAudit]:
    """One audit for each share-partition, in the order of their names. `limit_of`: a group's delivery count limit."""
    found: dict[SharePartitionId, list[HistoryEvent]] = {}
    names: dict[tuple[str, str, int], SharePartitionId] = {}
    for record in records:
        share_partition = share_partition_of(record)
        share_partition = names.setdefault(share_partition[:3], share_partition)
        found.setdefault(share_partition, []).extend(events_of(record))
    return [
        audit_events(share_partition, events, limit_of(share_partition.group))
        for share_partition, events in sorted(found.items(), key=lambda item: item[0])
    ]


def audit_events(
    share_partition: SharePartitionId, events: Iterable[HistoryEvent], delivery_count_limit: int = DELIVERY_COUNT_LIMIT
) -> SharePartitionAudit:
    """The audit of one share-partition's events, in any order."""
    auditor = SharePartitionAuditor(share_partition, delivery_count_limit=delivery_count_limit)
    for event in sorted(events, key=lambda event: event[:3]):
        auditor.apply(event)
    return auditor.finish()


def records_of_lines(lines: Iterable[bytes]) -> Iterator[HistoryRecord]:
    """The records of a file with one record value a line; raises BadHistory."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield decode_history_record(line)
            except ValueError as problem:
                raise BadHistory(f"line {number}: {problem}") from problem
