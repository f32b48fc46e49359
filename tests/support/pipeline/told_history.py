"""A history of one share-partition that tests change: its events one by one, each a record of its own.

What is put in or taken out is numbered anew, so that the change is a fault and not a loss; `lose` leaves the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kshare.audit.direct import audit_records
from kshare.audit.findings import SharePartitionAudit
from kshare_core.delivery_history import DeliveryEvent, EventType, HistoryRecord

Place = tuple[str, str, int]
"""Group, topic and partition."""


class ToldHistory:
    """`records` in the order in which things happened."""

    def __init__(self, records: Sequence[HistoryRecord]) -> None:
        single = [
            replace(record, sequence=record.sequence + index, events=(event,))
            for record in records
            for index, event in enumerate(record.events)
        ]
        self.records = sorted(single, key=lambda one: (one.leader_epoch, one.incarnation, one.sequence))

    @property
    def events(self) -> list[DeliveryEvent]:
        return [record.events[0] for record in self.records]

    def find(self, kind: EventType, matches: Callable[[DeliveryEvent], bool] = lambda event: True) -> int:
        """The index of the first event that matches; AssertionError where the history has none."""
        for index, event in enumerate(self.events):
            if event.event is kind and matches(event):
                return index
        raise AssertionError(f"the history has no such {kind}")

    def find_after(self, index: int, kind: EventType, matches: Callable[[DeliveryEvent], bool]) -> int:
        for later in range(index + 1, len(self.records)):
            event = self.records[later].events[0]
            if event.event is kind and matches(event):
                return later
        raise AssertionError(f"the history has no such {kind} after {self.records[index]}")

    def put(self, index: int, *events: DeliveryEvent) -> None:
        """Right behind the event at `index`, told by the same leader."""
        at = self.records[index]
        self._shift(index, len(events))
        self.records[index + 1 : index + 1] = [
            replace(at, sequence=at.sequence + 1 + number, events=(event,)) for number, event in enumerate(events)
        ]

    def take_out(self, index: int) -> DeliveryEvent:
        """As if it had never been told."""
        event = self.records[index].events[0]
        self._shift(index, -1)
        del self.records[index]
        return event

    def lose(self, index: int) -> DeliveryEvent:
        """As a leader that has no room for it."""
        return self.records.pop(index).events[0]

    def change(self, index: int, **fields: object) -> None:
        record = self.records[index]
        self.records[index] = replace(record, events=(replace(record.events[0], **fields),))  # type: ignore[arg-type]

    def change_record(self, index: int, **fields: object) -> None:
        self.records[index] = replace(self.records[index], **fields)  # type: ignore[arg-type]

    def _shift(self, index: int, by: int) -> None:
        at = self.records[index]
        source = (at.leader, at.incarnation)
        for later in range(index + 1, len(self.records)):
            record = self.records[later]
            if (record.leader, record.incarnation) == source:
                self.records[later] = replace(record, sequence=record.sequence + by)

    def audit(self, delivery_count_limit: int = 10) -> SharePartitionAudit:
        (audit,) = audit_records(self.records, lambda group: delivery_count_limit)
        return audit


def split_by_place(records: Sequence[HistoryRecord]) -> dict[Place, ToldHistory]:
    """The history of each share-partition."""
    found: dict[Place, list[HistoryRecord]] = {}
    for record in records:
        found.setdefault((record.group, record.topic, record.partition), []).append(record)
    return {place: ToldHistory(of_place) for place, of_place in found.items()}


def faults_of(audit: SharePartitionAudit) -> dict[str, list[int]]:
    """The offsets of the faults, by rule."""
    return _by_rule(audit, "fault")


def unproven_of(audit: SharePartitionAudit) -> dict[str, list[int]]:
    return _by_rule(audit, "unproven")


def _by_rule(audit: SharePartitionAudit, severity: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for finding in audit.findings:
        if finding.severity == severity:
            offsets = found.setdefault(str(finding.rule), [])
            offsets.extend(range(finding.first_offset, finding.last_offset + 1))
    return {rule: sorted(offsets) for rule, offsets in found.items()}
