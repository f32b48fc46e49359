"""What a record costs while one thing grows: groups on a topic, partitions, records in the log, idle members.

Each scenario runs all its sizes on one system, in random order, and gives each figure once for each size
(`flatness.at_size`). Costs are those of the counted part alone, in which consumers are members already and have had a
record, and the records lie in the log. Records have 100 bytes and lie in batches of 100 at every size: what a batch
costs does not depend on how a producer fills batches for one partition or for 200.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition

from benchmarks.endpoints import administration, client_settings
from benchmarks.scaling.flatness import at_size
from benchmarks.scaling.idle_members import idle_members
from benchmarks.scenarios import PARTITIONS, SCENARIO_TIMEOUT_S, fresh_name
from benchmarks.usage import CPU, Meter, costs
from support.clients.administration import create_topic, delete_topic

BATCH_RECORDS = 100
RECORD = b"x" * 100
WARM_UP = b"warm-up"
DELIVERIES = 160_000
"""Records that all groups of a size get together: 1 group all of them, 16 groups a sixteenth each."""
APPENDED = 50_000
PASSES = 5
"""How often an ordinary consumer reads the topic: once takes a server a few milliseconds only."""
IDLE_S = 3.0
TARGETS = {f"scaling-{grown} {CPU}": 1.3 for grown in ("groups", "partitions", "log", "log-produce")}
"""Flatness of the servers' processor time that shall be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSizes:
    groups: Sequence[int] = (1, 4, 16)
    partitions: Sequence[int] = (1, 20, 200)
    log_records: Sequence[int] = (10_000, 100_000, 1_000_000)
    idle_members: Sequence[int] = (0, 500)


Figures = dict[str, float]
ScalingScenario = Callable[[str, ScalingSizes, Meter], Figures]
"""(bootstrap address, sizes, usage of the servers) -> figure -> value."""


def groups_on_a_topic(bootstrap: str, sizes: ScalingSizes, meter: Meter) -> Figures:
    """Each share group drains the whole topic, all of them at once, with one consumer."""

    def measure(groups: int) -> Figures:
        with _topic(bootstrap, PARTITIONS) as topic, _share_consumers(bootstrap, topic, groups) as consumers:
            records = DELIVERIES // groups
            _append(bootstrap, topic, PARTITIONS, records)
            return _drain("scaling-groups", consumers, records, meter)

    return _at_all_sizes(sizes.groups, measure)


def partitions_of_a_topic(bootstrap: str, sizes: ScalingSizes, meter: Meter) -> Figures:
    """One share consumer drains a topic of so many partitions."""

    def measure(partitions: int) -> Figures:
        with _topic(bootstrap, partitions) as topic, _share_consumers(bootstrap, topic, 1) as consumers:
            _append(bootstrap, topic, partitions, DELIVERIES)
            return _drain("scaling-partitions", consumers, DELIVERIES, meter)

    return _at_all_sizes(sizes.partitions, measure)


def records_in_the_log(bootstrap: str, sizes: ScalingSizes, meter: Meter) -> Figures:
    """Records are appended to a topic that has so many, and drained by a share group that began behind those."""

    def measure(stored: int) -> Figures:
        with _topic(bootstrap, PARTITIONS) as topic:
            _append(bootstrap, topic, PARTITIONS, stored)
            with _share_consumers(bootstrap, topic, 1) as consumers:
                before = meter()
                seconds = _append(bootstrap, topic, PARTITIONS, APPENDED)
                produced = costs("scaling-log-produce", before, meter(), APPENDED)
                drained = _drain("scaling-log", consumers, APPENDED, meter)
            return {"scaling-log-produce records/s": APPENDED / seconds, **produced, **drained}

    return _at_all_sizes(sizes.log_records, measure)


def ordinary_consumer(bootstrap: str, sizes: ScalingSizes, meter: Meter) -> Figures:
    """An ordinary consumer reads a topic of so many partitions from its beginning, several times."""

    def measure(partitions: int) -> Figures:
        with _topic(bootstrap, partitions) as topic:
            _append(bootstrap, topic, partitions, DELIVERIES)
            # The fetch that waits at the end of the log would hold up the next pass.
            settings = {"group.id": fresh_name("group"), "enable.auto.commit": False, "fetch.wait.max.ms": 10}
            consumer = Consumer({**client_settings(bootstrap), **settings})
            _read(consumer, topic, partitions)  # connected, and the topic's leaders known
            before, started = meter(), time.perf_counter()
            for _ in range(PASSES):
                _read(consumer, topic, partitions)
            seconds, after = time.perf_counter() - started, meter()
            consumer.close()
        records = DELIVERIES * PASSES
        return {"scaling-consume records/s": records / seconds, **costs("scaling-consume", before, after, records)}

    return _at_all_sizes(sizes.partitions, measure)


def beside_idle_members(bootstrap: str, sizes: ScalingSizes, meter: Meter) -> Figures:
    """A drain as of `scaling-partitions`, beside so many members of other share groups whose topic stays empty.

    What the members cost without the drain is told as well, as the servers' processor time in each second.
    """

    def measure(members: int) -> Figures:
        with (
            _topic(bootstrap, PARTITIONS) as idle_topic,
            _topic(bootstrap, PARTITIONS) as topic,
            idle_members(bootstrap, idle_topic, members),
        ):
            before, started = meter(), time.perf_counter()
            time.sleep(IDLE_S)
            idle_ms = (meter().processor_ms - before.processor_ms) / (time.perf_counter() - started)
            with _share_consumers(bootstrap, topic, 1) as consumers:
                _append(bootstrap, topic, PARTITIONS, DELIVERIES)
                drained = _drain("scaling-members", consumers, DELIVERIES, meter)
        return {"scaling-members without the drain servers' CPU, ms per second": idle_ms, **drained}

    return _at_all_sizes(sizes.idle_members, measure)


SCALING_SCENARIOS: dict[str, ScalingScenario] = {
    "scaling-groups": groups_on_a_topic,
    "scaling-partitions": partitions_of_a_topic,
    "scaling-log": records_in_the_log,
    "scaling-consume": ordinary_consumer,
    "scaling-members": beside_idle_members,
}


def _at_all_sizes(sizes: Sequence[int], measure: Callable[[int], Figures]) -> Figures:
    """The figures of each size; a random order, so that no size always follows the same other."""
    by_size = {size: measure(size) for size in random.sample(sizes, len(sizes))}
    return {at_size(figure, size): by_size[size][figure] for figure in by_size[sizes[0]] for size in sizes}


@contextmanager
def _topic(bootstrap: str, partitions: int) -> Iterator[str]:
    """A topic for one size: what one size leaves behind shall not make the next one dearer."""
    name = fresh_name("scaling")
    create_topic(administration(bootstrap), name, partitions)
    yield name
    delete_topic(administration(bootstrap), name)


def _append(bootstrap: str, topic: str, partitions: int, records: int) -> float:
    """Appends full batches to the partitions in turn; the seconds until all were confirmed."""
    if records % BATCH_RECORDS:
        raise ValueError(f"{records} records are no multiple of {BATCH_RECORDS}")
    failures: list[str] = []
    producer = Producer(
        {
            **client_settings(bootstrap),
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.num.messages": BATCH_RECORDS,
        }
    )

    def confirmed(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    started = time.perf_counter()
    for number in range(records // BATCH_RECORDS):
        left = BATCH_RECORDS
        while left:
            batch = [{"value": RECORD} for _ in range(left)]
            left -= producer.produce_batch(topic, batch, partition=number % partitions, on_delivery=confirmed)
            producer.poll(0.01 if left else 0)
    remaining = producer.flush(SCENARIO_TIMEOUT_S)
    if failures or remaining:
        raise RuntimeError(f"{len(failures)} records failed, {remaining} are not confirmed: {failures[:1]}")
    return time.perf_counter() - started


@contextmanager
def _share_consumers(bootstrap: str, topic: str, groups: int) -> Iterator[list[ShareConsumer]]:
    """One consumer in each of so many share groups, which begin behind what the topic has and have had a record."""
    consumers = [
        ShareConsumer({**client_settings(bootstrap), "group.id": fresh_name("group"), "log_level": 3})
        for _ in range(groups)
    ]
    producer = Producer({**client_settings(bootstrap), "linger.ms": 0, "acks": "all"})
    with ExitStack() as opened:
        for consumer in consumers:
            opened.callback(consumer.close)
            consumer.subscribe([topic])
        cold = list(consumers)
        deadline = time.monotonic() + SCENARIO_TIMEOUT_S
        while cold:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(cold)} of {groups} share groups got no record within {SCENARIO_TIMEOUT_S} s")
            producer.produce(topic, WARM_UP)
            producer.flush(30)
            cold = [consumer for consumer in cold if not len(consumer.poll(0.05))]
        yield consumers


def _drain(name: str, consumers: Sequence[ShareConsumer], records: int, meter: Meter) -> Figures:
    """The rate and the costs while each consumer gets and acknowledges `records`, all of them at once."""
    deadline = time.monotonic() + SCENARIO_TIMEOUT_S

    def drain(consumer: ShareConsumer) -> None:
        received = 0
        while received < records:
            received += sum(message.value() != WARM_UP for message in consumer.poll(0.5))
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {received} of {records} records came to a share group")
        for error in consumer.commit_sync(30.0).values():
            if error is not None:
                raise error

    before, started = meter(), time.perf_counter()
    with ThreadPoolExecutor(len(consumers)) as threads:
        list(threads.map(drain, consumers))
    seconds, after = time.perf_counter() - started, meter()
    delivered = records * len(consumers)
    return {f"{name} records/s": delivered / seconds, **costs(name, before, after, delivered)}


def _read(consumer: Consumer, topic: str, partitions: int) -> None:
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    received = 0
    deadline = time.monotonic() + SCENARIO_TIMEOUT_S
    while received < DELIVERIES:
        received += len(consumer.consume(min(5_000, DELIVERIES - received), 1.0))
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {received} of {DELIVERIES} records came")
