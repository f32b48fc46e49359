"""What a record costs as a cluster grows: `make bench-scale`.

Each case drains a filled topic with share consumers, and tells the processor time of the servers for each delivered and
acknowledged record, from the first to the last, and the rate. Cases grow one thing and leave the others as they are:
`partitions` of the topic, `groups` that drain the same topic at once, records in the `log` before those that are read,
and `members` of a group. Records have 100 bytes and lie in batches of 100, so a case has the same batches at each size.
With `--tree NAME=PATH` the kshare of other checkouts runs the same cases in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer, ShareConsumer
from rich.console import Console
from rich.table import Table

from benchmarks.processor_time import processor_ms, resident_mb
from benchmarks.scenarios import fresh_name
from support.clients.administration import create_topic, read_from_earliest
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.environment.stolen_time import machine_ticks, stolen_share

RECORD = b"x" * 100
BATCH_RECORDS = 100
WARM_UP = b"warm-up"
TIMEOUT_S = 170.0
POLL_S = 0.5
CLOSED_AT_ONCE = 64
SIZES = {
    "partitions": (1, 20, 200, 2_000),
    "groups": (1, 4, 16, 100),
    "log": (10_000, 100_000, 1_000_000),
    "members": (1, 20, 100, 500),
}
GROUPS_PARTITIONS = LOG_PARTITIONS = 3
MEMBERS_PARTITIONS = 100
SETTINGS = {"group.share.max.size": "1000"}
"""Kafka's default allows 200 members."""


@dataclass(slots=True)
class Measured:
    """`cpu_us` is the servers' for each record in microseconds; `joined_s` how long until each consumer had records."""

    cpu_us: float
    rate: float
    joined_s: float


@dataclass(slots=True)
class Samples:
    cpu_us: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    joined_s: list[float] = field(default_factory=list)

    def add(self, measured: Measured) -> None:
        self.cpu_us.append(measured.cpu_us)
        self.rates.append(measured.rate)
        self.joined_s.append(measured.joined_s)


def fill(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    """Produces batches of BATCH_RECORDS to the partitions in turn; returns when all are confirmed."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 1_000,
            "batch.num.messages": BATCH_RECORDS,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
        }
    )

    def confirmed(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    for index in range(records):
        while True:
            try:
                producer.produce(topic, RECORD, partition=index // BATCH_RECORDS % partitions, on_delivery=confirmed)
                break
            except BufferError:
                producer.poll(0.01)
    remaining = producer.flush(TIMEOUT_S)
    if failures or remaining:
        raise RuntimeError(f"{len(failures)} records failed, {remaining} are not confirmed: {failures[:1]}")


class Drainer:
    """Share consumers of one process that are polled in turn by one thread; `received` counts records."""

    def __init__(self, bootstrap: str, topic: str, groups: Sequence[str]) -> None:
        self.received = 0
        self.have_records = 0
        """How many of the consumers have had a record."""
        self.failure: BaseException | None = None
        self._has_ended = threading.Event()
        self._consumers = [ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group}) for group in groups]
        for consumer in self._consumers:
            consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            waits_s = POLL_S if len(self._consumers) == 1 else 0.002
            ready: set[int] = set()
            while not self._has_ended.is_set():
                for index, consumer in enumerate(self._consumers):
                    messages = consumer.poll(waits_s)
                    if messages:
                        self.received += sum(message.value() != WARM_UP for message in messages)
                        ready.add(index)
                        self.have_records = len(ready)
        except BaseException as failure:
            self.failure = failure

    def close(self) -> None:
        self._has_ended.set()
        self._thread.join()
        with ThreadPoolExecutor(CLOSED_AT_ONCE) as pool:  # each waits for its last answers
            for closed in [pool.submit(consumer.close) for consumer in self._consumers]:
                closed.result()


@contextmanager
def drainers(bootstrap: str, topic: str, groups: Sequence[str], threads: int) -> Iterator[list[Drainer]]:
    """The consumers of `groups`, one for each entry, on as many threads."""
    with ExitStack() as stack:
        found = []
        for number in range(threads):
            drainer = Drainer(bootstrap, topic, groups[number::threads])
            stack.callback(drainer.close)
            found.append(drainer)
        yield found


def wait_until(is_done: Callable[[], bool], running: Sequence[Drainer], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done():
        for drainer in running:
            if drainer.failure is not None:
                raise drainer.failure
        if time.monotonic() > deadline:
            raise RuntimeError(what())
        time.sleep(0.002)


def drain(system: KshareCluster, topic: str, groups: Sequence[str], records: int, threads: int) -> Measured:
    """Counts from the moment when a fifth has come, so that the forming of the groups is not part of it."""
    began = time.monotonic()
    with drainers(system.bootstrap, topic, groups, threads) as running:

        def received() -> int:
            return sum(drainer.received for drainer in running)

        def told() -> str:
            return f"only {received()} of {records} records came"

        wait_until(lambda: received() >= records // 5, running, told)
        joined_s = time.monotonic() - began
        first, started, used = received(), time.perf_counter(), processor_ms(system.pid)
        wait_until(lambda: received() >= records, running, told)
        seconds, spent_ms = time.perf_counter() - started, processor_ms(system.pid) - used
        count = received() - first
        return Measured(spent_ms * 1000 / count, count / seconds, joined_s)


def of_partitions(system: KshareCluster, size: int, records: int) -> Measured:
    topic, group = fresh_name("partitions"), fresh_name("group")
    create_topic(system.bootstrap, topic, size)
    read_from_earliest(system.bootstrap, group)
    fill(system.bootstrap, topic, size, records)
    return drain(system, topic, [group], records, 1)


def of_groups(system: KshareCluster, size: int, records: int) -> Measured:
    topic, groups = fresh_name("groups"), [fresh_name("group") for _ in range(size)]
    each = max(records // size, min(records, 10_000))
    create_topic(system.bootstrap, topic, GROUPS_PARTITIONS)
    for group in groups:
        read_from_earliest(system.bootstrap, group)
    fill(system.bootstrap, topic, GROUPS_PARTITIONS, each)
    return drain(system, topic, groups, each * size, min(size, 4))


def of_log(system: KshareCluster, size: int, records: int) -> Measured:
    """The group starts at the end of `size` records, and drains those that come after it."""
    topic, group = fresh_name("log"), fresh_name("group")
    create_topic(system.bootstrap, topic, LOG_PARTITIONS)
    fill(system.bootstrap, topic, LOG_PARTITIONS, size)
    producer = Producer({"bootstrap.servers": system.bootstrap, "linger.ms": 0})
    with drainers(system.bootstrap, topic, [group], 1) as running:
        began = time.monotonic()
        while time.monotonic() - began < 3 or not running[0].have_records:  # all share-partitions start meanwhile
            for partition in range(LOG_PARTITIONS):
                producer.produce(topic, WARM_UP, partition=partition)
            producer.flush(TIMEOUT_S)
            time.sleep(0.2)
    fill(system.bootstrap, topic, LOG_PARTITIONS, records)
    return drain(system, topic, [group], records, 1)


def of_members(system: KshareCluster, size: int, records: int) -> Measured:
    topic, group = fresh_name("members"), fresh_name("group")
    create_topic(system.bootstrap, topic, MEMBERS_PARTITIONS)
    read_from_earliest(system.bootstrap, group)
    producer = Producer({"bootstrap.servers": system.bootstrap, "linger.ms": 5})
    with drainers(system.bootstrap, topic, [group] * size, min(size, 4)) as running:
        began = time.monotonic()
        deadline = began + TIMEOUT_S
        while sum(drainer.have_records for drainer in running) < size:
            if failures := [drainer.failure for drainer in running if drainer.failure is not None]:
                raise failures[0]
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {sum(d.have_records for d in running)} of {size} members had a record")
            for partition in range(MEMBERS_PARTITIONS):
                producer.produce(topic, WARM_UP, partition=partition)
            producer.flush(TIMEOUT_S)
            time.sleep(0.5)
        joined_s = time.monotonic() - began
        before, started, used = sum(d.received for d in running), time.perf_counter(), processor_ms(system.pid)
        fill(system.bootstrap, topic, MEMBERS_PARTITIONS, records)
        wait_until(
            lambda: sum(d.received for d in running) - before >= records,
            running,
            lambda: f"only {sum(d.received for d in running) - before} of {records} records came",
        )
        seconds, spent_ms = time.perf_counter() - started, processor_ms(system.pid) - used
        return Measured(spent_ms * 1000 / records, records / seconds, joined_s)


CASES: dict[str, Callable[[KshareCluster, int, int], Measured]] = {
    "partitions": of_partitions,
    "groups": of_groups,
    "log": of_log,
    "members": of_members,
}


def _systems(trees: dict[str, Path], layouts: Sequence[str], folder: Path) -> dict[str, KshareCluster]:
    return {
        f"{name} {layout}".strip(): KshareCluster(
            folder / f"{number}-{layout}",
            SETTINGS,
            single_process=layout == "1",
            command=command,
            engine=TestEngine.EMBEDDED,
        )
        for number, (name, command) in enumerate(trees.items())
        for layout in layouts
    }


def report(found: dict[tuple[str, int, str], Samples], console: Console) -> None:
    table = Table("case", "size", "system", "CPU us/record", "quartiles", "of smallest size", "records/s", "started s")
    for (case, size, system), samples in found.items():
        cpu_us = statistics.median(samples.cpu_us)
        smallest = min(other for other_case, other, _ in found if other_case == case)
        base = statistics.median(found[case, smallest, system].cpu_us)
        quartiles = statistics.quantiles(samples.cpu_us) if len(samples.cpu_us) > 1 else samples.cpu_us * 3
        table.add_row(
            case,
            f"{size:,}",
            system,
            f"{cpu_us:.1f}",
            f"{quartiles[0]:.1f} to {quartiles[2]:.1f}",
            f"x{cpu_us / base:.2f}",
            f"{statistics.median(samples.rates):,.0f}",
            f"{statistics.median(samples.joined_s):.1f}",
        )
    console.print(table)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__)
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--size", action="append", type=int, help="instead of the case's own sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--layout", action="append", choices=["1", "4"], help="processes; default both")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=PATH", help="another checkout, in turn")
    given = parser.parse_args(arguments)
    trees = {"here": COMMAND}
    for tree in given.tree:
        name, _, path = tree.partition("=")
        trees[name] = Path(path) / ".venv/bin/kshare"
    console = Console(width=140)
    found: dict[tuple[str, int, str], Samples] = {}
    ticks = machine_ticks()
    with tempfile.TemporaryDirectory(prefix="kshare-scale-") as folder, ExitStack() as running:
        systems = _systems(trees, given.layout or ["4", "1"], Path(folder))
        for system in systems.values():
            running.enter_context(system)
            of_partitions(system, 3, given.records)  # warm
        for case in given.case or CASES:
            for number in range(given.rounds):
                for size in given.size or SIZES[case]:
                    for name in list(systems)[:: -1 if number % 2 else 1]:
                        measured = CASES[case](systems[name], size, given.records)
                        found.setdefault((case, size, name), Samples()).add(measured)
                        console.print(
                            f"{case} {size:,} {name}: {measured.cpu_us:.1f} us/record, {measured.rate:,.0f}/s, "
                            f"started after {measured.joined_s:.1f} s, {resident_mb(systems[name].pid):.0f} MB"
                        )
        report(found, console)
        console.print(f"neighbours of the machine took {stolen_share(ticks, machine_ticks()):.1%} of its processors")


if __name__ == "__main__":
    main(sys.argv[1:])
