"""What became of each record of one topic in one share group: numbered records, five bytes and a time for each.

`support.clients.workload.Account` keeps every delivery of a record, which hours of load would not fit.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple

SHOWN_VIOLATIONS = 20
NEVER = -1.0
HIGHEST_COUNT = 255


class Sent(IntEnum):
    """What the producer knows of a record."""

    UNKNOWN = 0
    """Its answer was lost: the record may be in the log or not."""
    CONFIRMED = 1
    ABORTED = 2


class Decision(IntEnum):
    """What a worker says of a record."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


class Report(NamedTuple):
    """One poll of a worker and what became of it; times are of the machine's monotonic clock, in seconds."""

    polled_at: float
    came_at: float
    confirmed_at: float
    numbers: list[int]
    partitions: list[int]
    delivery_counts: list[int]
    decisions: list[Decision]
    waited_s: list[float]
    """From the record's Produce to the worker."""
    confirmed_partitions: frozenset[int]
    refused_partitions: frozenset[int] = frozenset()
    """Partitions whose answer says that the decisions had no effect. Of the others the outcome is unknown."""


class Ledger:
    """One topic's records by number, from 0 without gaps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.deliveries = 0
        self.redeliveries = 0
        self.settled = 0
        """Records that were accepted or rejected, and that confirmed."""
        self.unconfirmed_accepts = 0
        """Deliveries that were accepted or rejected without a confirmation: an error, or no answer."""
        self.settled_twice = 0
        self.redelivered_after_confirmation = 0
        self.violations: list[str] = []
        """The first of them, in words."""
        self._sent = bytearray()
        self._settled_at = array("d")
        self._settled_count = bytearray()
        self._highest_count = bytearray()
        self._rejected = bytearray()
        self._may_be_settled = bytearray()
        """1: a worker accepted the record, and whether that had an effect is unknown.

        A rejection needs no such mark: where it had an effect, the record is a dead letter.
        """

    @property
    def records(self) -> int:
        """How many numbers were given out."""
        return len(self._sent)

    def next_number(self) -> int:
        """The number of a record that will be sent; nothing is known of it yet."""
        columns = (self._sent, self._settled_count, self._highest_count, self._rejected, self._may_be_settled)
        for column in columns:
            column.append(0)
        self._settled_at.append(NEVER)
        return len(self._sent) - 1

    def sent(self, number: int, known: Sent) -> None:
        self._sent[number] = known

    def count_of(self, known: Sent) -> int:
        """How many records the producer knows this of."""
        return self._sent.count(known)

    def add(self, report: Report) -> None:
        self.deliveries += len(report.numbers)
        for number, partition, count, decision in zip(
            report.numbers, report.partitions, report.delivery_counts, report.decisions, strict=True
        ):
            self.redeliveries += count > 1
            self._highest_count[number] = max(self._highest_count[number], min(count, HIGHEST_COUNT))
            if self._settled_at[number] != NEVER:
                self._delivered_again(number, count, report.polled_at)
            if decision == Decision.RELEASE:
                continue
            if partition not in report.confirmed_partitions:
                self.unconfirmed_accepts += 1
                if decision == Decision.ACCEPT and partition not in report.refused_partitions:
                    self._may_be_settled[number] = 1
            else:
                self._settle(number, count, decision, report.confirmed_at)

    def _delivered_again(self, number: int, count: int, polled_at: float) -> None:
        # A client may still show what it had fetched before its session was lost: an earlier delivery, and no new one.
        if polled_at > self._settled_at[number] and count >= self._settled_count[number]:
            self.redelivered_after_confirmation += 1
            self._violation(
                f"record {number} came as delivery {count}, although its delivery {self._settled_count[number]} was "
                "settled, and that confirmed, before"
            )

    def _settle(self, number: int, count: int, decision: Decision, confirmed_at: float) -> None:
        if self._settled_at[number] != NEVER:
            self.settled_twice += 1
            self._violation(f"record {number} was settled twice, both confirmed")
            return
        self.settled += 1
        self._settled_at[number] = confirmed_at
        self._settled_count[number] = min(count, HIGHEST_COUNT)
        self._rejected[number] = decision == Decision.REJECT

    def _violation(self, text: str) -> None:
        if len(self.violations) < SHOWN_VIOLATIONS:
            self.violations.append(f"{self.name}: {text}")

    def aborted_delivered(self) -> list[int]:
        """Records of aborted transactions that were delivered, whether before or after the producer knew of the end."""
        return [
            number
            for number, known in enumerate(self._sent)
            if known == Sent.ABORTED and self._highest_count[number] > 0
        ]

    def lost(self, delivery_count_limit: int, dead: dict[int, int]) -> list[int]:
        """Confirmed records of a drained group for whose end there is no evidence.

        Evidence is a confirmed decision, a dead letter, or an acceptance whose outcome is unknown: the group says that
        it is done with every record, so that this acceptance had an effect. A record that was only released, or whose
        decisions were all refused, has none, however often it was delivered: the start offset skipped it.

        A record that was delivered as often as the limit allows may have been archived by that. Then it has to be in
        `dead`.
        """
        return [
            number
            for number, known in enumerate(self._sent)
            if known == Sent.CONFIRMED and self._settled_at[number] == NEVER and number not in dead
            if not self._may_be_settled[number] or self._highest_count[number] >= delivery_count_limit
        ]

    def describe(self, number: int) -> str:
        """What is known of a record that is lost."""
        count = self._highest_count[number]
        return f"record {number} is lost; it was delivered {f'with count {count}' if count else 'never'}"

    def dead_letter_problems(self, dead: dict[int, int]) -> list[str]:
        """What is wrong with the dead letters, given how often each number is among them."""
        problems = [
            f"{self.name}: record {number} was rejected, and is among the dead letters {dead.get(number, 0)} times"
            for number, rejected in enumerate(self._rejected)
            if rejected and dead.get(number, 0) != 1
        ]
        for number, times in dead.items():
            if times > 1 and not self._rejected[number]:
                problems.append(f"{self.name}: record {number} is among the dead letters {times} times")
            if self._settled_at[number] != NEVER and not self._rejected[number]:
                problems.append(f"{self.name}: record {number} was accepted, and is a dead letter, too")
            if self._highest_count[number] == 0:
                problems.append(f"{self.name}: record {number} is a dead letter, and was never delivered")
        return problems[:SHOWN_VIOLATIONS]
