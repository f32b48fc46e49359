"""Batches of producers that a log does not know, where an earlier batch was refused or reached no leader.

A log that does not know a producer takes any sequence from it, as in Kafka. A leader whose lease comes back between
two batches under way would refuse the first and take the second, and the first one could never follow. The same is true
of a disk that fails the write of the first and takes the second. So a leader remembers the lowest sequence that it
refused or could not write, and a producer that the log does not know has to begin there.

Where a leader's process ends and the next one begins to serve between the two, no leader refused the first. The gateway
sends each batch for a leader epoch, and for a later one only when it has the answers of the earlier one. So a batch for
an earlier epoch than the log's comes after others that may not have reached a leader, unless its sequence is 0.

In memory only, and for a limited time: a client that gives a batch up begins a new epoch.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_wire.record_batches import BatchHeader, read_header

REMEMBERED_MS = 120_000
"""Kafka's default of delivery.timeout.ms: after that a client has given the batch up."""
REMEMBERED_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,  # a new topic, which the gateway knows before this leader
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Those after which a producer sends the same batch again, and which end without it."""
ANY_EPOCH = 0
"""The leader epoch of batches that are sent for none; catalogs begin above it."""
PRODUCERS_LIMIT = 20_000
"""Producers in all partitions; the ones that were refused first are forgotten."""


def check_leader_epoch(header: BatchHeader, sent_for: int, leader_epoch: int) -> None:
    """KafkaError NOT_LEADER_OR_FOLLOWER for a later batch of an unknown producer that was sent for an earlier epoch."""
    if header.has_producer_id and header.base_sequence > 0:
        text = (
            f"producer {header.producer_id} sent sequence {header.base_sequence} for leader epoch {sent_for}, and the "
            f"partition is at epoch {leader_epoch}; the batches before it may not have arrived"
        )
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)


class _Refused(NamedTuple):
    lowest_sequence: int
    until_ms: int


class RefusedFirsts:
    """See the module's text. False while there is none; times are those of the caller's clock."""

    def __init__(self) -> None:
        self._refused: dict[tuple[TopicPartition, int, int], _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, key: TopicPartition, records: memoryview, now_ms: int) -> None:
        """Notes a batch that is refused or not written; one that cannot be read has no producer."""
        try:
            header = read_header(records)
        except KafkaError:
            return
        if not header.has_producer_id:
            return
        name = (key, header.producer_id, header.producer_epoch)
        before = self._refused.pop(name, None)
        sequence = header.base_sequence
        if before is not None and before.until_ms > now_ms:
            sequence = min(sequence, before.lowest_sequence)
        self._refused[name] = _Refused(sequence, now_ms + REMEMBERED_MS)
        if len(self._refused) > PRODUCERS_LIMIT:
            del self._refused[next(iter(self._refused))]

    def check(self, key: TopicPartition, header: BatchHeader, now_ms: int, *, is_known: bool) -> None:
        """KafkaError OUT_OF_ORDER_SEQUENCE_NUMBER for a batch before which a refused one has to come.

        `is_known`: whether the log knows the producer, so that its own sequences decide.
        """
        name = (key, header.producer_id, header.producer_epoch)
        found = self._refused.get(name)
        if found is None:
            return
        if is_known or found.until_ms <= now_ms or header.base_sequence <= found.lowest_sequence:
            del self._refused[name]
            return
        text = (
            f"producer {header.producer_id} with epoch {header.producer_epoch} sent sequence {header.base_sequence}, "
            f"but {found.lowest_sequence} must come first: this leader refused it, or could not write it"
        )
        raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
