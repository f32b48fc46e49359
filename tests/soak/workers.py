"""Share consumers of a soak, each in a process of its own: they accept, release and reject, and report every poll."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from soak.ledger import Decision, Report
from support.simulation.evidence import NOT_APPLIED

POLL_S = 0.5
COMMIT_TIMEOUT_S = 60.0
ENDING_S, TAKE_S = 90.0, 0.2
RELEASED_EVERY, REJECTED_EVERY = 7, 101
NUMBER_DIGITS, TIME_DIGITS = 12, 20
CONTEXT = multiprocessing.get_context("spawn")
TYPES = {
    Decision.ACCEPT: AcknowledgeType.ACCEPT,
    Decision.RELEASE: AcknowledgeType.RELEASE,
    Decision.REJECT: AcknowledgeType.REJECT,
}


def record_value(number: int, size_bytes: int) -> bytes:
    """A record that tells its number and when it was produced."""
    return f"{number:0{NUMBER_DIGITS}d}{time.monotonic_ns():0{TIME_DIGITS}d}".encode().ljust(size_bytes, b".")


def number_of(value: bytes) -> int:
    """The number of a record of `record_value`."""
    return int(value[:NUMBER_DIGITS])


def _produced_at_s(value: bytes) -> float:
    return int(value[NUMBER_DIGITS : NUMBER_DIGITS + TIME_DIGITS]) / 1e9


def decision_of(number: int, delivery_count: int, *, rejects: bool) -> Decision:
    """What a worker says of a record: of every seventh it first wants another delivery."""
    if number % RELEASED_EVERY == 0 and delivery_count == 1:
        return Decision.RELEASE
    return Decision.REJECT if rejects and number % REJECTED_EVERY == 0 else Decision.ACCEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one worker does."""

    bootstrap: str
    topic: str
    group: str
    rejects: bool


def _work(work: Work, reports: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal goes to all; the soak stops its workers itself
    settings = {"share.acknowledgement.mode": "explicit", "log_level": 0}
    consumer = ShareConsumer({"bootstrap.servers": work.bootstrap, "group.id": work.group, **settings})
    consumer.subscribe([work.topic])
    while not stop.is_set():
        polled_at = time.monotonic()
        try:
            messages = [message for message in consumer.poll(POLL_S) if message.error() is None]
        except KafkaException:
            continue
        if messages:
            reports.put((work.group, _acknowledged(consumer, messages, polled_at, rejects=work.rejects)))
    with contextlib.suppress(KafkaException):
        consumer.close()


def _acknowledged(consumer: Any, messages: list[Any], polled_at: float, *, rejects: bool) -> Report:
    came_at = time.monotonic()
    numbers = [number_of(message.value()) for message in messages]
    counts = [int(message.delivery_count()) for message in messages]
    decisions = [decision_of(number, count, rejects=rejects) for number, count in zip(numbers, counts, strict=True)]
    for message, decision in zip(messages, decisions, strict=True):
        consumer.acknowledge(message, TYPES[decision])
    codes: dict[int, int] = {}
    with contextlib.suppress(KafkaException):
        results = consumer.commit_sync(COMMIT_TIMEOUT_S)
        codes = {at.partition: 0 if error is None else int(error.args[0].code()) for at, error in results.items()}
    return Report(
        polled_at=polled_at,
        came_at=came_at,
        confirmed_at=time.monotonic(),
        numbers=numbers,
        partitions=[message.partition() for message in messages],
        delivery_counts=counts,
        decisions=decisions,
        waited_s=[came_at - _produced_at_s(message.value()) for message in messages],
        confirmed_partitions=frozenset(partition for partition, code in codes.items() if code == 0),
        refused_partitions=frozenset(partition for partition, code in codes.items() if code in NOT_APPLIED),
    )


class Workers:
    """Starts them on entry. `take` gives their reports to whom they concern."""

    def __init__(self, work: Sequence[Work]) -> None:
        self._reports: Any = CONTEXT.Queue()
        self._stop = CONTEXT.Event()
        self._processes = [
            CONTEXT.Process(target=_work, args=(each, self._reports, self._stop), daemon=True) for each in work
        ]

    def __enter__(self) -> Workers:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()

    def end(self, give: Callable[[str, Report], None]) -> None:
        """Lets each worker end what it does, and passes on all of their reports.

        A worker that failed may have settled records and not reported them, so that its failure is the soak's.
        """
        self._stop.set()
        deadline = time.monotonic() + ENDING_S
        while any(process.is_alive() for process in self._processes):
            assert time.monotonic() < deadline, f"a worker did not end within {ENDING_S} s"
            self.take(give, TAKE_S)
        while self.take(give, TAKE_S):
            pass
        codes = [process.exitcode for process in self._processes]
        assert not any(codes), f"workers ended with exit codes {codes}"

    def take(self, give: Callable[[str, Report], None], duration_s: float) -> int:
        """Passes on (group, report) for so long; how many there were."""
        count = 0
        ends_at = time.monotonic() + duration_s
        while (left := ends_at - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                give(*self._reports.get(timeout=left))
                count += 1
        return count
