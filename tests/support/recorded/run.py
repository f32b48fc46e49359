"""One recorded run on a real cluster: producers, members of a share group, faults meanwhile, and the verdict.

with KshareCluster(folder, HISTORY_ON) as cluster, RecordedRun(cluster.bootstrap, cluster.failures) as run:
    run.work_until_accepted(500)
    run.during("leader killed", lambda: …)
    account = run.finish()          # drained; AssertionError with every broken rule

Judges are the simulation's checker, the rules of clients (`client_rules`), the audit of the leaders' delivery history,
the stalls after each fault, and what the processes logged.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from kshare.commands.groups.group_requests import read_share_offsets
from kshare_core.states import AcknowledgeType
from support.clients.administration import alter_group, create_topic
from support.clients.delivery_history import faults_of_history
from support.clients.several_coordinator_load import Load
from support.clients.workload import lags_of_group
from support.clusters.role_logs import Excuse, Failure, unexplained
from support.environment.machine_stalls import MachineStalls
from support.recorded.client_rules import ClientKnowledge, broken_client_rules
from support.recorded.logs import read_logs
from support.recorded.members import Members
from support.recorded.producers import ProducerEvent, RecordedProducer, TransactionalProducer
from support.recorded.stalls import Stall, Window, longest_stall, stalled
from support.simulation.checker import Checker, Expectations, Violation
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeSent,
    Delivered,
    Event,
    FaultEvent,
    History,
    ProduceConfirmed,
    ProduceSent,
)
from support.simulation.kafka_clients.protocol import ReadRecord

DELIVERY_COUNT_LIMIT = 10
"""More than faults come within the life of a record."""
LOCK_DURATION_S = 15.0
TAKE_S = 0.2
DRAINED_WITHIN_S = 120.0
WORKS_AFTER_FAULT_S = 3.0
"""The least time between a fault and the next one: what stops only after the first delivery is a stall, too."""
AFTER_DISK_FAULT_S = 5.0
"""How long a process may still log what a failing disk refused."""


@dataclass(slots=True)
class RunAccount:
    """What a run came to."""

    produced: int
    deliveries: int
    redeliveries: int
    unconfirmed_accepts: int
    """Accepts without an answer: they may have taken effect or not."""
    stalls: list[Stall]
    """After each fault the longest time in which one partition delivered nothing, until the next fault or the end."""

    def __str__(self) -> str:
        stalls = ", ".join(map(str, self.stalls))
        return (
            f"{self.produced} produced, {self.deliveries} deliveries, {self.redeliveries} of them again, "
            f"{self.unconfirmed_accepts} unconfirmed accepts; stalls: {stalls or 'none looked for'}"
        )


class RecordedRun:
    """See the module's text. The topic and the group have the same name."""

    def __init__(
        self,
        bootstrap: str,
        failures: Callable[[], list[Failure]],
        *,
        partitions: int = 3,
        members: int = 3,
        rate: float = 150.0,
        transactional: bool = True,
        group_settings: dict[str, str] | None = None,
    ) -> None:
        """`failures` reads what the cluster's processes logged. The cluster has a delivery history (`HISTORY_ON`)."""
        self.name = f"recorded-{uuid.uuid4().hex[:8]}"
        self._failures = failures
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
        self._excuses: list[Excuse] = []
        self._earlier_logs: dict[int, dict[int, ReadRecord]] = {partition: {} for partition in range(partitions)}
        """By offset: each record as it was when it was first read."""
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

    def during(
        self, name: str, fault: Callable[[], object], *, resumes_within_s: float, failing_disk: str = ""
    ) -> None:
        """Carries out a fault in a thread while members go on, and then works until each partition delivers again.

        `failing_disk` is the process that may log failures meanwhile, because its disk fails. `finish` judges how long
        partitions delivered nothing afterwards.
        """
        failures: list[BaseException] = []
        began: list[float] = []

        def carry_out() -> None:
            try:
                self._read_earlier_logs()
                began.append(time.monotonic())
                fault()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=carry_out, daemon=True)
        began_at = time.time()
        thread.start()
        while thread.is_alive():
            self.members.take(TAKE_S)
        if failures:
            raise failures[0]
        window = Window(name, began[0], time.monotonic(), resumes_within_s)
        self._windows.append(window)
        if failing_disk:
            self._excuses.append(Excuse(failing_disk, began_at, time.time() + AFTER_DISK_FAULT_S))
        position = len(self.members.events)
        self.work_until(lambda: self._all_resumed(window, position), f"each partition delivers again after {name}")
        self.work_for(window.ended + WORKS_AFTER_FAULT_S - time.monotonic())
        self.work_until_accepted(100)

    def _all_resumed(self, window: Window, position: int) -> bool:
        """`position`: of the first event that was read after the window."""
        events = self.members.events[position:]
        resumed = {event.partition for event in events if isinstance(event, Delivered) and event.time > window.ended}
        return len(resumed) == self.partitions

    def _read_earlier_logs(self) -> None:
        at = self.bootstrap.partition(",")[0]
        for partition, log in read_logs(at, self.name, self.partitions, is_ended=False).items():
            for record in log.records:
                self._earlier_logs[partition].setdefault(record.offset, record)

    # The end

    def finish(self, bootstrap: str | None = None) -> RunAccount:
        """Ends the producers, waits until the group is done with every record, and applies the checker's rules.

        `bootstrap` is a gateway that runs; None: the first one.
        """
        at = bootstrap or self.bootstrap.partition(",")[0]
        worked_until = time.monotonic()
        for producer in self.producers:
            producer.finish()
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while lags := lags_of_group(at, self.name, self.name):
            assert time.monotonic() < deadline, f"not drained within {DRAINED_WITHIN_S} s: {lags}"
            self.members.take(TAKE_S)
        for place in self.members.places:
            self.members.stop(place)
        account = self._account(worked_until)
        print(f"{self.name}: {account}")
        violations = [*self._violations(at), *stalled(account.stalls, self._stalls)]
        assert not violations, "\n".join(map(str, [account, *violations]))
        return account

    def _violations(self, at: str) -> Iterator[Violation]:
        yield from Checker(self._history(), self._expectations(at)).check()
        produced = [event for event in self._produced() if isinstance(event, ProduceSent)]
        known = ClientKnowledge(
            {value: event.time for event in produced for value in event.values}, self.members.started_at, self._windows
        )
        yield from broken_client_rules(self.members.events, known)
        starts = {one.partition: one.start_offset for one in read_share_offsets(at, self.name)}
        for fault in faults_of_history(at, self.name, self.name, starts, DELIVERY_COUNT_LIMIT):
            yield Violation("audit of the delivery history", fault)
        for failure in unexplained(self._failures(), self._excuses):
            yield Violation("a process logged a failure", str(failure))

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

    def _expectations(self, at: str) -> Expectations:
        logs = read_logs(at, self.name, self.partitions, is_ended=True)
        return Expectations(
            groups=[self.name],
            logs={partition: log.records for partition, log in logs.items()},
            delivery_count_limit=DELIVERY_COUNT_LIMIT,
            lock_duration_s=LOCK_DURATION_S,
            log_ends={partition: log.end_offset for partition, log in logs.items()},
            log_markers={partition: log.markers for partition, log in logs.items()},
            earlier_logs={partition: list(records.values()) for partition, records in self._earlier_logs.items()},
            committed_groups=[self.name] if self._is_committed else [],
            is_tapped=False,
        )

    def _account(self, worked_until: float) -> RunAccount:
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
            stalls=self._longest_stalls(deliveries, worked_until),
        )

    def _produced(self) -> Iterable[ProducerEvent]:
        return (event for producer in self.producers for event in producer.events)

    def _longest_stalls(self, deliveries: Iterable[Delivered], worked_until: float) -> list[Stall]:
        arrivals: dict[int, list[float]] = {partition: [] for partition in range(self.partitions)}
        for event in deliveries:
            arrivals[event.partition].append(event.time)
        ends = [*(one.began for one in self._windows[1:]), worked_until]
        return [longest_stall(window, until, arrivals) for window, until in zip(self._windows, ends, strict=False)]


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
