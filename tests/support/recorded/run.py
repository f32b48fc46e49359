"""One recorded run on a real cluster: producers, members of a share group, faults meanwhile, and the verdict.

with RecordedRun(bootstrap) as run:
    run.work_until_accepted(500)
    run.during("leader killed", lambda: …)
    account = run.finish()          # drained; AssertionError with every broken rule
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kshare_core.states import AcknowledgeType
from support.clients.administration import alter_group, create_topic
from support.clients.several_coordinator_load import Load
from support.clients.workload import lags_of_group
from support.environment.machine_stalls import MachineStalls
from support.recorded.members import Members
from support.recorded.producers import ProducerEvent, RecordedProducer, TransactionalProducer
from support.simulation.checker import Checker, Expectations, Violation
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeSent,
    Delivered,
    Event,
    FaultEvent,
    History,
    ProduceConfirmed,
)
from support.simulation.kafka_clients.protocol import ReadRecord

DELIVERY_COUNT_LIMIT = 10
"""More than faults come within the life of a record."""
LOCK_DURATION_S = 15.0
TAKE_S = 0.2
DRAINED_WITHIN_S = 120.0
READ_WITHIN_S = 60.0


class Window(NamedTuple):
    """When a fault was there, and within how many seconds of its end deliveries have to go on."""

    name: str
    began: float
    ended: float
    resumes_within_s: float


@dataclass(slots=True)
class RunAccount:
    """What a run came to."""

    produced: int
    deliveries: int
    redeliveries: int
    unconfirmed_accepts: int
    """Accepts without an answer: they may have taken effect or not."""
    stalls_s: dict[str, float]
    """The longest time after each fault's end in which nothing was delivered."""

    def __str__(self) -> str:
        stalls = ", ".join(f"{name} {stall:.1f} s" for name, stall in self.stalls_s.items())
        return (
            f"{self.produced} produced, {self.deliveries} deliveries, {self.redeliveries} of them again, "
            f"{self.unconfirmed_accepts} unconfirmed accepts; stalls: {stalls or 'none looked for'}"
        )


class RecordedRun:
    """See the module's text. The topic and the group have the same name."""

    def __init__(
        self,
        bootstrap: str,
        *,
        partitions: int = 3,
        members: int = 3,
        rate: float = 150.0,
        transactional: bool = True,
        group_settings: dict[str, str] | None = None,
    ) -> None:
        self.name = f"recorded-{uuid.uuid4().hex[:8]}"
        self.bootstrap, self.partitions = bootstrap, partitions
        self._is_committed = transactional
        create_topic(bootstrap, self.name, partitions)
        common = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(DELIVERY_COUNT_LIMIT),
            "share.record.lock.duration.ms": str(round(LOCK_DURATION_S * 1000)),
        }
        isolation = {"share.isolation.level": "read_committed"} if transactional else {}
        alter_group(bootstrap, self.name, {**common, **isolation, **(group_settings or {})})
        self.members = Members(bootstrap, self.name, self.name, members)
        self.producers = [RecordedProducer(bootstrap, self.name, partitions, rate)]
        if transactional:
            self.producers.append(TransactionalProducer(bootstrap, self.name, partitions, rate / 3, "transactional"))
        self._stalls = MachineStalls()
        self._windows: list[Window] = []
        self._entered = ExitStack()

    def __enter__(self) -> RecordedRun:
        try:
            entering: list[Load | Members] = [*self.producers, self._stalls, self.members]
            for each in entering:
                self._entered.enter_context(each)
        except BaseException:
            self._entered.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, trace)

    # What happens meanwhile

    @property
    def accepted(self) -> int:
        """How many acknowledgements were confirmed."""
        return sum(isinstance(event, AcknowledgeAnswered) and not event.error_code for event in self.members.events)

    def work_for(self, duration_s: float) -> None:
        self.members.take(duration_s)

    def work_until(self, done: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            self.members.take(TAKE_S)

    def work_until_accepted(self, more: int, timeout_s: float = 90.0) -> None:
        wanted = self.accepted + more
        self.work_until(lambda: self.accepted >= wanted, f"{more} further acknowledgements are confirmed", timeout_s)

    def during(self, name: str, fault: Callable[[], object], *, resumes_within_s: float) -> None:
        """Carries out a fault in a thread while members go on. `finish` looks when deliveries went on after it."""
        failures: list[BaseException] = []

        def carry_out() -> None:
            try:
                fault()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=carry_out, daemon=True)
        began = time.monotonic()
        thread.start()
        while thread.is_alive():
            self.members.take(TAKE_S)
        if failures:
            raise failures[0]
        self._windows.append(Window(name, began, time.monotonic(), resumes_within_s))
        self.work_until_accepted(100)

    # The end

    def finish(self, bootstrap: str | None = None) -> RunAccount:
        """Ends the producers, waits until the group is done with every record, and applies the checker's rules.

        `bootstrap` is a gateway that runs; None: the first one.
        """
        at = bootstrap or self.bootstrap.partition(",")[0]
        for producer in self.producers:
            producer.finish()
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while lags := lags_of_group(at, self.name, self.name):
            assert time.monotonic() < deadline, f"not drained within {DRAINED_WITHIN_S} s: {lags}"
            self.members.take(TAKE_S)
        for place in self.members.places:
            self.members.stop(place)
        account = self._account()
        print(f"{self.name}: {account}")
        violations = Checker(self._history(), self._expectations()).check() + self._stalled(account)
        assert not violations, "\n".join(map(str, [account, *violations]))
        return account

    def _history(self) -> History:
        history = History()
        faults = [FaultEvent(one.began, one.name, (), "begins") for one in self._windows]
        ends = [FaultEvent(one.ended, one.name, (), "ends") for one in self._windows]
        events: list[Event] = [*faults, *ends, *fetched_in_time(self.members.events)]
        for producer in self.producers:
            events.extend(producer.events)
        for event in sorted(events, key=lambda event: event.time):
            history.add(event)
        return history

    def _expectations(self) -> Expectations:
        committed = read_log(self.bootstrap, self.name, self.partitions, "read_committed")
        logs = {
            partition: [ReadRecord(offset, value, offset in committed[partition]) for offset, value in records.items()]
            for partition, records in read_log(self.bootstrap, self.name, self.partitions, "read_uncommitted").items()
        }
        return Expectations(
            groups=[self.name],
            logs=logs,
            delivery_count_limit=DELIVERY_COUNT_LIMIT,
            lock_duration_s=LOCK_DURATION_S,
            committed_groups=[self.name] if self._is_committed else [],
            is_tapped=False,
        )

    def _account(self) -> RunAccount:
        deliveries = [event for event in self.members.events if isinstance(event, Delivered)]
        answered = {event.acknowledge_id for event in self.members.events if isinstance(event, AcknowledgeAnswered)}
        unconfirmed = [
            event
            for event in self.members.events
            if isinstance(event, AcknowledgeSent)
            and event.type == AcknowledgeType.ACCEPT
            and event.acknowledge_id not in answered
        ]
        return RunAccount(
            produced=sum(isinstance(event, ProduceConfirmed) for event in self._produced()),
            deliveries=len(deliveries),
            redeliveries=sum(event.delivery_count > 1 for event in deliveries),
            unconfirmed_accepts=len(unconfirmed),
            stalls_s={one.name: longest_stall_s(one, [event.time for event in deliveries]) for one in self._windows},
        )

    def _produced(self) -> Iterable[ProducerEvent]:
        return (event for producer in self.producers for event in producer.events)

    def _stalled(self, account: RunAccount) -> list[Violation]:
        """Faults after which deliveries did not go on in time; what the machine took is credited (`machine_stalls`)."""
        found = []
        for one in self._windows:
            stall_s, limit_s = account.stalls_s[one.name], one.resumes_within_s
            allowed_s = limit_s + self._stalls.credit_s(one.ended, one.ended + stall_s, limit_s)
            if stall_s > allowed_s:
                text = (
                    f"nothing was delivered for {stall_s:.1f} s after {one.name} was over; allowed: {allowed_s:.1f} s"
                )
                found.append(Violation("stalled after a fault", text))
        return found


def longest_stall_s(window: Window, arrivals: Iterable[float]) -> float:
    """From the end of a fault to the first delivery after it."""
    later = [time for time in arrivals if time > window.ended]
    return min(later, default=float("inf")) - window.ended


def fetched_in_time(events: Iterable[Event]) -> list[Event]:
    """The events, with deliveries' `sent_at` no later than when their record was delivered with a higher count.

    A client whose session was lost may still show what it had fetched before. A delivery of a lower count was acquired
    before one of a higher count, however late its client shows it.
    """
    given = list(events)
    higher: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for event in given:
        if isinstance(event, Delivered):
            higher.setdefault((event.partition, event.run[0]), []).append((event.delivery_count, event.time))
    found: list[Event] = []
    for event in given:
        if isinstance(event, Delivered):
            others = higher[event.partition, event.run[0]]
            before = [time for count, time in others if count > event.delivery_count]
            event = event._replace(sent_at=min([event.sent_at, *before]))
        found.append(event)
    return found


def read_log(bootstrap: str, topic: str, partitions: int, isolation: str) -> dict[int, dict[int, str]]:
    """Partition -> offset -> value of every record, with an ordinary consumer."""
    settings: dict[str, Any] = {"group.id": "reads-the-log", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, "isolation.level": isolation, **settings})
    found: dict[int, dict[int, str]] = {partition: {} for partition in range(partitions)}
    left = set(found)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
        deadline = time.monotonic() + READ_WITHIN_S
        while left:
            assert time.monotonic() < deadline, f"partitions {left} were not read to their ends"
            messages: list[Any] = consumer.consume(500, 0.5)
            for message in messages:
                error = message.error()
                if error is None:
                    found[message.partition()][message.offset()] = message.value().decode()
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
    finally:
        consumer.close()
    return found
