"""An ordinary consumer (KIP-848) of a soak: no offset is left out, and what it committed stays committed."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from soak.ledger import SHOWN_VIOLATIONS

COMMIT_INTERVAL_S = 1.0
POLL_S = 0.2
ENDING_S = 60.0
CLIENT_SETTINGS = {
    "group.protocol": "consumer",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "log_level": 0,
}


class OrdinaryConsumer(threading.Thread):
    """Reads a topic without transactions from its beginning, and commits every second."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__(daemon=True, name=f"consumer of {topic}")
        self._settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": group, **CLIENT_SETTINGS}
        self._topic = topic
        self._ending = threading.Event()
        self._next: dict[int, int] = {}
        """Partition -> the offset after the last record that came."""
        self._committed: dict[int, int] = {}
        self.commits = 0
        self.violations: list[str] = []

    @property
    def records(self) -> int:
        """How many offsets were read, each counted once."""
        return sum(self._next.values())

    def end(self) -> None:
        self._ending.set()
        self.join(ENDING_S)
        assert not self.is_alive(), f"{self.name} did not end within {ENDING_S} s"

    def run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic])
        committed_at = time.monotonic()
        while not self._ending.is_set():
            message: Any = consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                self.came(message.partition(), message.offset())
            if time.monotonic() - committed_at >= COMMIT_INTERVAL_S:
                committed_at = time.monotonic()
                self._commit(consumer)
        consumer.close()

    def came(self, partition: int, offset: int) -> None:
        """A record came: the next one, or one that is read again, but none that is below what was committed."""
        expected = self._next.get(partition, 0)
        if offset > expected:
            self._violation(f"partition {partition}: after offset {expected - 1} came {offset}")
        elif offset < self._committed.get(partition, 0):
            self._violation(f"partition {partition}: {offset} came, {self._committed[partition]} was committed")
        self._next[partition] = max(expected, offset + 1)

    def committed(self, partition: int, offset: int) -> None:
        """A commit was confirmed: nothing below it may come again."""
        self._committed[partition] = offset

    def _commit(self, consumer: Any) -> None:
        wanted = [TopicPartition(self._topic, partition, offset) for partition, offset in self._next.items()]
        if not wanted:
            return
        try:
            answer = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # a fault; the next commit has these, too
        for each in answer:
            if each.error is None:
                self.committed(each.partition, each.offset)
        self.commits += 1

    def _violation(self, text: str) -> None:
        if len(self.violations) < SHOWN_VIOLATIONS:
            self.violations.append(f"ordinary consumer, {text}")
