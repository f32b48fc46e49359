"""Prints the dead letters of a topic: source, reason and value. An ordinary consumer; it commits no offsets."""

from __future__ import annotations

import argparse
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

TIMEOUT_S = 30.0


def text(value: bytes | None) -> str:
    """Any value as text: a dead letter may have bytes that are not UTF-8, which a worker failed at."""
    return (value or b"").decode(errors="backslashreplace")


def read(bootstrap: str, topic: str) -> None:
    """Prints what is in the topic now, one line a letter."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "dead-letter-reader",
            "enable.auto.commit": False,
            # Offsets do not tell where the last record is: markers of transactions have offsets, too.
            "enable.partition.eof": True,
        }
    )
    try:
        for partition in consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise TimeoutError(f"no record of {topic} within {TIMEOUT_S:.0f} s")
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    break
                if error is not None:
                    raise KafkaException(error)
                pairs = cast(list[tuple[str, bytes | None]], message.headers())
                headers = {name: text(value) for name, value in pairs}
                source = ":".join(headers[f"__dlq.errors.{part}"] for part in ("topic", "partition", "offset"))
                print(f"{source}\t{headers['__dlq.errors.message']}\t{text(message.value())}", flush=True)
    finally:
        consumer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="dlq.payments")
    arguments = parser.parse_args()
    read(arguments.bootstrap, arguments.topic)
