"""Producers of a soak, each a thread: one idempotent, one transactional, at a steady pace."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from soak.ledger import Ledger, Sent
from soak.workers import record_value

RECORD_BYTES = 300
MESSAGE_TIMEOUT_MS = 300_000
TRANSACTION_TIMEOUT_S = 60.0
TRANSACTION_RECORDS = 20
ABORTED_SHARE = 0.2
INTERVAL_S = 0.1
ENDING_S = 120.0


class PacedProducer(threading.Thread):
    """Sends `rate` records a second until `end`. Its failure is raised there."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int, ledger: Ledger) -> None:
        super().__init__(daemon=True, name=f"producer of {topic}")
        self._address, self._topic, self._partitions = bootstrap, topic, partitions
        self._each_interval = max(1, round(rate * INTERVAL_S))
        self.ledger = ledger
        self._ending = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._produce()
        except BaseException as failure:
            self._failure = failure

    def end(self) -> None:
        """Stops, and returns when everything that was sent has its answer."""
        self._ending.set()
        self.join(ENDING_S)
        if self._failure is not None:
            raise self._failure
        assert not self.is_alive(), f"{self.name} did not end within {ENDING_S} s"

    def _settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._address,
            "linger.ms": 5,
            "enable.idempotence": True,
            "message.timeout.ms": MESSAGE_TIMEOUT_MS,
            "log_level": 0,
        }

    def _produce(self) -> None:
        producer = Producer(self._settings())
        due = time.monotonic()
        while not self._ending.is_set():
            for _ in range(self._each_interval):
                self._send(producer)
            producer.poll(0)
            due += INTERVAL_S
            self._ending.wait(max(0.0, due - time.monotonic()))
        assert producer.flush(ENDING_S) == 0, f"{self.name}: records have no answer after {ENDING_S} s"

    def _send(self, producer: Producer) -> None:
        number = self.ledger.next_number()

        def answered(error: object, message: object) -> None:
            if error is None:
                self.ledger.sent(number, Sent.CONFIRMED)

        value = record_value(number, RECORD_BYTES)
        while True:
            try:
                producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=answered)
                return
            except BufferError:
                producer.poll(INTERVAL_S)


class TransactionalProducer(PacedProducer):
    """Transactions of 20 records, of which a fifth is aborted; after a failed one it begins anew."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int, ledger: Ledger, seed: int) -> None:
        super().__init__(bootstrap, topic, partitions, rate, ledger)
        self._random = random.Random(seed)
        self._transaction_interval_s = TRANSACTION_RECORDS / rate

    def _produce(self) -> None:
        while not self._ending.is_set():
            producer = Producer(
                {**self._settings(), "transactional.id": f"soak-{self._topic}", "message.timeout.ms": 60_000}
            )
            try:
                producer.init_transactions(TRANSACTION_TIMEOUT_S)
                self._transactions(producer)
            except KafkaException:
                continue  # a new producer fences what this one left open

    def _transactions(self, producer: Producer) -> None:
        while not self._ending.is_set():
            producer.begin_transaction()
            numbers = [self.ledger.next_number() for _ in range(TRANSACTION_RECORDS)]
            for number in numbers:
                producer.produce(self._topic, record_value(number, RECORD_BYTES), partition=number % self._partitions)
            if self._random.random() < ABORTED_SHARE:
                self._abort(producer, numbers)
            else:
                self._commit(producer, numbers)
            self._ending.wait(self._transaction_interval_s)

    def _commit(self, producer: Producer, numbers: list[int]) -> None:
        while True:
            try:
                producer.commit_transaction(TRANSACTION_TIMEOUT_S)
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.retriable():
                    continue
                if error.txn_requires_abort():
                    self._abort(producer, numbers)
                    return
                raise
            self._tell(numbers, Sent.CONFIRMED)
            return

    def _abort(self, producer: Producer, numbers: list[int]) -> None:
        while True:
            try:
                producer.abort_transaction(TRANSACTION_TIMEOUT_S)
            except KafkaException as failure:
                if failure.args[0].retriable():
                    continue
                raise
            self._tell(numbers, Sent.ABORTED)
            return

    def _tell(self, numbers: list[int], known: Sent) -> None:
        for number in numbers:
            self.ledger.sent(number, known)
