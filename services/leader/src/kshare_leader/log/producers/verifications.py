"""Pending verifications of transactions, which the coordinator must confirm before their first batch (KIP-890).

A transactional batch that begins a transaction in a partition is appended only when the coordinator has confirmed that
the partition is part of that transaction. Otherwise a batch delayed until after the transaction's end would open a
transaction that is never ended. The rules are those of VerificationStateEntry and UnifiedLog of Kafka 4.3:

- a producer has one verification in a partition; it ends with the first transactional batch or the next marker, so an
  answer of the coordinator from before a marker admits no batch after it;
- a marker with a newer epoch than its transaction keeps the verification of the next transaction, which has that epoch;
- the lowest sequence seen during the look-up must be appended first.

Here a batch or a marker is written before it takes effect. A verification that begins during that write is the next
transaction's: it comes after the marker, and does not end with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.errors import ErrorCode, KafkaError

VERIFICATIONS_LIMIT = 20_000
"""Producers of one partition whose transactions are being looked up; more get POLICY_VIOLATION."""
MAKES_ROOM_AFTER_MS = 15 * 60 * 1000
"""At the limit, verifications that began this long ago or earlier are removed."""


@dataclass(slots=True, eq=False)
class Verification:
    """The state of a producer's transaction before its first batch; compared by identity."""

    producer_epoch: int
    lowest_sequence: int
    adds_partition: bool
    """The producer's transactions end with a new epoch each (version 2), so each one starts at sequence 0."""
    started_ms: int
    is_verified: bool = False
    """The coordinator has confirmed the transaction of this epoch."""

    def note(self, producer_epoch: int, sequence: int) -> None:
        """Notes another batch that waits for the same transaction, or for a newer one of the producer."""
        if producer_epoch == self.producer_epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)
        elif producer_epoch > self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.lowest_sequence = sequence
            self.is_verified = False

    def confirms(self, producer_epoch: int) -> bool:
        """Whether the coordinator has confirmed the producer's transaction of this epoch."""
        return self.is_verified and self.producer_epoch == producer_epoch

    def is_of_next_after(self, marker_epoch: int) -> bool:
        """Whether this verification is of the transaction after the one that a marker with this epoch ends."""
        return self.adds_partition and self.producer_epoch == marker_epoch


class Verifications:
    """The verifications of one partition, in the order in which they began. In memory only."""

    def __init__(self, *, limit: int = VERIFICATIONS_LIMIT) -> None:
        self._limit = limit
        self._by_producer: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def get(self, producer_id: int) -> Verification | None:
        return self._by_producer.get(producer_id)

    def begin(
        self, producer_id: int, *, producer_epoch: int, sequence: int, adds_partition: bool, now_ms: int
    ) -> Verification:
        """The producer's verification, a new one where it has none; KafkaError POLICY_VIOLATION at the limit."""
        verification = self._by_producer.get(producer_id)
        if verification is not None:
            verification.note(producer_epoch, sequence)
            return verification
        if len(self._by_producer) >= self._limit:
            self.expire(now_ms, MAKES_ROOM_AFTER_MS)
        if len(self._by_producer) >= self._limit:
            text = f"the transactions of {self._limit} producers are already being verified, which is the limit"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
        verification = self._by_producer[producer_id] = Verification(producer_epoch, sequence, adds_partition, now_ms)
        return verification

    def clear(self, producer_id: int, verification: Verification | None) -> None:
        """Ends this verification of the producer; one that has begun since is another transaction's, and goes on."""
        if verification is not None and self._by_producer.get(producer_id) is verification:
            del self._by_producer[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Removes verifications that began `expiration_ms` ago or earlier."""
        for producer_id, verification in list(self._by_producer.items()):
            if now_ms - verification.started_ms < expiration_ms:
                return
            del self._by_producer[producer_id]
