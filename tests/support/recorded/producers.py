"""Producers in threads: each record's Produce and its confirmation are events; one of them in transactions."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaException, Producer

from support.clients.several_coordinator_load import Load
from support.simulation.history import (
    ProduceConfirmed,
    ProduceSent,
    TransactionBegun,
    TransactionEndConfirmed,
    TransactionEndSent,
)

MESSAGE_TIMEOUT_MS = 180_000
TRANSACTION_TIMEOUT_S = 60.0
FLUSH_S = 120.0
TRANSACTION_RECORDS = 9
ABORTED_EVERY = 4

ProducerEvent = ProduceSent | ProduceConfirmed | TransactionBegun | TransactionEndSent | TransactionEndConfirmed


class RecordedProducer(Load):
    """An idempotent producer that sends `rate` records a second, into all partitions in turn, until it is finished."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: float, name: str = "plain") -> None:
        super().__init__()
        self.name = name
        self._topic, self._partitions, self._interval_s = topic, partitions, 1 / rate
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 0,
            "enable.idempotence": True,
            "message.timeout.ms": MESSAGE_TIMEOUT_MS,
            "log_level": 0,
        }
        self.events: list[ProducerEvent] = []
        self.confirmed = 0
        self._number = 0

    def work(self) -> None:
        producer = Producer(self._settings)
        while not self._stop_asked.wait(self._interval_s):
            self._send(producer, self._next_value())
            producer.poll(0)
        assert producer.flush(FLUSH_S) == 0, f"{self.name}: records have no answer"

    def _next_value(self) -> str:
        self._number += 1
        return f"{self.name}-{self._number:06d}"

    def _send(self, producer: Producer, value: str) -> None:
        partition = int(value.rsplit("-", 1)[1]) % self._partitions
        self.events.append(ProduceSent(time.monotonic(), self.name, partition, (value,)))
        while True:
            try:
                producer.produce(self._topic, value.encode(), partition=partition, on_delivery=self._answered)
                return
            except BufferError:
                producer.poll(0.05)

    def _answered(self, error: Any, message: Any) -> None:
        if error is None:
            self.confirmed += 1
            place = (message.partition(), message.offset())
            value = message.value().decode()
            self.events.append(ProduceConfirmed(time.monotonic(), self.name, *place, (value,)))


class TransactionalProducer(RecordedProducer):
    """Transactions of 9 records, of which every fourth is aborted. After a failed one a new producer fences the old."""

    def work(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            settings = {"transactional.id": f"{self._topic}-{self.name}", "message.timeout.ms": 60_000}
            producer = Producer({**self._settings, **settings})
            try:
                producer.init_transactions(TRANSACTION_TIMEOUT_S)
                while not self._stop_asked.wait(self._interval_s * TRANSACTION_RECORDS):
                    number += 1
                    self._transaction(producer, number)
            except KafkaException:
                continue

    def _transaction(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        values = tuple(self._next_value() for _ in range(TRANSACTION_RECORDS))
        self.events.append(TransactionBegun(time.monotonic(), self.name, number, values))
        for value in values:
            self._send(producer, value)
        commit = number % ABORTED_EVERY != 0
        if commit:
            producer.flush(TRANSACTION_TIMEOUT_S)
        self.events.append(TransactionEndSent(time.monotonic(), self.name, number, commit))
        end = producer.commit_transaction if commit else producer.abort_transaction
        while True:
            try:
                end(TRANSACTION_TIMEOUT_S)
            except KafkaException as failure:
                if failure.args[0].retriable():
                    continue
                if commit and failure.args[0].txn_requires_abort():
                    commit, end = False, producer.abort_transaction
                    continue
                raise
            self.events.append(TransactionEndConfirmed(time.monotonic(), self.name, number, commit))
            return
