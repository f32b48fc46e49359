"""States of a record in a share-partition, and the acknowledge types that change them (KIP-932).

ACQUIRED is never persisted; the persisted numbers are Kafka's.
"""

from __future__ import annotations

from enum import IntEnum


class RecordState(IntEnum):
    """The state of an in-flight record (KIP-932, "In-flight records")."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """In flight to the dead-letter topic (KIP-1191): never delivered again, but not yet terminal."""
    ARCHIVED = 4

    def __init__(self, number: int) -> None:
        self.is_terminal = number in (2, 4)
        """Whether the state is final, so that the start offset may pass the record."""


class AcknowledgeType(IntEnum):
    """The types in AcknowledgementBatch.AcknowledgeTypes (keys 78 and 79; RENEW is KIP-1222)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


IN_FLIGHT_OFFSETS_LIMIT = 10_000
"""The offsets that a share-partition's window may grow to: the highest share.partition.max.record.locks."""
STATE_BATCHES_PER_WRITE_LIMIT = IN_FLIGHT_OFFSETS_LIMIT
"""The state batches of a share-partition in one WriteShareGroupState: a window of single records fits."""

PERSISTED_STATES = frozenset(RecordState) - {RecordState.ACQUIRED}

MAX_STATE_EPOCH = 1 << 30
"""The highest state epoch that a share coordinator stores: half of the field's range. A group continues above the state
epochs that it finds, so there must be room above them."""
