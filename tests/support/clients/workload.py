"""Load for end-to-end tests: numbered records, a pool of real share consumers in processes, and an account of both.

Every record's value starts with its number. Workers report each polled batch: which numbers came, what was said of
them, and which partitions' acknowledgements the cluster confirmed, with times of the machine's monotonic clock, which
all processes share. `Account` puts the reports together and says what was lost or accepted twice.

An acceptance without an answer may have taken effect or not: only the group tells. So a suite ends with
`WorkerPool.run_until_drained`, and `Account.finish` then checks every record; without it, `finish` fails.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer

from kshare.commands.groups.group_requests import read_share_offsets
from kshare.failure import CommandFailed

RECORD_BYTES = 1000
POLL_S = 0.5
DELIVERY_COUNT_LIMIT = 5
"""share.delivery.count.limit of groups that set none."""
DRAIN_POLL_S = 0.5
UNKNOWN_OFFSET = -1
_CONTEXT = multiprocessing.get_context("spawn")


def produce_numbered(bootstrap: str, topic: str, numbers: range, partitions: int, *, timeout_s: float = 120.0) -> None:
    """Produces one record for each number; returns when all are confirmed, AssertionError otherwise."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "enable.idempotence": True,
            "message.timeout.ms": int(timeout_s * 1000),
        }
    )

    def confirmed(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    for number in numbers:
        value = f"{number:012d}".encode().ljust(RECORD_BYTES, b".")
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions, on_delivery=confirmed)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 64 == 0:
            producer.poll(0)
    remaining = producer.flush(timeout_s)
    assert not failures and not remaining, f"{len(failures)} failed, {remaining} unconfirmed: {failures[:3]}"


@dataclass(frozen=True, slots=True)
class PolledBatch:
    """One poll of one worker, and what became of it."""

    worker: int
    polled_at: float
    """When the poll began."""
    numbers: list[int]
    partitions: list[int]
    delivery_counts: list[int]
    accepted: list[bool]
    confirmed_at: float
    confirmed_partitions: frozenset[int]
    came_at: float = 0.0
    """When the poll gave its records."""
    offsets: list[int] = field(default_factory=list)
    """Of the records; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """What one worker does; `release_every` n: a first delivery whose number divides by n is released."""

    bootstrap: str
    topic: str
    group: str
    index: int
    release_every: int = 0
    settings: dict[str, str] = field(default_factory=dict)


def _work(task: WorkerTask, reports: Any, stop: Any) -> None:
    consumer = ShareConsumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
            **task.settings,
        }
    )
    consumer.subscribe([task.topic])
    while not stop.is_set():
        polled_at = time.monotonic()
        try:
            messages = [message for message in consumer.poll(POLL_S) if message.error() is None]
        except KafkaException:
            continue
        if messages:
            reports.put(_acknowledge(consumer, task, messages, polled_at))
    with contextlib.suppress(KafkaException):
        consumer.close()


def _acknowledge(consumer: Any, task: WorkerTask, messages: list[Any], polled_at: float) -> PolledBatch:
    came_at = time.monotonic()
    numbers, accepted = [], []
    for message in messages:
        number = int(message.value()[:12])
        release = bool(task.release_every and number % task.release_every == 0 and message.delivery_count() == 1)
        numbers.append(number)
        accepted.append(not release)
        consumer.acknowledge(message, AcknowledgeType.RELEASE if release else AcknowledgeType.ACCEPT)
    confirmed: frozenset[int] = frozenset()
    with contextlib.suppress(KafkaException):
        results = consumer.commit_sync(60.0)
        confirmed = frozenset(partition.partition for partition, error in results.items() if error is None)
    return PolledBatch(
        worker=task.index,
        polled_at=polled_at,
        numbers=numbers,
        partitions=[message.partition() for message in messages],
        delivery_counts=[message.delivery_count() for message in messages],
        accepted=accepted,
        confirmed_at=time.monotonic(),
        confirmed_partitions=confirmed,
        came_at=came_at,
        offsets=[message.offset() for message in messages],
    )


class Account:
    """What is known of every record; built from reports in the order in which they come."""

    def __init__(self) -> None:
        self.accepted_at: dict[int, float] = {}
        self.unknown: dict[int, None] = {}
        """Records whose newest delivery was accepted, and nobody knows whether the cluster took it (an error, a lost
        answer): it may have, then they never come again."""
        self.violations: list[str] = []
        self.is_drained = False
        """Whether the group itself said that it is done with every record of the topic."""
        self._accepted_delivery: dict[int, int] = {}
        """The delivery count with which a record was accepted."""
        self.may_be_stored_twice = False
        """Whether a producer may write a record to the log twice; then each of its offsets is a record of its own."""
        self._accepted_offset: dict[int, int] = {}
        self._stored_twice: dict[int, set[int]] = {}
        """All offsets of records that came at several."""
        self._others_accepted: set[tuple[int, int]] = set()
        self.deliveries = 0
        self.redeliveries = 0
        self.released = 0
        self.highest_delivery_count = 0
        self.by_worker: dict[int, int] = {}
        self._deliveries: dict[int, list[tuple[float, int, int]]] = {}

    def add(self, batch: PolledBatch) -> None:
        self.deliveries += len(batch.numbers)
        self.by_worker[batch.worker] = self.by_worker.get(batch.worker, 0) + len(batch.numbers)
        offsets = batch.offsets or [UNKNOWN_OFFSET] * len(batch.numbers)
        for number, partition, count, accepted, offset in zip(
            batch.numbers, batch.partitions, batch.delivery_counts, batch.accepted, offsets, strict=True
        ):
            if self._accepted_offset.get(number, offset) != offset:
                self._stored_twice.setdefault(number, {self._accepted_offset[number]}).add(offset)
                if self.may_be_stored_twice:
                    self._add_other(number, offset, is_accepted=accepted and partition in batch.confirmed_partitions)
                    continue
            self.redeliveries += count > 1
            self.highest_delivery_count = max(self.highest_delivery_count, count)
            self._deliveries.setdefault(number, []).append((batch.polled_at, batch.worker, count))
            self.unknown.pop(number, None)
            if partition not in batch.confirmed_partitions:
                if accepted and number not in self.accepted_at:
                    self.unknown[number] = None
                continue
            if not accepted:
                self.released += 1
                continue
            if number in self.accepted_at:
                self.violations.append(f"record {number} was accepted twice, both confirmed")
            self.unknown.pop(number, None)
            self.accepted_at.setdefault(number, batch.confirmed_at)
            self._accepted_offset.setdefault(number, offset)
            self._accepted_delivery.setdefault(number, count)

    def _add_other(self, number: int, offset: int, *, is_accepted: bool) -> None:
        """A delivery of a record at another offset than the one at which it was accepted first."""
        if is_accepted and (number, offset) in self._others_accepted:
            self.violations.append(f"record {number} at offset {offset} was accepted twice, both confirmed")
        if is_accepted:
            self._others_accepted.add((number, offset))

    @property
    def accepted(self) -> dict[int, None]:
        """Records whose newest delivery was accepted, confirmed or not: how far the work is, not that it is done."""
        return dict.fromkeys([*self.accepted_at, *self.unknown])

    def finish(self, wanted: Collection[int]) -> list[str]:
        """Everything that was wrong: with each record of `wanted`, and with deliveries after a confirmed acceptance.

        The group was waited for until it was drained, so that an acceptance without an answer took effect, unless the
        record was archived because it had been delivered as often as the limit allows.

        A client whose session was lost may still show what it had fetched before; that is an earlier delivery than the
        one that was accepted, and no new one.
        """
        late = [
            f"record {number} came to worker {worker} as delivery {count} although delivery "
            f"{self._accepted_delivery[number]} of it was accepted, and that confirmed, before"
            for number, deliveries in self._deliveries.items()
            for polled_at, worker, count in deliveries
            if number in self.accepted_at and polled_at > self.accepted_at[number]
            if count >= self._accepted_delivery[number]
        ]
        return [*self.violations, *self._twice(), *self._records(wanted), *late]

    def _twice(self) -> list[str]:
        if self.may_be_stored_twice:
            return []
        return [
            f"record {number} is in the log at offsets {sorted(offsets)}"
            for number, offsets in self._stored_twice.items()
        ]

    def _records(self, wanted: Collection[int]) -> list[str]:
        found = [] if self.is_drained else ["nobody waited until the group was drained"]
        for number in wanted:
            counts = [count for _, _, count in self._deliveries.get(number, ())]
            if number in self.accepted_at:
                continue
            if number not in self.unknown:
                found.append(f"record {number} was never accepted; it was delivered {len(counts)} times")
            elif max(counts) >= DELIVERY_COUNT_LIMIT:
                found.append(f"record {number} may have been archived: it was delivered {max(counts)} times")
        known = dict.fromkeys(wanted)
        found.extend(
            f"record {number} was accepted, and never confirmed" for number in self.accepted if number not in known
        )
        return found


class WorkerPool:
    """Real share consumers in processes of their own; a context manager that stops them."""

    def __init__(self, tasks: list[WorkerTask]) -> None:
        self.account = Account()
        self._reports: Any = _CONTEXT.Queue()
        self._stop = _CONTEXT.Event()
        self._processes = [
            _CONTEXT.Process(target=_work, args=(task, self._reports, self._stop), daemon=True) for task in tasks
        ]

    def __enter__(self) -> WorkerPool:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        deadline = time.monotonic() + 30
        while any(process.is_alive() for process in self._processes) and time.monotonic() < deadline:
            self._take(0.1)
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        while self._take(0.1):
            pass
        self._reports.close()

    def run_until(self, done: Callable[[Account], bool], timeout_s: float) -> None:
        """Takes reports until `done` says so; AssertionError with the account after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not done(self.account):
            assert time.monotonic() < deadline, (
                f"not done after {timeout_s} s: {len(self.account.accepted_at)} accepted, "
                f"{self.account.deliveries} deliveries, {self.account.released} released"
            )
            self._take(0.5)

    def run_until_drained(self, bootstrap: str, group: str, topic: str, timeout_s: float) -> None:
        """Takes reports until the group has no lag in any partition of the topic; AssertionError after `timeout_s`.

        As DescribeShareGroupOffsets tells it: every record has come to its end, by what is durable. Workers go on
        meanwhile, so that records whose acceptance did not take effect are worked on again.
        """
        deadline = time.monotonic() + timeout_s
        while lags := lags_of_group(bootstrap, group, topic):
            assert time.monotonic() < deadline, f"not drained after {timeout_s} s: {lags}"
            self.run_for(DRAIN_POLL_S)
        self.account.is_drained = True

    def run_for(self, duration_s: float) -> None:
        """Takes reports for so long."""
        deadline = time.monotonic() + duration_s
        while time.monotonic() < deadline:
            self._take(0.2)

    def _take(self, timeout_s: float) -> bool:
        try:
            self.account.add(self._reports.get(timeout=timeout_s))
        except queue.Empty:
            return False
        return True


def lags_of_group(bootstrap: str, group: str, topic: str) -> str:
    """The partitions with records that the group is not done with, in words; "" where there is none."""
    try:
        offsets = [one for one in read_share_offsets(bootstrap, group) if one.topic == topic]
    except CommandFailed as failure:  # somebody is being restarted: it is asked again
        return str(failure)
    if not offsets:
        return f"group {group} has no offsets in {topic}"
    return ", ".join(
        f"partition {one.partition} starts at {one.start_offset} with lag {one.lag}" for one in offsets if one.lag != 0
    )
