"""Latency at a steady pace: one producer sends 500 or 5,000 records a second to two share consumers.

In `paced-consume` they are two ordinary consumers of one group, which wait in `poll`.

The consumers are processes of their own. `paced` lets them wait in `poll`, which leaves the processors idle between
records. `paced-busy` lets them call `poll(0)` in a loop, so that on two processors every step of a server competes with
a client for its turn: workers that compute are the everyday case.

A latency runs from the call of `produce` to the return of the `poll` that has the record; both read the machine's
monotonic clock. Records that are sent until each consumer has got one are not counted.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack

from confluent_kafka import Consumer, Message, Producer, ShareConsumer

from benchmarks.consumer_process import ConsumerProcess
from benchmarks.endpoints import administration, client_settings
from benchmarks.scenarios import PARTITIONS, SCENARIO_TIMEOUT_S, Sizes, fresh_name, percentile
from support.clients.administration import create_topic, read_from_earliest

RECORDS_PER_S, MANY_PER_S = 500, 5_000
RECORD_BYTES = 200
CONSUMERS = 2
WARM_UP = "warm-up"
SHARE, ORDINARY = "share", "ordinary"


def paced(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    return _measure(bootstrap, sizes, "paced", poll_s=1.0)


def paced_beside_busy_clients(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    return _measure(bootstrap, sizes, "paced-busy", poll_s=0.0)


def many_beside_busy_clients(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    many = Sizes(paced_records=sizes.many_paced_records)
    return _measure(bootstrap, many, "paced-busy-5000", poll_s=0.0, records_per_s=MANY_PER_S)


def paced_to_ordinary_consumers(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    return _measure(bootstrap, sizes, "paced-consume", poll_s=1.0, kind=ORDINARY)


def _measure(
    bootstrap: str, sizes: Sizes, name: str, poll_s: float, records_per_s: int = RECORDS_PER_S, kind: str = SHARE
) -> dict[str, float]:
    """`{name} p50_ms`, `{name} p99_ms`, and the rate that the producer really kept."""
    topic, group = fresh_name("paced"), fresh_name("group")
    create_topic(administration(bootstrap), topic, PARTITIONS)
    if kind == SHARE:
        read_from_earliest(administration(bootstrap), group)
    producer = Producer({**client_settings(bootstrap), "linger.ms": 0, "acks": "all"})
    with ExitStack() as started:
        consumers = [started.enter_context(_Consumer(bootstrap, topic, group, poll_s, kind)) for _ in range(CONSUMERS)]
        deadline = time.monotonic() + SCENARIO_TIMEOUT_S
        while not all(consumer.is_warm.is_set() for consumer in consumers):
            _check(deadline, "not every consumer got a record", consumers)
            _send(producer, topic, WARM_UP)
            time.sleep(1 / RECORDS_PER_S)
        producer.flush(30)
        sent_per_s = _send_paced(producer, topic, sizes.paced_records, records_per_s)
        while sum(len(consumer.latencies_ms) for consumer in consumers) < sizes.paced_records:
            _check(deadline, f"not all of {sizes.paced_records} records came", consumers)
            time.sleep(0.02)
        latencies_ms = [latency for consumer in consumers for latency in consumer.latencies_ms]
    return {
        f"{name} p50_ms": percentile(latencies_ms, 0.5),
        f"{name} p99_ms": percentile(latencies_ms, 0.99),
        f"{name} sent records/s": sent_per_s,
    }


def _send_paced(producer: Producer, topic: str, records: int, records_per_s: int) -> float:
    """Sends each record at its time; the records per second that this came to."""
    started = time.monotonic()
    for index in range(records):
        pause_s = started + index / records_per_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        _send(producer, topic, str(time.monotonic_ns()))
    took_s = time.monotonic() - started
    if producer.flush(30):
        raise RuntimeError("not all records were confirmed within 30 s")
    return records / took_s


def _send(producer: Producer, topic: str, text: str) -> None:
    producer.produce(topic, text.encode().ljust(RECORD_BYTES))
    producer.poll(0)


def _check(deadline: float, problem: str, consumers: list[_Consumer]) -> None:
    if time.monotonic() > deadline:
        counts = [len(consumer.latencies_ms) for consumer in consumers]
        raise RuntimeError(f"{problem} within {SCENARIO_TIMEOUT_S} s; by consumer: {counts}")
    for consumer in consumers:
        if consumer.process.poll() is not None:
            raise RuntimeError(f"a consumer ended with {consumer.process.returncode}")


class _Consumer(ConsumerProcess):
    """One consumer process; it writes the latencies, a line each."""

    def __init__(self, bootstrap: str, topic: str, group: str, poll_s: float, kind: str) -> None:
        self.is_warm = threading.Event()
        self.latencies_ms: list[float] = []
        super().__init__("benchmarks.paced", bootstrap, topic, group, str(poll_s), kind)

    def heard(self, line: str) -> None:
        if line.strip() == WARM_UP:
            self.is_warm.set()
        else:
            self.latencies_ms.append(float(line))


def consume(settings: dict[str, str | int | float | bool], topic: str, group: str, poll_s: float, kind: str) -> None:
    """What a consumer process runs: writes a line for each record, until its standard input is closed."""
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    settings = {**settings, "group.id": group, "log_level": 3}
    consumer: ShareConsumer | Consumer
    if kind == SHARE:
        consumer = ShareConsumer(settings)
    else:
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while not ended.is_set():
        messages = _polled(consumer, poll_s)
        if not messages:
            continue
        now_ns = time.monotonic_ns()
        texts = [(message.value() or b"").decode().strip() for message in messages]
        lines = (text if text == WARM_UP else f"{(now_ns - int(text)) / 1e6:.3f}" for text in texts)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    consumer.close()


def _polled(consumer: ShareConsumer | Consumer, poll_s: float) -> list[Message]:
    if isinstance(consumer, ShareConsumer):
        return list(consumer.poll(poll_s))
    message = consumer.poll(poll_s)
    return [] if message is None else [message]


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    consume(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5])
