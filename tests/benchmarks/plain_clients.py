"""What ordinary consumers get: with `--attached` their records pass the proxy, beside those of a direct connection."""

from __future__ import annotations

import time

from confluent_kafka import Consumer

from benchmarks.endpoints import administration, client_settings
from benchmarks.scenarios import PARTITIONS, SCENARIO_TIMEOUT_S, Scenario, Sizes, fill, fresh_name
from support.clients.administration import create_topic


def consume_throughput(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    """Records per second of one consumer with a group, from its first records to its last."""
    topic = fresh_name("consume")
    create_topic(administration(bootstrap), topic, PARTITIONS)
    fill(bootstrap, topic, sizes.throughput_records)
    settings = {**client_settings(bootstrap), "group.id": fresh_name("group"), "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    received = first = 0
    started = None
    deadline = time.monotonic() + SCENARIO_TIMEOUT_S
    while received < sizes.throughput_records:
        messages = consumer.consume(10_000, 1.0)
        if messages:
            received += len(messages)
            if started is None:
                started, first = time.perf_counter(), len(messages)
        elif time.monotonic() > deadline:
            raise RuntimeError(f"only {received} of {sizes.throughput_records} records came")
    assert started is not None
    seconds = time.perf_counter() - started
    consumer.close()
    return {"consume records/s": (received - first) / seconds}


PLAIN_SCENARIOS: dict[str, Scenario] = {"consume": consume_throughput}
