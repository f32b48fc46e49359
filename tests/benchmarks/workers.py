"""Four consumers of one share group that work a filled topic off, each a process of its own.

`small`: 100 bytes, acknowledged implicitly. `released`: 200 bytes, explicit, and every fifth record is released when it
is delivered for the first time. `single-4`: each record is acknowledged by a commit_sync of its own.

The consumers are members and have had a record before the topic is filled, and do not poll until it is. A rate runs
from the moment when they are told to poll to the last record that one of them is done with.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack

from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer

from benchmarks.consumer_process import ConsumerProcess
from benchmarks.endpoints import administration, client_settings
from benchmarks.scenarios import PARTITIONS, SCENARIO_TIMEOUT_S, Sizes, fill, fresh_name
from support.clients.administration import create_topic, read_from_earliest

CONSUMERS = 4
WARM_UP, GO = b"warm-up", "go"
RELEASED_EVERY = 5
IMPLICIT, ACCEPTING, RELEASING, SINGLE = "implicit", "accepting", "releasing", "single"


def small_records(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    rate = _measure(bootstrap, IMPLICIT, record_bytes=100, records=sizes.throughput_records)
    return {"100 B, four consumers records/s": rate}


def released_records(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    rate = _measure(bootstrap, RELEASING, record_bytes=200, records=sizes.released_records)
    return {"20 % released, four consumers records/s": rate}


def single_acknowledgements_of_four(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    rate = _measure(bootstrap, SINGLE, record_bytes=200, records=sizes.single_records_of_four)
    return {"commit_sync per record, four consumers /s": rate}


def _measure(bootstrap: str, mode: str, *, record_bytes: int, records: int) -> float:
    topic, group = fresh_name("workers"), fresh_name("group")
    create_topic(administration(bootstrap), topic, PARTITIONS)
    read_from_earliest(administration(bootstrap), group)
    producer = Producer({**client_settings(bootstrap), "linger.ms": 0, "acks": "all"})
    with ExitStack() as started:
        workers = [started.enter_context(_Worker(bootstrap, topic, group, mode)) for _ in range(CONSUMERS)]
        deadline = time.monotonic() + SCENARIO_TIMEOUT_S
        while not all(worker.is_warm for worker in workers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not every consumer got a record within {SCENARIO_TIMEOUT_S} s")
            producer.produce(topic, WARM_UP)
            producer.flush(30)
        fill(bootstrap, topic, records, record_bytes=record_bytes)
        started_ns = time.monotonic_ns()
        for worker in workers:
            worker.go()
        while sum(worker.done for worker in workers) < records:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {[worker.done for worker in workers]} of {records} records came")
            time.sleep(0.02)
        return records / (max(worker.last_ns for worker in workers) - started_ns) * 1e9


class _Worker(ConsumerProcess):
    """One consumer process. Its lines are `warm`, and `DONE LAST_NS` after each poll that returned records."""

    def __init__(self, bootstrap: str, topic: str, group: str, mode: str) -> None:
        self.is_warm = False
        self.done, self.last_ns = 0, 0
        """Records done, and when the last one was, on the machine's monotonic clock."""
        super().__init__("benchmarks.workers", bootstrap, topic, group, mode)

    def heard(self, line: str) -> None:
        self.is_warm = True
        if line[0].isdigit():
            self.done, self.last_ns = map(int, line.split())

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{GO}\n")
        self.process.stdin.flush()


def _finish(consumer: ShareConsumer, messages: list[Message], mode: str) -> int:
    """Acknowledges what a poll returned as the mode says; how many records are done."""
    if mode == IMPLICIT:
        return len(messages)
    done = 0
    for message in messages:
        offset = message.offset()
        assert offset is not None
        is_released = mode == RELEASING and message.delivery_count() == 1 and offset % RELEASED_EVERY == 0
        consumer.acknowledge(message, AcknowledgeType.RELEASE if is_released else AcknowledgeType.ACCEPT)
        if mode == SINGLE:
            _commit(consumer)
        done += not is_released
    return done


def _commit(consumer: ShareConsumer) -> None:
    for error in consumer.commit_sync(30.0).values():
        if error is not None:
            raise error


def work(settings: dict[str, str | int | float | bool], topic: str, group: str, mode: str) -> None:
    """What a consumer process runs, until its standard input is closed."""
    acknowledgement = "implicit" if mode == IMPLICIT else "explicit"
    consumer = ShareConsumer(
        {**settings, "group.id": group, "share.acknowledgement.mode": acknowledgement, "log_level": 3}
    )
    consumer.subscribe([topic])
    messages: list[Message] = []
    while not messages:
        messages = list(consumer.poll(0.2))
    _finish(consumer, messages, IMPLICIT if mode == IMPLICIT else ACCEPTING)
    print("warm", flush=True)
    assert sys.stdin.readline().strip() == GO
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    done = 0
    while not ended.is_set():
        messages = list(consumer.poll(0.2))
        records = [message for message in messages if message.value() != WARM_UP]
        late = [message for message in messages if message.value() == WARM_UP]
        _finish(consumer, late, IMPLICIT if mode == IMPLICIT else ACCEPTING)
        done += _finish(consumer, records, mode)
        if records:
            print(done, time.monotonic_ns(), flush=True)
    consumer.close()


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    work(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
