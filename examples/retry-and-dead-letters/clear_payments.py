"""A worker that releases payments that fail; the group's share.delivery.count.limit ends their retries."""

from __future__ import annotations

import argparse
import time

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer


def clear(payment: str) -> None:
    """The work, which fails for closed accounts at every try."""
    if "closed account" in payment:
        raise ValueError("the account is closed")


def work(bootstrap: str, topic: str, group: str, idle_s: float) -> None:
    """Clears payments until none came for `idle_s` seconds."""
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([topic])
    last_record_s = time.monotonic()
    try:
        while time.monotonic() < last_record_s + idle_s:
            for message in consumer.poll(1.0):
                if message.error() is not None:
                    raise KafkaException(message.error())
                last_record_s = time.monotonic()
                value = message.value() or b""
                payment = value.decode(errors="backslashreplace")  # to print it, whatever it is
                try:
                    clear(value.decode())
                except ValueError as problem:
                    print(f"failed\t{message.delivery_count()}\t{payment}\t{problem}", flush=True)
                    consumer.acknowledge(message, AcknowledgeType.RELEASE)
                else:
                    print(f"cleared\t{message.delivery_count()}\t{payment}", flush=True)
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            for partition, error in consumer.commit_sync().items():
                if error is not None:
                    print(f"{partition}: not acknowledged, delivered again later: {error}", flush=True)
    finally:
        consumer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="payments")
    parser.add_argument("--group", default="clearing")
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds without a payment after which it ends")
    arguments = parser.parse_args()
    work(arguments.bootstrap, arguments.topic, arguments.group, arguments.idle_s)
