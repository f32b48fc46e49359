"""The load of a soak on one cluster: producers, share groups, an ordinary consumer; and the account of all of it.

- `orders`: an idempotent producer; the share group `workers` releases, rejects into `dlq.orders`, and accepts; the
  ordinary consumer `readers` reads the same topic.
- `transfers`: a transactional producer that aborts a fifth; the share group `committed` reads what was committed.
"""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType

from kshare.commands.groups.group_requests import read_share_offsets
from kshare.failure import CommandFailed
from soak.ledger import Ledger, Report, Sent
from soak.ordinary_consumer import OrdinaryConsumer
from soak.producers import PacedProducer, TransactionalProducer
from soak.samples import Watch
from soak.verdict import Totals
from soak.workers import Work, Workers, number_of
from support.clients.administration import alter_group, create_topic
from support.clients.dead_letter_topic import read_dead_letters

ORDERS, TRANSFERS, DEAD_LETTERS = "orders", "transfers", "dlq.orders"
WORKERS, COMMITTED, READERS = "workers", "committed", "readers"
GROUPS = {WORKERS: ORDERS, COMMITTED: TRANSFERS}
PARTITIONS = 3
WORKERS_OF_GROUP = 3
DELIVERY_COUNT_LIMIT = 10
"""More than faults come within the life of a record, so that a record is archived only where something is wrong."""
RETENTION_MS = 900_000
SEGMENT_BYTES = 16 * 1024 * 1024
DRAIN_POLL_S = 0.5


class Load:
    """Runs on entry. `work_for` lets it run; `drain` ends the producers and waits until all groups are done."""

    def __init__(self, bootstrap: str, rate: int, seed: int) -> None:
        """`rate`: records a second for each of the two producers."""
        self._bootstrap = bootstrap
        self.ledgers = {group: Ledger(group) for group in GROUPS}
        self._create_topics()
        self.watch: Watch | None = None
        self._producers = [
            PacedProducer(bootstrap, ORDERS, PARTITIONS, rate, self.ledgers[WORKERS]),
            TransactionalProducer(bootstrap, TRANSFERS, PARTITIONS, rate, self.ledgers[COMMITTED], seed),
        ]
        self._ordinary = OrdinaryConsumer(bootstrap, ORDERS, READERS)
        self._workers = Workers(
            [
                Work(bootstrap=bootstrap, topic=topic, group=group, rejects=group == WORKERS)
                for group, topic in GROUPS.items()
                for _ in range(WORKERS_OF_GROUP)
            ]
        )

    def _create_topics(self) -> None:
        retention = {"retention_ms": str(RETENTION_MS), "segment_bytes": str(SEGMENT_BYTES)}
        create_topic(self._bootstrap, ORDERS, PARTITIONS, **retention)
        create_topic(self._bootstrap, TRANSFERS, PARTITIONS, **retention)
        create_topic(
            self._bootstrap,
            DEAD_LETTERS,
            1,
            errors_deadletterqueue_group_enable="true",
        )
        common = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(DELIVERY_COUNT_LIMIT),
        }
        dead_letters = {
            "errors.deadletterqueue.topic.name": DEAD_LETTERS,
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        alter_group(self._bootstrap, WORKERS, common | dead_letters)
        alter_group(self._bootstrap, COMMITTED, common | {"share.isolation.level": "read_committed"})

    def __enter__(self) -> Load:
        self._workers.__enter__()
        self._ordinary.start()
        for producer in self._producers:
            producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.__exit__()

    def work_for(self, duration_s: float) -> None:
        self._workers.take(self._add, duration_s)

    def _add(self, group: str, report: Report) -> None:
        self.ledgers[group].add(report)
        if self.watch is not None:
            self.watch.delivered(report.waited_s)

    @property
    def backlog(self) -> int:
        """Records that may still have to be settled."""
        return sum(ledger.records - ledger.count_of(Sent.ABORTED) - ledger.settled for ledger in self.ledgers.values())

    def drain(self, timeout_s: float) -> None:
        """Ends the producers; returns when no group has lag and the ordinary consumer has read everything."""
        for producer in self._producers:
            producer.end()
        deadline = time.monotonic() + timeout_s
        while problem := self._undrained():
            assert time.monotonic() < deadline, f"not drained {timeout_s} s after the last fault: {problem}"
            self.work_for(DRAIN_POLL_S)
        self._workers.end(self._add)  # a worker may not have reported yet what the group is done with
        self._ordinary.end()

    def _undrained(self) -> str:
        """What is still to do, in words; "" for nothing."""
        for group in GROUPS:
            try:
                offsets = read_share_offsets(self._bootstrap, group)
            except CommandFailed as failure:  # somebody is being restarted: it is asked again
                return str(failure)
            if len(offsets) < PARTITIONS:
                return f"group {group} has offsets in {len(offsets)} of {PARTITIONS} partitions"
            for one in offsets:
                if one.lag != 0:
                    return f"group {group}: {one.topic}-{one.partition} starts at {one.start_offset}, lag {one.lag}"
        wanted = self.ledgers[WORKERS].count_of(Sent.CONFIRMED)
        if self._ordinary.records < wanted:
            return f"the ordinary consumer has read {self._ordinary.records} of {wanted} records"
        return ""

    def totals(self) -> Totals:
        """The account of a drained load."""
        dead = Counter(
            number_of(letter.value)
            for letter in read_dead_letters(self._bootstrap, DEAD_LETTERS, 0)
            if letter.value is not None
        )
        found = Totals(dead_letters=dead.total(), ordinary_commits=self._ordinary.commits)
        found.ordinary_records = self._ordinary.records
        for group, ledger in self.ledgers.items():
            letters = dict(dead) if group == WORKERS else {}
            lost = ledger.lost(DELIVERY_COUNT_LIMIT, letters)
            found.produced += ledger.count_of(Sent.CONFIRMED)
            found.aborted += ledger.count_of(Sent.ABORTED)
            found.without_answer += ledger.count_of(Sent.UNKNOWN)
            found.deliveries += ledger.deliveries
            found.redeliveries += ledger.redeliveries
            found.settled += ledger.settled
            found.unconfirmed_accepts += ledger.unconfirmed_accepts
            found.lost += len(lost)
            found.settled_twice += ledger.settled_twice
            found.redelivered_after_confirmation += ledger.redelivered_after_confirmation
            aborted = ledger.aborted_delivered()
            found.aborted_delivered += len(aborted)
            found.violations += [f"{group}: {ledger.describe(number)}" for number in lost[:5]]
            found.violations += [f"{group}: record {number} was aborted, and delivered" for number in aborted[:5]]
            found.violations += ledger.violations
            if group == WORKERS:
                found.violations += ledger.dead_letter_problems(letters)
        found.violations += self._ordinary.violations
        return found
