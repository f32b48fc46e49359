"""What is measured: each scenario takes a bootstrap address and returns one figure or more; higher is better.

Clients are confluent-kafka's, unmodified, one process; records are 1 KB. A figure is a rate per second, but for those
whose name ends in `_ms`, which are times. Scenarios at a steady pace are in `paced`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from benchmarks.endpoints import administration, client_settings
from support.clients.administration import create_topic, read_from_earliest

RECORD_BYTES = 1000
RECORD = b"x" * RECORD_BYTES
PARTITIONS = 3
SCENARIO_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many records each scenario moves."""

    throughput_records: int = 200_000
    latency_records: int = 300
    single_records: int = 2_000
    paced_records: int = 5_000

    @property
    def released_records(self) -> int:
        return self.throughput_records // 2

    @property
    def single_records_of_four(self) -> int:
        return self.single_records * 2

    @property
    def many_paced_records(self) -> int:
        return self.paced_records * 5


Scenario = Callable[[str, Sizes], dict[str, float]]
"""(bootstrap address, sizes) -> figure -> value."""


def percentile(samples: list[float], share: float) -> float:
    """The sample below which `share` (0..1) of the samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def fresh_name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def fill(bootstrap: str, topic: str, records: int, *, record_bytes: int = RECORD_BYTES) -> float:
    """Produces `records` to all partitions in turn; the seconds it took until all were confirmed."""
    failures: list[str] = []
    producer = Producer({**client_settings(bootstrap), "linger.ms": 5, "acks": "all", "enable.idempotence": True})

    def confirmed(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    record = b"x" * record_bytes
    started = time.perf_counter()
    for index in range(records):
        while True:
            try:
                producer.produce(topic, record, partition=index % PARTITIONS, on_delivery=confirmed)
                break
            except BufferError:
                producer.poll(0.01)
        if index % 64 == 0:
            producer.poll(0)
    remaining = producer.flush(SCENARIO_TIMEOUT_S)
    if failures or remaining:
        raise RuntimeError(f"{len(failures)} records failed, {remaining} are not confirmed: {failures[:1]}")
    return time.perf_counter() - started


def produce_throughput(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    """Records per second of one idempotent producer, acks=all."""
    topic = fresh_name("produce")
    create_topic(administration(bootstrap), topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS * 100)
    return {"produce records/s": sizes.throughput_records / fill(bootstrap, topic, sizes.throughput_records)}


def produce_latency(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    """Milliseconds from produce to confirmation, one record at a time."""
    topic = fresh_name("latency")
    create_topic(administration(bootstrap), topic, 1)
    producer = Producer({**client_settings(bootstrap), "linger.ms": 0, "acks": "all"})
    samples = []
    for _ in range(sizes.latency_records):
        started = time.perf_counter()
        producer.produce(topic, RECORD)
        producer.flush(30)
        samples.append((time.perf_counter() - started) * 1000)
    return {"produce p50_ms": percentile(samples, 0.5), "produce p99_ms": percentile(samples, 0.99)}


def share_throughput(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    """Records per second of one share consumer in implicit mode, from its first records to its last."""
    topic, group = fresh_name("share"), fresh_name("group")
    create_topic(administration(bootstrap), topic, PARTITIONS)
    read_from_earliest(administration(bootstrap), group)
    fill(bootstrap, topic, sizes.throughput_records)
    consumer = ShareConsumer({**client_settings(bootstrap), "group.id": group})
    consumer.subscribe([topic])
    received = first = 0
    started = None
    deadline = time.monotonic() + SCENARIO_TIMEOUT_S
    while received < sizes.throughput_records:
        messages = consumer.poll(1.0)
        if len(messages):
            received += len(messages)
            if started is None:
                started, first = time.perf_counter(), len(messages)
        elif time.monotonic() > deadline:
            raise RuntimeError(f"only {received} of {sizes.throughput_records} records came")
    assert started is not None
    rate = (received - first) / (time.perf_counter() - started)
    consumer.close()
    return {"share-consume records/s": rate}


def single_acknowledgements(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    """Records per second where each record is acknowledged by a commit_sync of its own."""
    topic, group = fresh_name("single"), fresh_name("group")
    create_topic(administration(bootstrap), topic, PARTITIONS)
    read_from_earliest(administration(bootstrap), group)
    fill(bootstrap, topic, sizes.single_records)
    consumer = ShareConsumer(
        {**client_settings(bootstrap), "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([topic])
    received = 0
    started = None
    deadline = time.monotonic() + SCENARIO_TIMEOUT_S
    while received < sizes.single_records:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {received} of {sizes.single_records} records came")
        messages = consumer.poll(1.0)
        if len(messages) and started is None:
            started = time.perf_counter()
        for message in messages:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            for error in consumer.commit_sync(30.0).values():
                if error is not None:
                    raise error
            received += 1
    assert started is not None
    rate = received / (time.perf_counter() - started)
    consumer.close()
    return {"commit_sync per record /s": rate}


def end_to_end_latency(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    """Milliseconds from produce to the record's arrival at a waiting share consumer."""
    topic, group = fresh_name("end-to-end"), fresh_name("group")
    create_topic(administration(bootstrap), topic, 1)
    read_from_earliest(administration(bootstrap), group)
    consumer = ShareConsumer({**client_settings(bootstrap), "group.id": group})
    consumer.subscribe([topic])
    producer = Producer({**client_settings(bootstrap), "linger.ms": 0})
    samples: list[float] = []
    deadline = time.monotonic() + SCENARIO_TIMEOUT_S
    while len(samples) <= sizes.latency_records:
        started = time.perf_counter()
        producer.produce(topic, RECORD)
        producer.poll(0)
        while not len(consumer.poll(1.0)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(samples)} of {sizes.latency_records} records came")
        samples.append((time.perf_counter() - started) * 1000)
        producer.flush(30)
    consumer.close()
    warm = samples[1:]  # the first one waits for the group to form
    return {
        "end to end p50_ms": percentile(warm, 0.5),
        "end to end p99_ms": percentile(warm, 0.99),
        "first record_ms": samples[0],
    }


SCENARIOS: dict[str, Scenario] = {
    "produce": produce_throughput,
    "produce-latency": produce_latency,
    "share": share_throughput,
    "single": single_acknowledgements,
    "end-to-end": end_to_end_latency,
}
