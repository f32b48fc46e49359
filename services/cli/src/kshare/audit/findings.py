"""The results of an audit: faults, unproven stretches, and the outcomes of a share-partition's offsets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kshare.audit.events import SharePartitionId

FINDINGS_LIMIT = 100
"""The limit of kept findings per share-partition and severity; further ones are only counted."""


class Severity(StrEnum):
    FAULT = "fault"
    """The history shows a violation of a rule."""
    UNPROVEN = "unproven"
    """Events are missing, so only the durable state is known."""


class Rule(StrEnum):
    """The rules (severity fault), and the reasons of unproven stretches."""

    DELIVERED_AFTER_ACCEPT = "delivered_after_accept"
    """Acquired although an accept of it was confirmed."""
    DELIVERED_AFTER_END = "delivered_after_end"
    """Acquired although it was rejected, archived, dead-lettered, or below the start offset."""
    HELD_TWICE = "held_twice"
    """Acquired while an earlier acquisition had not ended."""
    ACCEPTED_TWICE = "accepted_twice"
    ENDED_AFTER_END = "ended_after_end"
    """Released, rejected, expired, archived or accepted after its delivery had already ended differently."""
    ENDED_UNHELD = "ended_unheld"
    """Accepted, released, rejected, expired or renewed without an acquisition."""
    ENDED_BY_ANOTHER = "ended_by_another"
    """Ended or renewed by a member that had not acquired it."""
    DELIVERY_COUNT = "delivery_count"
    """A delivery did not increase the count by one, or an end has another count than its acquisition."""
    DELIVERY_COUNT_LIMIT = "delivery_count_limit"
    ARCHIVED_WITHOUT_REASON = "archived_without_reason"
    DEAD_LETTERED_TWICE = "dead_lettered_twice"
    DEAD_LETTERED_UNDUE = "dead_lettered_undue"
    """A dead letter of a record that was neither rejected nor archived."""
    SKIPPED = "skipped"
    """Passed by the start offset or ended in the durable state, but no event ended it; or it never ended."""
    END_FORGOTTEN = "end_forgotten"
    """The durable state makes offsets available that had ended durably."""
    COUNT_FORGOTTEN = "count_forgotten"
    """The durable state has a lower delivery count than an earlier durable one."""
    START_OFFSET_BACK = "start_offset_back"
    STATE_EPOCH_BACK = "state_epoch_back"
    LEADER_EPOCH_BACK = "leader_epoch_back"
    TWO_LEADERS = "two_leaders"
    """Two incarnations used one leader epoch."""
    SEQUENCE_REUSED = "sequence_reused"
    """Two different events have one sequence number."""
    MALFORMED = "malformed"

    EVENTS_LOST = "events_lost"
    """Unproven: sequence numbers are missing."""
    NOT_LOADED = "not_loaded"
    """Unproven: the first known event is not a `loaded` event."""
    UNSEEN = "unseen"
    """Unproven: the durable state has an end or a delivery without an event."""
    UNKNOWN = "unknown"
    """Unproven: at the end of the history the outcome of these offsets is unknown."""


class Finding(NamedTuple):
    """One fault or unproven stretch; offsets are -1 if it has none. `events` are the evidence, the latest last."""

    severity: Severity
    rule: Rule
    share_partition: SharePartitionId
    first_offset: int
    last_offset: int
    text: str
    events: tuple[str, ...]

    def __str__(self) -> str:
        offsets = "" if self.first_offset < 0 else f", offsets {self.first_offset}-{self.last_offset}"
        lines = [f"{self.severity} {self.rule}: {self.share_partition}{offsets}: {self.text}"]
        return "\n".join([*lines, *(f"    {event}" for event in self.events)])


@dataclass(slots=True)
class SharePartitionAudit:
    """The result of one share-partition. `offsets` has counts of offsets by outcome; see `Outcome`."""

    share_partition: SharePartitionId
    events: int = 0
    duplicates: int = 0
    """Repeated events, which are allowed."""
    deliveries: int = 0
    """Acquired offsets; each delivery of an offset counts."""
    first_offset: int = -1
    """The first offset of the stretch; -1 without events."""
    end_offset: int = -1
    """The offset after the last one of the stretch."""
    offsets: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    unproven: int = 0
    findings: list[Finding] = field(default_factory=list)
    """At most FINDINGS_LIMIT of each severity."""

    def numbers(self) -> dict[str, int]:
        """The numbers to sum over share-partitions, except `offsets`."""
        return {
            "events": self.events,
            "duplicates": self.duplicates,
            "deliveries": self.deliveries,
            "faults": self.faults,
            "unproven": self.unproven,
        }


class Outcome(StrEnum):
    """The end of an offset, or its state at the end of the history; archived ones have their reason after a colon."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    ARCHIVED = "archived"
    DEAD_LETTERED = "dead_lettered"
    DONE = "done"
    """Ended in the durable state; the event is missing."""
    ACQUIRED = "acquired"
    """Still held at the end of the history."""
    AVAILABLE = "available"
    RESET = "reset"
    """Given up by an administrator, who altered or deleted the offsets (a new state epoch)."""
    UNKNOWN = "unknown"
