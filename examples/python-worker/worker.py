"""A worker of a share group: accepts each order that it processed, and releases an order that failed.

Any number of workers may run on one partition. A released order goes to any of them again.
"""

from __future__ import annotations

import argparse
import signal

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer


def process(message: Message) -> None:
    """The work. An exception means that this order is delivered again."""
    value = message.value()
    if not value:
        raise ValueError("an order without a text")
    print(f"processed {value.decode()}", flush=True)


def work(bootstrap: str, topic: str, group: str) -> None:
    """Processes orders until SIGINT or SIGTERM, and acknowledges each of them."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([topic])
    try:
        while not stopping:
            for message in consumer.poll(1.0):
                consumer.acknowledge(message, outcome(message))
            # Waits until the acknowledgements are on disk.
            for partition, error in consumer.commit_sync().items():
                if error is not None:
                    print(f"{partition}: not acknowledged, delivered again later: {error}", flush=True)
    finally:
        consumer.close()  # releases what was fetched but not acknowledged


def outcome(message: Message) -> AcknowledgeType:
    """How processing a message ended, as its acknowledgement."""
    if message.error() is not None:
        raise KafkaException(message.error())
    try:
        process(message)
    except Exception as problem:
        print(f"failed at delivery {message.delivery_count()}: {problem}", flush=True)
        return AcknowledgeType.RELEASE
    return AcknowledgeType.ACCEPT


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="billing")
    arguments = parser.parse_args()
    work(arguments.bootstrap, arguments.topic, arguments.group)
