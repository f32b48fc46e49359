"""Load for rolling restarts, and the longest pause of each client meanwhile.

Producers write numbered records all the time, into all partitions in turn, so that every client always has records to
read. Readers are workers of a share group in processes of their own (`support.clients.workload`), and a consumer in a
group of either protocol. A pause is the time between one record and the next that a client gets (of a producer:
between two confirmations) while a role was stopped, started, and for some time after; a client that gets nothing any
more pauses until the load ends. A worker that had one partition alone would pause as long as the partition does, so
those are counted like workers. So a pause also has the time in which there was nothing to get, and is never too small.

with RollingLoad(bootstraps, partitions) as load:
    load.during("leader-1", lambda: restart("leader-1"))
load.finish()                                              # what is lost, or came twice: AssertionError
load.pauses                                                # {"leader-1": {"worker 0": 0.8, …}, …} in seconds
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from confluent_kafka import Producer

from support.clients.administration import create_replicated_topic, read_from_earliest
from support.clients.several_coordinator_load import Load, OrdinaryConsuming
from support.clients.workload import RECORD_BYTES, Account, PolledBatch, WorkerPool, WorkerTask
from support.clusters.engines import protocols_of_groups
from support.environment.machine_stalls import MachineStalls

WORKERS = 3
PRODUCERS = 2
PRODUCE_INTERVAL_S = 0.02
FIRST_RECORDS_WITHIN_S = 60.0
DONE_WITHIN_S = 60.0


class ArrivalAccount(Account):
    """Also knows when each worker got records."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: dict[int, list[float]] = {}
        self.arrivals_of_partitions: dict[int, list[float]] = {}
        self._batches: list[PolledBatch] = []
        self._came_at: dict[int, list[tuple[float, int]]] = {}

    def add(self, batch: PolledBatch) -> None:
        super().add(batch)
        self.arrivals.setdefault(batch.worker, []).append(batch.came_at)
        for partition in {*batch.partitions}:
            self.arrivals_of_partitions.setdefault(partition, []).append(batch.came_at)
        self._batches.append(batch)
        for number in batch.numbers:
            self._came_at.setdefault(number, []).append((batch.came_at, batch.worker))

    def batches_with(self, problems: Sequence[str]) -> list[PolledBatch]:
        """All that is known of the first record that a problem names."""
        number = int(problems[0].split()[1])
        return [batch for batch in self._batches if number in batch.numbers]

    def deliveries_of(self, number: int) -> list[tuple[float, int]]:
        """When, and to which worker."""
        return self._came_at.get(number, [])


class NumberedProducing(Load):
    """Numbers `first`, `first + step`, …; `confirmed` has when each was confirmed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, first: int, step: int) -> None:
        super().__init__()
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        )
        self._partitions, self._first, self._step = partitions, first, step
        self.confirmed: dict[int, float] = {}
        self.failures: list[str] = []

    def work(self) -> None:
        number = self._first
        while not self._stop_asked.wait(PRODUCE_INTERVAL_S):
            value = f"{number:012d}".ljust(RECORD_BYTES, ".")
            partition = number // self._step % self._partitions
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._confirmed)
            self._producer.poll(0)
            number += self._step
        assert self._producer.flush(60) == 0

    def _confirmed(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.confirmed[int(message.value()[:12])] = time.monotonic()


class RollingLoad:
    """See the module's text.

    `existing_cluster`: that of the kafka engine, to which producers and the ordinary consumer connect; only workers
    connect to `bootstraps` then. Without `ordinary_consumers` there are only producers and workers.
    `may_be_stored_twice`: see `Account`.
    """

    def __init__(
        self,
        bootstraps: Sequence[str],
        partitions: int,
        *,
        settings: dict[str, str] | None = None,
        existing_cluster: str | None = None,
        replication_factor: int = 1,
        ordinary_consumers: bool = True,
        may_be_stored_twice: bool = False,
    ) -> None:
        name = f"rolling-{uuid.uuid4().hex[:8]}"
        create_replicated_topic(existing_cluster or bootstraps[0], name, partitions, replication_factor)
        bootstrap = ",".join(bootstraps)
        read_from_earliest(bootstrap, name)
        of_others = existing_cluster or bootstrap
        tasks = [
            WorkerTask(bootstrap=bootstrap, topic=name, group=name, index=index, settings=settings or {})
            for index in range(WORKERS)
        ]
        self._name, self._bootstrap = name, bootstraps[0]
        self._partitions = partitions
        self._pool = WorkerPool(tasks)
        self._pool.account = self._account = ArrivalAccount()
        self._account.may_be_stored_twice = may_be_stored_twice
        self._producers = [
            NumberedProducing(of_others, name, partitions, first, PRODUCERS) for first in range(PRODUCERS)
        ]
        protocols = protocols_of_groups() if existing_cluster is None else ["classic"]
        if not ordinary_consumers:
            protocols.clear()
        self._consumers = [OrdinaryConsuming(of_others, f"{name}-{protocol}", name, protocol) for protocol in protocols]
        self._stalls = MachineStalls()
        self._entered = ExitStack()
        self._windows: dict[str, tuple[float, float]] = {}
        self._away_s: dict[str, float] = {}
        self._ended_at = 0.0

    def __enter__(self) -> RollingLoad:
        clients: list[Load | WorkerPool] = [*self._producers, *self._consumers, self._stalls, self._pool]
        for each in clients:
            self._entered.enter_context(each)
        try:
            self._pool.run_until(lambda account: self._everybody_works(), FIRST_RECORDS_WITHIN_S)
        except BaseException:
            self._entered.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, trace)  # with the error, which stays the context of one from a client's end

    def _everybody_works(self) -> bool:
        has_workers = len(self._account.arrivals) == WORKERS
        return has_workers and all(len(each.came) > 20 for each in self._consumers)

    def during(self, name: str, what: Callable[[], float | None], *, settle_s: float = 1.5) -> None:
        """Does it while the load goes on, and notes when; the pauses of `name` are known after `finish`.

        `what` may say for how many seconds the role was away; None: all the time that it took.
        """
        began = time.monotonic()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                away_s = what()
                self._away_s[name] = time.monotonic() - began if away_s is None else away_s
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            self._pool.run_for(0.2)
        if failures:
            raise failures[0]
        self._pool.run_for(settle_s)
        self._windows[name] = (began, time.monotonic())

    def catch_up(self, timeout_s: float) -> None:
        """Returns when workers accepted every record that is confirmed by now; the load goes on."""
        wanted = {number for producer in self._producers for number in [*producer.confirmed]}
        self._pool.run_until(lambda account: account.accepted.keys() >= wanted, timeout_s)

    def wait_for_more(self, records: int, within_s: float) -> None:
        """Until so many further records were accepted, and that was confirmed; to be called within `during`."""
        wanted = len(self._account.accepted_at) + records
        deadline = time.monotonic() + within_s
        while (found := len(self._account.accepted_at)) < wanted:
            assert time.monotonic() < deadline, f"{wanted - found} of {records} records are missing after {within_s} s"
            time.sleep(0.05)

    def finish(self, bootstrap: str | None = None) -> None:
        """Everything that was confirmed reached everybody and was accepted, once, and came to nobody after that.

        Still within the `with`. `bootstrap` is a gateway that runs; None: the first one.
        """
        self._ended_at = time.monotonic()
        for producer in self._producers:
            producer.finish()
            assert producer.failures == []
        wanted = {number for producer in self._producers for number in producer.confirmed}
        account = self._account
        self._pool.run_until(lambda _: account.accepted.keys() >= wanted, DONE_WITHIN_S)
        self._pool.run_until_drained(bootstrap or self._bootstrap, self._name, self._name, DONE_WITHIN_S)
        self._pool.run_for(1.0)
        problems = account.finish(wanted)
        assert not problems, "\n".join([*problems[:10], self.table(), *map(str, account.batches_with(problems))])
        for consumer in self._consumers:
            consumer.wait_for([f"{number:012d}".ljust(RECORD_BYTES, ".") for number in wanted])
            consumer.finish()
            assert consumer.went_back == []

    @property
    def pauses(self) -> dict[str, dict[str, tuple[float, float]]]:
        """How long, and how long after the stop it began, in seconds; by what was done and by client."""
        return {
            name: {client: longest_gap(times, *window, self._ended_at) for client, times in self._times().items()}
            for name, window in self._windows.items()
        }

    def longest_waits_of_records(self) -> list[str]:
        """The records that took longest from their producer's confirmation to their confirmed acceptance, in words."""
        waits = [
            (self._account.accepted_at[number] - confirmed_at, number, confirmed_at)
            for producer in self._producers
            for number, confirmed_at in producer.confirmed.items()
            if number in self._account.accepted_at
        ]
        return [
            f"record {number} of partition {number // PRODUCERS % self._partitions} was produced "
            f"{self._when(confirmed_at)}, and accepted {wait:.2f} s later; deliveries after "
            + ", ".join(
                f"{came_at - confirmed_at:.2f} s (worker {worker})"
                for came_at, worker in self._account.deliveries_of(number)
            )
            for wait, number, confirmed_at in sorted(waits, reverse=True)[:3]
        ]

    def _when(self, moment: float) -> str:
        done = [(name, began) for name, (began, _) in self._windows.items() if began <= moment]
        return (
            f"{moment - done[-1][1]:.2f} s after {done[-1][0]} was stopped" if done else "before anything was stopped"
        )

    def check_pauses(self, at_most_s: float, at_most_s_of: Mapping[str, float] | None = None) -> None:
        """No consumer paused for so long. What the machine took within a pause is credited (`machine_stalls`).

        `at_most_s_of` has other limits, for some of what was done.
        AssertionError with all pauses, which are also in the test's output.
        """
        table = self.table()
        print(table)
        for name, by_client in self.pauses.items():
            limit_s = (at_most_s_of or {}).get(name, at_most_s)
            for client, (pause, after) in by_client.items():
                began = self._windows[name][0] + after
                allowed_s = limit_s + self._stalls.credit_s(began, began + pause, limit_s)
                is_consumer = not client.startswith("producer")
                assert not is_consumer or pause < allowed_s, f"{client} paused for {pause:.2f} s during {name}\n{table}"

    def table(self) -> str:
        """What was done, and the longest pause of each kind of client in seconds (and when after the stop it began)."""
        lines = []
        for name, by_client in self.pauses.items():
            longest: dict[str, tuple[float, float]] = {}
            for client, pause in by_client.items():
                kind = client.split()[0]
                longest[kind] = max(pause, longest.get(kind, (0.0, 0.0)))
            lines.append(
                f"{name:>24} away for {self._away_s[name]:4.1f} s: "
                + ", ".join(f"{kind} {pause:.2f} ({after:+.1f})" for kind, (pause, after) in longest.items())
            )
        return "\n".join([*lines, *self.longest_waits_of_records()])

    def _times(self) -> dict[str, list[float]]:
        return {
            **{f"worker {index}": sorted(times) for index, times in sorted(self._account.arrivals.items())},
            **{
                f"partition {partition}": sorted(times)
                for partition, times in sorted(self._account.arrivals_of_partitions.items())
            },
            **{each.name.split()[0]: sorted(each.came.values()) for each in self._consumers},
            **{
                f"producer {index}": sorted(producer.confirmed.values())
                for index, producer in enumerate(self._producers)
            },
        }


def longest_gap(times: Sequence[float], began: float, ended: float, load_ended: float) -> tuple[float, float]:
    """The longest time between two neighbours of `times` that overlaps with `began` to `ended`; sorted, in seconds.

    And how long after `began` it starts. What comes after the load's end counts as its end: from then on there need not
    be anything to get.
    """
    moments = [moment for moment in times if moment < load_ended] or [began]
    pairs = zip(moments, [*moments[1:], load_ended], strict=True)
    gaps = [(after - before, before - began) for before, after in pairs if before < ended and after > began]
    return max(gaps, default=(0.0, 0.0))
