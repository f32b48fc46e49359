"""What the audit finds: faults, stretches that it cannot prove, and what became of the offsets of a share-partition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kshare.audit.events import SharePartitionId

FINDINGS_LIMIT = 100
"""Of one share-partition and severity; more are counted, not kept."""


class Severity(StrEnum):
    FAULT = "fault"
    """The history shows that a rule was broken."""
    UNPROVEN = "unproven"
    """Events are missing: what happened there is not known, but as far as the durable state says."""


class Rule(StrEnum):
    """The rules (severity fault), and why something is unproven."""

    DELIVERED_AFTER_ACCEPT = "delivered_after_accept"
    """Acquired although an accept of it was confirmed."""
    DELIVERED_AFTER_END = "delivered_after_end"
    """Acquired although it was rejected, archived, dead-lettered, or below the start offset."""
    HELD_TWICE = "held_twice"
    """Acquired while an earlier acquisition had not ended."""
    ACCEPTED_TWICE = "accepted_twice"
    ENDED_AFTER_END = "ended_after_end"
    """Released, rejected, expired, archived or accepted although it had come to its end otherwise."""
    ENDED_UNHELD = "ended_unheld"
    """Accepted, released, rejected, expired or renewed without an acquisition."""
    ENDED_BY_ANOTHER = "ended_by_another"
    """By a member that had not acquired it; also a renewal."""
    DELIVERY_COUNT = "delivery_count"
    """A delivery did not raise the count by one, or an end tells another count than its acquisition."""
    DELIVERY_COUNT_LIMIT = "delivery_count_limit"
    ARCHIVED_WITHOUT_REASON = "archived_without_reason"
    DEAD_LETTERED_TWICE = "dead_lettered_twice"
    DEAD_LETTERED_UNDUE = "dead_lettered_undue"
    """A dead letter of a record that was neither rejected nor archived."""
    SKIPPED = "skipped"
    """Done by the start offset or the durable state, without an event that ended it; or never ended at all."""
    END_FORGOTTEN = "end_forgotten"
    """The durable state gives out again what had ended durably."""
    COUNT_FORGOTTEN = "count_forgotten"
    """The durable state has a lower delivery count than one that was durable before."""
    START_OFFSET_BACK = "start_offset_back"
    STATE_EPOCH_BACK = "state_epoch_back"
    LEADER_EPOCH_BACK = "leader_epoch_back"
    TWO_LEADERS = "two_leaders"
    """One leader epoch of two incarnations."""
    SEQUENCE_REUSED = "sequence_reused"
    """Two different events with one number."""
    MALFORMED = "malformed"

    EVENTS_LOST = "events_lost"
    """Unproven: numbers of the sequence are missing."""
    NOT_LOADED = "not_loaded"
    """Unproven: what is known begins without a `loaded` event."""
    UNSEEN = "unseen"
    """Unproven: the durable state tells of an end or a delivery whose event is not there."""
    UNKNOWN = "unknown"
    """Unproven: at the end of the history nothing says what became of these offsets."""


class Finding(NamedTuple):
    """One fault or unproven stretch; offsets -1 where none are concerned. `events` show it, the latest last."""

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
    """What became of one share-partition. `offsets` are counts of offsets by outcome; see `Outcome`."""

    share_partition: SharePartitionId
    events: int = 0
    duplicates: int = 0
    """Events that came more than once, which they may."""
    deliveries: int = 0
    """Offsets acquired; each delivery of an offset counts."""
    first_offset: int = -1
    """Of the stretch; -1 where nothing was seen."""
    end_offset: int = -1
    """Behind the last offset of the stretch."""
    offsets: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    unproven: int = 0
    findings: list[Finding] = field(default_factory=list)
    """At most FINDINGS_LIMIT of each severity."""

    def numbers(self) -> dict[str, int]:
        """What can be summed up over share-partitions, but for `offsets`."""
        return {
            "events": self.events,
            "duplicates": self.duplicates,
            "deliveries": self.deliveries,
            "faults": self.faults,
            "unproven": self.unproven,
        }


class Outcome(StrEnum):
    """How an offset of the stretch ended, or where it is at its end; archived ones with their reason behind a colon."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    ARCHIVED = "archived"
    DEAD_LETTERED = "dead_lettered"
    DONE = "done"
    """By the durable state; the event is not there."""
    ACQUIRED = "acquired"
    """At the end of the history: still held."""
    AVAILABLE = "available"
    RESET = "reset"
    """Given up by an administrator, who altered or deleted the offsets (a new state epoch)."""
    UNKNOWN = "unknown"
