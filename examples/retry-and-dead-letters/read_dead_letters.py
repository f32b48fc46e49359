"""Prints the dead letters of a topic: source, reason and value. An ordinary consumer; it commits no offsets."""

from __future__ import annotations

import argparse
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

TIMEOUT_S = 30.0


def read(bootstrap: str, topic: str) -> None:
    """Prints what is in the topic now, one line a letter."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "dead-letter-reader", "enable.auto.commit": False})
    try:
        for partition in consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions:
            position = TopicPartition(topic, partition, OFFSET_BEGINNING)
            _, end_offset = consumer.get_watermark_offsets(position, timeout=TIMEOUT_S, cached=False)
            consumer.assign([position])
            next_offset = 0
            while next_offset < end_offset:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise TimeoutError(f"no record of {topic} within {TIMEOUT_S:.0f} s")
                if message.error() is not None:
                    raise KafkaException(message.error())
                next_offset = (message.offset() or 0) + 1
                pairs = cast(list[tuple[str, bytes]], message.headers())
                headers = {name: value.decode() for name, value in pairs}
                source = ":".join(headers[f"__dlq.errors.{part}"] for part in ("topic", "partition", "offset"))
                print(f"{source}\t{headers['__dlq.errors.message']}\t{(message.value() or b'').decode()}", flush=True)
    finally:
        consumer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="dlq.payments")
    arguments = parser.parse_args()
    read(arguments.bootstrap, arguments.topic)
