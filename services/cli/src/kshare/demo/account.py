"""The account of every order, from the acknowledgements that the cluster confirmed to workers.

An order is settled when its acceptance or rejection was confirmed to a worker. Orders that a worker held when it
crashed were not confirmed: they must be redelivered and settled by another worker. No order may be settled twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

ACCEPT, RELEASE, REJECT = ANSWERS = ("accept", "release", "reject")


@dataclass(slots=True)
class WorkerTally:
    """The reports of one worker so far."""

    state: str = "starting"
    answers: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    """Acknowledgements that the cluster refused; their orders are redelivered."""


@dataclass(slots=True)
class Account:
    """Collects reports, in any order; the properties are the current account."""

    expected: int
    """The total number of orders; they are numbered from 0 to `expected` - 1."""
    workers: dict[str, WorkerTally] = field(default_factory=dict)
    produced: set[int] = field(default_factory=set)
    accepted: Counter[int] = field(default_factory=Counter)
    rejected: Counter[int] = field(default_factory=Counter)
    released: Counter[int] = field(default_factory=Counter)
    redelivered: set[int] = field(default_factory=set)
    """Orders delivered with a delivery count above 1."""
    held_at_crash: set[int] = field(default_factory=set)

    def worker(self, name: str) -> WorkerTally:
        return self.workers.setdefault(name, WorkerTally())

    def add_produced(self, orders: Iterable[int]) -> None:
        self.produced.update(orders)

    def add_confirmed(self, worker: str, order: int, answer: str, delivery_count: int) -> None:
        """Adds a worker's acknowledgement of an order that the cluster confirmed."""
        {ACCEPT: self.accepted, RELEASE: self.released, REJECT: self.rejected}[answer][order] += 1
        self.worker(worker).answers[answer] += 1
        if delivery_count > 1:
            self.redelivered.add(order)

    def add_refused(self, worker: str, count: int) -> None:
        self.worker(worker).refused += count

    def add_crash(self, worker: str, holding: Iterable[int]) -> None:
        """Adds a crash of a worker that holds these orders."""
        self.worker(worker).state = "crashed"
        self.held_at_crash.update(holding)

    def mark_finished(self) -> None:
        """Marks all workers that did not crash as finished: they have left the group."""
        for tally in self.workers.values():
            if tally.state != "crashed":
                tally.state = "finished"

    @property
    def lost(self) -> set[int]:
        """Produced orders that were never settled."""
        return self.produced - self.accepted.keys() - self.rejected.keys()

    @property
    def accepted_twice(self) -> set[int]:
        return {order for order, count in self.accepted.items() if count > 1}

    @property
    def settled_twice(self) -> set[int]:
        """Rejected more than once, or rejected and accepted."""
        return {order for order, count in self.rejected.items() if count > 1 or order in self.accepted}

    @property
    def unknown(self) -> set[int]:
        """Settled, but never confirmed to the producer."""
        return (self.accepted.keys() | self.rejected.keys()) - self.produced

    @property
    def settled(self) -> int:
        return len(self.accepted.keys() | self.rejected.keys())

    @property
    def is_complete(self) -> bool:
        return len(self.produced) == self.expected and not self.lost

    def problems(self) -> list[str]:
        """The violated invariants; empty if the account is correct."""
        stuck = self.held_at_crash - self.redelivered
        checks = [
            (len(self.produced) != self.expected, f"{self.expected - len(self.produced)} orders could not be produced"),
            (bool(self.lost), f"lost: {some(self.lost)}"),
            (bool(self.accepted_twice), f"accepted twice: {some(self.accepted_twice)}"),
            (bool(self.settled_twice), f"rejected twice, or rejected and accepted: {some(self.settled_twice)}"),
            (bool(self.unknown), f"settled but not produced: {some(self.unknown)}"),
            (not self.held_at_crash, "no worker crashed while it held orders"),
            (bool(stuck), f"not redelivered after the crash: {some(stuck)}"),
            (not self.released, "no order was released"),
            (not self.rejected, "no order was rejected"),
        ]
        return [text for wrong, text in checks if wrong]

    def rows(self) -> list[tuple[str, int]]:
        """The lines of the printed account."""
        return [
            ("produced", len(self.produced)),
            ("accepted", len(self.accepted)),
            ("rejected", len(self.rejected)),
            ("redelivered", len(self.redelivered)),
            ("  of these released by a worker", len(self.redelivered & self.released.keys())),
            ("  of these held by the worker that crashed", len(self.redelivered & self.held_at_crash)),
            ("lost", len(self.lost)),
            ("accepted twice", len(self.accepted_twice)),
        ]


def some(orders: set[int]) -> str:
    """The number of orders, and the first few."""
    first = sorted(orders)[:10]
    return f"{len(orders)} ({', '.join(map(str, first))}{', …' if len(orders) > len(first) else ''})"
