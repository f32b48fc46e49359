"""Rejected batches of idempotent producers that await a retry; later batches must not be stored before them.

A Kafka broker that dies takes its connections along: of several Produce requests in flight none is answered, and the
producer retries all of them. Here the connection survives when a leader goes away, so one request may fail and the next
may reach the leader that came back. The next one must not be tried then:

- The leader would reject it with OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then gives all unconfirmed batches sequences
  of a new producer epoch, so a batch that was stored before its response was lost is stored a second time.
- A leader that does not know the producer accepts any sequence. librdkafka then believes that the earlier batches were
  stored, too, and they are lost.

So after a batch got a retriable error, later batches of the producer for the same partition and connection get the same
kind of error without asking a leader. This ends when that batch, or one before it, is sent again. The retry may come
through another gateway, so it also ends after KEPT_TICKS. The gateway counts ticks instead of comparing times: while
its process stands still (SIGSTOP, a virtual machine that is moved) it reads no request, and the later batches lie in
the connection's buffer however long that takes.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire.messages import Buffer
from kshare_wire.record_batches import read_header

TICK_S = 1.0
KEPT_TICKS = 11
"""How long a batch is awaited, at least 10 s; longer than the delivery of requests that were sent before the client
read the rejection."""

SENT_AGAIN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors after which a producer sends the same batch again (Kafka's retriable ones)."""

_SEQUENCES = 1 << 31


class _Awaited(NamedTuple):
    producer_id: int
    producer_epoch: int
    base_sequence: int
    until_tick: int


class AwaitedBatches:
    """The earliest awaited batch of each connection and partition."""

    def __init__(self) -> None:
        self._awaited: dict[tuple[int, bytes | str, int], _Awaited] = {}
        """By connection, topic as the client names it, and partition; ordered by expiry."""
        self._tick = 0
        self._timer: asyncio.TimerHandle | None = None
        """Of the next tick; None while nothing is awaited."""

    def __len__(self) -> int:
        return len(self._awaited)

    def refused(self, connection_id: int, topic: bytes | str, partition: int, records: Buffer) -> None:
        """Notes that the producer was told to retry this batch."""
        batch = _idempotent_batch(records)
        if batch is None or self.must_wait(connection_id, topic, partition, records):
            return
        place = (connection_id, topic, partition)
        self._awaited.pop(place, None)
        self._awaited[place] = _Awaited(*batch, self._tick + KEPT_TICKS)
        self._await_tick()

    def must_wait(self, connection_id: int, topic: bytes | str, partition: int, records: Buffer) -> bool:
        """Whether an earlier batch is awaited; if this is the awaited batch, its entry is removed."""
        if not self._awaited:
            return False
        place = (connection_id, topic, partition)
        awaited = self._awaited.get(place)
        if awaited is None:
            return False
        batch = _idempotent_batch(records)
        if batch is not None:
            producer_id, producer_epoch, base_sequence = batch
            later_by = (base_sequence - awaited.base_sequence) % _SEQUENCES
            is_same = (producer_id, producer_epoch) == (awaited.producer_id, awaited.producer_epoch)
            if is_same and 0 < later_by < _SEQUENCES // 2:
                return True
        del self._awaited[place]
        return False

    def _await_tick(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._end_tick)

    def _end_tick(self) -> None:
        """Forgets what has expired; the next tick begins only now, so a pause counts as one tick, however long."""
        self._tick += 1
        self._timer = None
        for place, awaited in list(self._awaited.items()):
            if self._tick < awaited.until_tick:
                self._await_tick()
                return
            del self._awaited[place]


def refusal() -> KafkaError:
    """The error for a batch that must wait."""
    text = "An earlier batch of the producer is not confirmed; it must be retried first"
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)


def _idempotent_batch(records: Buffer) -> tuple[int, int, int] | None:
    """Producer id, producer epoch and base sequence; None without a producer id, or for an invalid batch."""
    try:
        header = read_header(memoryview(records))
    except KafkaError:
        return None
    return (header.producer_id, header.producer_epoch, header.base_sequence) if header.has_producer_id else None
