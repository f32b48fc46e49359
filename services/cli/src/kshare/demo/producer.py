"""The demo's producer: `python -m kshare.demo.producer BOOTSTRAP TOPIC ORDERS SECONDS`.

Spreads the orders over the given time, in bursts, and reports each that the cluster confirmed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from kshare.demo.reports import report

BURST = 100
"""Orders are produced in bursts, so that workers hold several at once."""
ITEMS = ("tea", "coffee", "cocoa", "cake", "juice")


def order_value(order: int) -> bytes:
    """An order as JSON: number, item and quantity."""
    return json.dumps({"order": order, "item": ITEMS[order % len(ITEMS)], "quantity": 1 + order % 4}).encode()


def produce_orders(bootstrap: str, topic: str, orders: int, seconds: float) -> bool:
    """Produces all orders; returns whether all were confirmed."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    confirmed: list[int] = []
    failed = 0

    def delivered(order: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, _message: Message) -> None:
            nonlocal failed
            if error is None:
                confirmed.append(order)
            else:
                failed += 1
                report("failed", text=f"order {order} was not stored: {error.str()}")

        return note

    started_at = time.monotonic()
    for order in range(orders):
        due_at = started_at + seconds * (order - order % BURST) / orders
        while (wait_s := due_at - time.monotonic()) > 0:
            producer.poll(min(wait_s, 0.1))
            _report_confirmed(confirmed)
        producer.produce(topic, key=f"customer-{order % 97}", value=order_value(order), on_delivery=delivered(order))
    while len(producer):
        producer.flush(0.1)
        _report_confirmed(confirmed)
    _report_confirmed(confirmed)
    return failed == 0


def _report_confirmed(confirmed: list[int]) -> None:
    if confirmed:
        report("produced", orders=confirmed)
        confirmed.clear()


def main() -> None:
    bootstrap, topic, orders, seconds = sys.argv[1:]
    sys.exit(0 if produce_orders(bootstrap, topic, int(orders), float(seconds)) else 1)


if __name__ == "__main__":
    main()
