"""A worker of the demo: `python -m kshare.demo.worker BOOTSTRAP TOPIC GROUP BEHAVIOUR`.

Acquires orders as a member of the share group, acknowledges each, and reports an acknowledgement only after
commit_sync has confirmed it. Behaviours:

    steady     accepts everything
    releasing  releases some of the orders with delivery count 1
    rejecting  rejects some of the orders
    crashing   kills itself while it holds a batch of orders, some of them acknowledged but not committed

On SIGTERM it leaves the group and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

from kshare.demo.account import ACCEPT, REJECT, RELEASE
from kshare.demo.reports import report

STEADY, RELEASING, REJECTING, CRASHING = BEHAVIOURS = ("steady", "releasing", "rejecting", "crashing")
CRASH_BATCHES = range(2, 5)
"""The batches before which the crashing worker dies if it gets CRASH_ORDERS at once; after them it always dies."""
CRASH_ORDERS = 20
REJECTED = (5, 7)
"""Order numbers modulo 20: one that the releasing worker may release, and one that it never releases. The rejecting
worker may receive only released orders."""
WORK_S = 0.001
"""Processing time per order."""
TYPES = {
    ACCEPT: AcknowledgeType.ACCEPT,
    RELEASE: AcknowledgeType.RELEASE,
    REJECT: AcknowledgeType.REJECT,
}


def answer_to(behaviour: str, order: int, delivery_count: int) -> str:
    """The acknowledgement type for an order with this delivery count."""
    if behaviour == RELEASING and delivery_count == 1 and order % 5 == 0:
        return RELEASE
    if behaviour == REJECTING and order % 20 in REJECTED:
        return REJECT
    return ACCEPT


def is_time_to_crash(batches: int, orders: int) -> bool:
    """Whether the crashing worker dies now, after `batches` batches and holding `orders` orders."""
    if batches in CRASH_BATCHES:
        return orders >= CRASH_ORDERS
    return batches >= CRASH_BATCHES.stop


def order_of(message: Message) -> int:
    """The order number in a record."""
    order = json.loads(message.value() or b"{}")["order"]
    assert isinstance(order, int)
    return order


class Worker:
    """One share consumer with a behaviour; see the module's docstring."""

    def __init__(self, bootstrap: str, topic: str, group: str, behaviour: str) -> None:
        self._behaviour = behaviour
        self._batches = 0
        self._stopping = False
        self._consumer = ShareConsumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
        )
        self._consumer.subscribe([topic])
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._stop())

    def _stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        report("working")
        while not self._stopping:
            messages = [message for message in self._consumer.poll(0.25) if self._is_order(message)]
            if not messages:
                continue
            if self._behaviour == CRASHING and is_time_to_crash(self._batches, len(messages)):
                self._crash(messages)
            self._work_on(messages)
            self._batches += 1
        self._consumer.close()

    def _is_order(self, message: Message) -> bool:
        error = message.error()
        if error is not None:
            report("failed", text=error.str())
        return error is None

    def _work_on(self, messages: list[Message]) -> None:
        answers: dict[int, list[tuple[int, str, int]]] = {}
        for message in messages:
            time.sleep(WORK_S)
            order, count, partition = order_of(message), message.delivery_count(), message.partition()
            assert count is not None and partition is not None, "a record of a share group has both"
            answer = answer_to(self._behaviour, order, count)
            self._consumer.acknowledge(message, TYPES[answer])
            answers.setdefault(partition, []).append((order, answer, count))
        confirmed: list[tuple[int, str, int]] = []
        refused = 0
        try:
            results = {place.partition: problem for place, problem in self._consumer.commit_sync(30.0).items()}
        except KafkaException as error:
            report("failed", text=str(error))
            results = dict.fromkeys(answers, error)
        for partition, given in answers.items():
            if partition in results and results[partition] is None:
                confirmed.extend(given)
            else:
                refused += len(given)
        report("answered", confirmed=confirmed, refused=refused)

    def _crash(self, messages: list[Message]) -> None:
        """Kills the process while it holds orders; half of them are acknowledged but not committed."""
        for message in messages[: len(messages) // 2]:
            self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        report("crashing", holding=[order_of(message) for message in messages])
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    bootstrap, topic, group, behaviour = sys.argv[1:]
    Worker(bootstrap, topic, group, behaviour).run()


if __name__ == "__main__":
    main()
