"""The state transition table of records in a share-partition (KIP-932, "In-flight records").

A record is Available, Acquired by one owner, Archiving, or in a terminal state (Acknowledged, Archived). Only an
Acquired record can be acknowledged. A release, lock timeout or session end makes an Acquired record Available again,
or archives it if its delivery count has reached the limit. The delivery count grows only when a record is acquired. It
is decremented only if the acquisition is undone because its response never left the leader.

In a group with a dead-letter topic (KIP-1191) a record that is rejected or at its limit is Archiving first. Until its
dead letter is stored it cannot be acquired, and the start offset does not pass it, even if the log has lost the record
meanwhile. Offsets that the log does not have when they are given up get no dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum, auto

from kshare_core.states import AcknowledgeType, RecordState


class Event(IntEnum):
    """An event of a record. (An IntEnum: its values index the table without a call.)"""

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
    """The response with the record never left the leader; its delivery does not count."""
    MISSING_IN_LOG = auto()
    """The log has no record at this offset: compaction, or a control record."""
    BELOW_LOG_START = auto()
    """The log starts after this offset: retention, or DeleteRecords."""
    DEAD_LETTERED = auto()
    """The dead letter of the record is stored, or was given up."""


class ArchivingReason(Enum):
    """Why a record goes to the dead-letter topic."""

    REJECTED = auto()
    DELIVERY_COUNT_EXCEEDED = auto()


_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ACKNOWLEDGED = RecordState.ACKNOWLEDGED
_ARCHIVING = RecordState.ARCHIVING
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
    (_AVAILABLE, Event.BELOW_LOG_START): _ARCHIVED,
    (_AVAILABLE, Event.DEAD_LETTERED): None,
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
    (_ACQUIRED, Event.BELOW_LOG_START): _ARCHIVED,
    (_ACQUIRED, Event.DEAD_LETTERED): None,
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
    (_ACKNOWLEDGED, Event.BELOW_LOG_START): None,
    (_ACKNOWLEDGED, Event.DEAD_LETTERED): None,
    (_ARCHIVING, Event.ACQUIRE): None,
    (_ARCHIVING, Event.ACCEPT): None,
    (_ARCHIVING, Event.RELEASE): None,
    (_ARCHIVING, Event.REJECT): None,
    (_ARCHIVING, Event.GAP): None,
    (_ARCHIVING, Event.RENEW): None,
    (_ARCHIVING, Event.SESSION_END): None,
    (_ARCHIVING, Event.LOCK_TIMEOUT): None,
    (_ARCHIVING, Event.ACQUISITION_UNDONE): None,
    (_ARCHIVING, Event.MISSING_IN_LOG): None,
    (_ARCHIVING, Event.BELOW_LOG_START): None,
    (_ARCHIVING, Event.DEAD_LETTERED): _ARCHIVED,
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
    (_ARCHIVED, Event.BELOW_LOG_START): None,
    (_ARCHIVED, Event.DEAD_LETTERED): None,
}
"""The next state. None: the event has no effect, or is refused if a request asked for it."""

EVENT_OF_ACKNOWLEDGEMENT: Mapping[int, Event] = {
    AcknowledgeType.GAP: Event.GAP,
    AcknowledgeType.ACCEPT: Event.ACCEPT,
    AcknowledgeType.RELEASE: Event.RELEASE,
    AcknowledgeType.REJECT: Event.REJECT,
    AcknowledgeType.RENEW: Event.RENEW,
}

COUNTS_AGAINST_LIMIT = frozenset({Event.RELEASE, Event.SESSION_END, Event.LOCK_TIMEOUT})
"""Events that end a delivery without a result; at the delivery count limit they archive the record."""


REASON_OF_EVENT: Mapping[Event, ArchivingReason] = {
    Event.REJECT: ArchivingReason.REJECTED,
    Event.RELEASE: ArchivingReason.DELIVERY_COUNT_EXCEEDED,
    Event.SESSION_END: ArchivingReason.DELIVERY_COUNT_EXCEEDED,
    Event.LOCK_TIMEOUT: ArchivingReason.DELIVERY_COUNT_EXCEEDED,
}
"""Events that archive a record that the log has. With dead letters, it is Archiving first, for this reason."""


def next_state(
    state: RecordState, event: Event, delivery_count: int, delivery_count_limit: int, dead_letters: bool = False
) -> RecordState | None:
    """The state after `event`, considering the limit and dead letters; None if the table has none."""
    after = TRANSITIONS[state, event]
    if event in COUNTS_AGAINST_LIMIT and after is _AVAILABLE and delivery_count >= delivery_count_limit:
        after = _ARCHIVED
    if dead_letters and after is _ARCHIVED and event in REASON_OF_EVENT:
        return _ARCHIVING
    return after


def _outcome(event: Event, dead_letters: bool) -> tuple[RecordState | None, RecordState | None]:
    return next_state(_ACQUIRED, event, 0, 1, dead_letters), next_state(_ACQUIRED, event, 1, 1, dead_letters)


OUTCOMES: Sequence[Sequence[tuple[RecordState | None, RecordState | None]]] = [
    [(None, None), *(_outcome(event, dead_letters) for event in Event)] for dead_letters in (False, True)
]
"""Of an Acquired record, by dead letters (0 or 1) and event: the next state below the limit, and the one at it."""
