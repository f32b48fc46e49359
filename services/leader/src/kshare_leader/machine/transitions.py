"""What may happen to a record in a share-partition: one table of state and event (KIP-932, "In-flight records").

A record is Available, Acquired by one owner, or in a terminal state (Acknowledged, Archived). Only an Acquired record
can be acknowledged. Whatever would make an Acquired record Available again archives it instead once it was delivered
as often as the delivery count limit allows. The delivery count grows when a record is acquired, and at no other time;
only an acquisition that never left the leader is taken back with its count.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from kshare_core.states import AcknowledgeType, RecordState


class Event(Enum):
    """What can happen to a record."""

    ACQUIRE = auto()
    ACCEPT = auto()
    RELEASE = auto()
    REJECT = auto()
    GAP = auto()
    RENEW = auto()
    SESSION_END = auto()
    """The owner's share session ended, or its gateway is gone."""
    LOCK_TIMEOUT = auto()
    ACQUISITION_UNDONE = auto()
    """The answer with the record never left the leader; its delivery does not count."""
    MISSING_IN_LOG = auto()
    """The log has no record at this offset: compaction, retention, or a control record."""


_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ACKNOWLEDGED = RecordState.ACKNOWLEDGED
_ARCHIVED = RecordState.ARCHIVED

TRANSITIONS: Mapping[tuple[RecordState, Event], RecordState | None] = {
    (_AVAILABLE, Event.ACQUIRE): _ACQUIRED,
    (_AVAILABLE, Event.ACCEPT): None,
    (_AVAILABLE, Event.RELEASE): None,
    (_AVAILABLE, Event.REJECT): None,
    (_AVAILABLE, Event.GAP): None,
    (_AVAILABLE, Event.RENEW): None,
    (_AVAILABLE, Event.SESSION_END): None,
    (_AVAILABLE, Event.LOCK_TIMEOUT): None,
    (_AVAILABLE, Event.ACQUISITION_UNDONE): None,
    (_AVAILABLE, Event.MISSING_IN_LOG): _ARCHIVED,
    (_ACQUIRED, Event.ACQUIRE): None,
    (_ACQUIRED, Event.ACCEPT): _ACKNOWLEDGED,
    (_ACQUIRED, Event.RELEASE): _AVAILABLE,
    (_ACQUIRED, Event.REJECT): _ARCHIVED,
    (_ACQUIRED, Event.GAP): _ARCHIVED,
    (_ACQUIRED, Event.RENEW): _ACQUIRED,
    (_ACQUIRED, Event.SESSION_END): _AVAILABLE,
    (_ACQUIRED, Event.LOCK_TIMEOUT): _AVAILABLE,
    (_ACQUIRED, Event.ACQUISITION_UNDONE): _AVAILABLE,
    (_ACQUIRED, Event.MISSING_IN_LOG): None,
    (_ACKNOWLEDGED, Event.ACQUIRE): None,
    (_ACKNOWLEDGED, Event.ACCEPT): None,
    (_ACKNOWLEDGED, Event.RELEASE): None,
    (_ACKNOWLEDGED, Event.REJECT): None,
    (_ACKNOWLEDGED, Event.GAP): None,
    (_ACKNOWLEDGED, Event.RENEW): None,
    (_ACKNOWLEDGED, Event.SESSION_END): None,
    (_ACKNOWLEDGED, Event.LOCK_TIMEOUT): None,
    (_ACKNOWLEDGED, Event.ACQUISITION_UNDONE): None,
    (_ACKNOWLEDGED, Event.MISSING_IN_LOG): None,
    (_ARCHIVED, Event.ACQUIRE): None,
    (_ARCHIVED, Event.ACCEPT): None,
    (_ARCHIVED, Event.RELEASE): None,
    (_ARCHIVED, Event.REJECT): None,
    (_ARCHIVED, Event.GAP): None,
    (_ARCHIVED, Event.RENEW): None,
    (_ARCHIVED, Event.SESSION_END): None,
    (_ARCHIVED, Event.LOCK_TIMEOUT): None,
    (_ARCHIVED, Event.ACQUISITION_UNDONE): None,
    (_ARCHIVED, Event.MISSING_IN_LOG): None,
}
"""The next state; None: the event leaves the record alone, or is refused where somebody asked for it."""

EVENT_OF_ACKNOWLEDGEMENT: Mapping[int, Event] = {
    AcknowledgeType.GAP: Event.GAP,
    AcknowledgeType.ACCEPT: Event.ACCEPT,
    AcknowledgeType.RELEASE: Event.RELEASE,
    AcknowledgeType.REJECT: Event.REJECT,
    AcknowledgeType.RENEW: Event.RENEW,
}

COUNTS_AGAINST_LIMIT = frozenset({Event.RELEASE, Event.SESSION_END, Event.LOCK_TIMEOUT})
"""Events that end a delivery without a result; at the delivery count limit they archive the record."""


def next_state(state: RecordState, event: Event, delivery_count: int, delivery_count_limit: int) -> RecordState | None:
    """The state after `event`, the limit considered; None where the table has none."""
    after = TRANSITIONS[state, event]
    if event in COUNTS_AGAINST_LIMIT and after is _AVAILABLE and delivery_count >= delivery_count_limit:
        return _ARCHIVED
    return after
