"""The delivery history of a real cluster after a load with kills: no rule broken, every offset accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kshare_core.delivery_history import DeliveryEvent, HistoryRecord
from kshare_pipeline.audit.direct import audit_records
from kshare_pipeline.audit.findings import Severity, SharePartitionAudit
from support.delivery_history import read_history, wait_for_events


def _starts_at(offset: int, events: list[DeliveryEvent]) -> bool:
    """Whether the newest start offset that was told is this one."""
    return max((event.start_offset for event in events if event.start_offset is not None), default=-1) == offset


def whole_history(bootstrap: str, group: str, topic: str, ends: Sequence[int]) -> list[HistoryRecord]:
    """The history, as soon as it tells that each share-partition starts at the end of its log."""
    for partition, end in enumerate(ends):
        wait_for_events(bootstrap, group, topic, partial(_starts_at, end), partition)
    return read_history(bootstrap)


def assert_history_is_sound(
    bootstrap: str, group: str, topic: str, ends: Sequence[int], delivery_count_limit: int
) -> list[SharePartitionAudit]:
    """The group accepted all records below `ends`; AssertionError with the findings."""
    records = whole_history(bootstrap, group, topic, ends)
    audits = audit_records(records, lambda _: delivery_count_limit)
    faults = [str(finding) for audit in audits for finding in audit.findings if finding.severity is Severity.FAULT]
    assert not faults, "\n".join(faults)
    assert [audit.end_offset for audit in audits] == list(ends)
    for audit in audits:
        assert sum(audit.offsets.values()) == audit.end_offset - audit.first_offset
        assert set(audit.offsets) <= {"accepted", "done"}, audit.offsets
        assert audit.deliveries > 0
    return audits
