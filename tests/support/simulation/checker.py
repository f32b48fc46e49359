"""Whether what happened was allowed: the correctness rules of the design, section 6, over a recorded history.

Clients' knowledge is what counts: an acknowledgement is confirmed when its answer has arrived, a delivery may have
happened at any time between its request and its answer. Every rule is only applied where the history proves a breach.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeSent,
    Acquired,
    Delivered,
    Event,
    FaultEvent,
    History,
    HoldsEnded,
    ProduceConfirmed,
    ProduceSent,
    StateWritten,
    describe,
)
from support.simulation.kafka import ReadRecord

EXCERPT_LINES = 60

NOT_APPLIED = (
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)
"""Error codes that say that an acknowledgement certainly had no effect."""


ENDS = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)
NEVER = math.inf


class RecordKey(NamedTuple):
    group: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.group}/{self.partition}@{self.offset}"


@dataclass(slots=True)
class Violation:
    """A broken rule, with what happened to the record."""

    rule: str
    text: str
    excerpt: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([f"{self.rule}: {self.text}", *(f"    {line}" for line in self.excerpt)])


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the checker knows besides the history."""

    groups: Sequence[str]
    logs: Mapping[int, Sequence[ReadRecord]]
    """The records of each partition, as read at the end."""
    delivery_count_limit: int
    lock_duration_s: float
    calm: bool = False
    """No faults at all: then nothing may fail."""


class _Sent(NamedTuple):
    event: AcknowledgeSent
    answer: AcknowledgeAnswered | None

    @property
    def ended_at(self) -> float:
        """When its sender knew that the record had come to its end."""
        if self.answer is None or self.answer.error_code or self.event.type not in ENDS:
            return NEVER
        return self.answer.time

    @property
    def confirmed(self) -> bool:
        return self.answer is not None and self.answer.error_code == 0

    @property
    def may_have_effect(self) -> bool:
        return self.answer is None or self.answer.error_code not in NOT_APPLIED


class Checker:
    """Indexes a history once; `check` applies every rule."""

    def __init__(self, history: History, expectations: Expectations) -> None:
        self._events = history.events
        self._expected = expectations
        self._deliveries: dict[RecordKey, list[Delivered]] = defaultdict(list)
        self._acquired: dict[RecordKey, list[Acquired]] = defaultdict(list)
        self._sent: dict[RecordKey, list[_Sent]] = defaultdict(list)
        self._hold_ends: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        self._fault_times: list[float] = []
        self._index()

    def _index(self) -> None:
        answers = {event.acknowledge_id: event for event in self._events if isinstance(event, AcknowledgeAnswered)}
        for event in self._events:
            if isinstance(event, Delivered):
                for key in _keys(event):
                    self._deliveries[key].append(event)
            elif isinstance(event, Acquired):
                for key in _keys(event):
                    self._acquired[key].append(event)
            elif isinstance(event, AcknowledgeSent):
                sent = _Sent(event, answers.get(event.acknowledge_id))
                for key in _keys(event):
                    self._sent[key].append(sent)
            elif isinstance(event, HoldsEnded):
                self._hold_ends[event.group, event.member].append((event.time, event.gateway))
            elif isinstance(event, FaultEvent):
                self._fault_times.append(event.time)

    def check(self) -> list[Violation]:
        """Every breach, the worst rules first; at most three of each rule."""
        rules = (
            self._no_delivery_after_confirmation,
            self._produced_exactly_once,
            self._delivered_what_was_produced,
            self._nothing_skipped,
            self._one_holder_at_once,
            self._delivery_counts,
            self._state_moves_forwards,
            self._calm_runs_have_no_errors,
        )
        violations: list[Violation] = []
        for rule in rules:
            for number, violation in enumerate(rule()):
                if number == 3:
                    break
                violations.append(violation)
        return violations

    def _violation(self, rule: str, key: RecordKey, text: str) -> Violation:
        return Violation(rule, f"{key}: {text}", self.excerpt(key))

    def excerpt(self, key: RecordKey) -> list[str]:
        """What happened to one record, and the faults."""
        acknowledge_ids = {sent.event.acknowledge_id for sent in self._sent[key]}
        lines = [describe(event) for event in self._events if _concerns(event, key, acknowledge_ids)]
        if len(lines) > EXCERPT_LINES:
            lines = [*lines[: EXCERPT_LINES // 2], "...", *lines[-EXCERPT_LINES // 2 :]]
        return lines

    def _all_keys(self) -> Iterator[RecordKey]:
        for group in self._expected.groups:
            for partition, records in self._expected.logs.items():
                for record in records:
                    yield RecordKey(group, partition, record.offset)

    # Rules

    def _no_delivery_after_confirmation(self) -> Iterator[Violation]:
        """Rule 2: a record whose ACCEPT or REJECT was confirmed is never delivered again to the group."""
        for key, all_sent in self._sent.items():
            confirmed_at = min((sent.ended_at for sent in all_sent), default=NEVER)
            events: list[Delivered | Acquired] = [*self._deliveries[key], *self._acquired[key]]
            for event in events:
                if event.sent_at > confirmed_at:
                    text = f"its end was confirmed at {confirmed_at:.4f}, and it was fetched again: {describe(event)}"
                    yield self._violation("delivered after its confirmation", key, text)
                    break

    def _produced_exactly_once(self) -> Iterator[Violation]:
        """Every confirmed record is in the log once, where the answer said, in its producer's order."""
        sent: dict[str, str] = {}
        for event in self._events:
            if isinstance(event, ProduceSent):
                sent.update((value, event.producer) for value in event.values)
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for partition, records in self._expected.logs.items():
            for record in records:
                places[record.value].append((partition, record.offset))
        yield from self._confirmed_are_in_place(places)
        for value, found in places.items():
            if len(found) > 1:
                yield Violation("twice in the log", f"{value!r} is at {found}")
            if found and value not in sent:
                yield Violation("in the log, but never produced", f"{value!r} is at {found}")
        yield from self._produced_in_order(sent)

    def _confirmed_are_in_place(self, places: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[Violation]:
        """`places`: partition and offset of each value in the logs."""
        for event in self._events:
            if not isinstance(event, ProduceConfirmed):
                continue
            for index, value in enumerate(event.values):
                found = places.get(value, ())
                if not found:
                    yield Violation("produced and confirmed, but lost", f"{value!r}: {describe(event)}")
                elif event.base_offset >= 0 and (event.partition, event.base_offset + index) not in found:
                    yield Violation("not where the answer said", f"{value!r} is at {found}: {describe(event)}")

    def _produced_in_order(self, sent: Mapping[str, str]) -> Iterator[Violation]:
        """`sent`: the producer of each value, in the order in which values were first sent."""
        ranks = {value: rank for rank, value in enumerate(sent)}
        for partition, records in self._expected.logs.items():
            newest: dict[str, int] = {}
            for record in records:
                producer = sent.get(record.value, "")
                rank = ranks.get(record.value, -1)
                if rank < newest.get(producer, -1):
                    yield Violation("out of order in the log", f"{record.value!r} at {partition}@{record.offset}")
                newest[producer] = rank

    def _delivered_what_was_produced(self) -> Iterator[Violation]:
        logs = {
            (partition, record.offset): record.value
            for partition, records in self._expected.logs.items()
            for record in records
        }
        for key, events in self._deliveries.items():
            for event in events:
                value = event.values[key.offset - event.run[0]]
                expected = logs.get((key.partition, key.offset))
                if value != expected:
                    text = f"delivered as {value!r}; the log has {expected!r} there"
                    yield self._violation("delivered what is not in the log", key, text)

    def _nothing_skipped(self) -> Iterator[Violation]:
        """Rule 2: every record was accepted, rejected or delivered as often as the limit allows."""
        limit = self._expected.delivery_count_limit
        for key in self._all_keys():
            ended = any(sent.event.type != AcknowledgeType.RELEASE and sent.may_have_effect for sent in self._sent[key])
            highest = max((event.delivery_count for event in self._acquired[key]), default=0)
            if not ended and highest < limit:
                text = f"neither accepted nor rejected, and delivered with count {highest} of {limit}"
                yield self._violation("skipped", key, text)

    def _one_holder_at_once(self) -> Iterator[Violation]:
        """A record that is held, inside its lock, is not given to anybody else.

        The lock begins when the leader acquires, which for records that waited in a gateway is before the ShareFetch
        that delivers them.
        """
        lock = self._expected.lock_duration_s
        for key, events in self._deliveries.items():
            acquired = [self._acquired_at(key, event) for event in events]
            for (first, first_at), (second, second_at) in combinations(zip(events, acquired, strict=True), 2):
                start, end = min(first_at, second_at), max(first.time, second.time)
                if end - start >= lock or self._fault_between(start - lock, end):
                    continue
                if not self._given_up(key, first, start, end) and not self._given_up(key, second, start, end):
                    text = f"held twice: {describe(first)} and {describe(second)}"
                    yield self._violation("two holders", key, text)

    def _acquired_at(self, key: RecordKey, delivery: Delivered) -> float:
        """The earliest time at which the leader can have acquired what was delivered."""
        for event in reversed(self._acquired[key]):
            same = (event.run, event.delivery_count) == (delivery.run, delivery.delivery_count)
            if same and event.time <= delivery.time:
                return min(event.sent_at, delivery.sent_at)
        return delivery.sent_at

    def _given_up(self, key: RecordKey, event: Delivered, start: float, end: float) -> bool:
        """Whether the holder may have lost the record between the two times."""
        for sent in self._sent[key]:
            if sent.event.member == event.member and start <= sent.event.time <= end:
                return True
        ends = self._hold_ends[key.group, event.member]
        return any(gateway == event.gateway and start <= time <= end for time, gateway in ends)

    def _fault_between(self, start: float, end: float) -> bool:
        index = bisect_right(self._fault_times, start)
        return index < len(self._fault_times) and self._fault_times[index] <= end

    def _delivery_counts(self) -> Iterator[Violation]:
        """Counts are within the limit; a confirmed release is remembered, whatever dies; else they grow by one."""
        limit = self._expected.delivery_count_limit
        for key, events in self._acquired.items():
            over = [event for event in events if not 1 <= event.delivery_count <= limit]
            if over:
                yield self._violation("delivery count outside 1 to the limit", key, describe(over[0]))
            yield from self._counts_grow(key, events)
            yield from self._releases_are_remembered(key)

    def _counts_grow(self, key: RecordKey, events: Sequence[Acquired]) -> Iterator[Violation]:
        for before, after in pairwise(events):
            calm = not self._fault_between(before.sent_at - self._expected.lock_duration_s, after.time)
            if calm and after.sent_at > before.time and after.delivery_count <= before.delivery_count:
                text = f"{before.delivery_count}, then {after.delivery_count} at {after.time:.4f}, without a fault"
                yield self._violation("delivery count does not grow", key, text)

    def _releases_are_remembered(self, key: RecordKey) -> Iterator[Violation]:
        for sent in self._sent[key]:
            if sent.event.type != AcknowledgeType.RELEASE or not sent.confirmed or sent.answer is None:
                continue
            held = [
                event.delivery_count
                for event in self._deliveries[key]
                if event.member == sent.event.member and event.time <= sent.event.time
            ]
            for after in self._acquired[key]:
                if held and after.sent_at > sent.answer.time and after.delivery_count <= min(held):
                    text = f"released with count {min(held)} or more at {sent.answer.time:.4f}; {describe(after)}"
                    yield self._violation("delivery count forgotten", key, text)
                    return

    def _state_moves_forwards(self) -> Iterator[Violation]:
        """Rule 4: what the share coordinators confirm has epochs and start offsets that never go back."""
        newest: dict[tuple[str, int], StateWritten] = {}
        for event in self._events:
            if not isinstance(event, StateWritten):
                continue
            before = newest.get((event.group, event.partition))
            newest[event.group, event.partition] = event
            if before is None:
                continue
            known_start = max(before.start_offset, -1)
            if event.start_offset == -1:
                newest[event.group, event.partition] = event._replace(start_offset=known_start)
            for name in ("state_epoch", "leader_epoch", "start_offset"):
                old, new = getattr(before, name), getattr(event, name)
                if new < old and new != -1:
                    text = f"{event.group}/{event.partition}: {name} {old} was followed by {new}"
                    yield Violation("state went back", text, [describe(before), describe(event)])

    def _calm_runs_have_no_errors(self) -> Iterator[Violation]:
        """Without faults, an acknowledgement inside the lock is never refused.

        The acknowledgements of a partition in one request succeed or fail together, so that all of them count.
        """
        if not self._expected.calm:
            return
        refused: dict[tuple[str, str, int, float], list[tuple[RecordKey, _Sent]]] = defaultdict(list)
        for key, all_sent in self._sent.items():
            for sent in all_sent:
                if sent.answer is not None and sent.answer.error_code != 0:
                    refused[key.group, sent.event.member, key.partition, sent.event.time].append((key, sent))
        for together in refused.values():
            if all(self._certainly_held(key, sent) for key, sent in together):
                key, sent = together[0]
                text = f"{sent.answer}: {describe(sent.event)}"
                yield self._violation("acknowledgement refused without a reason", key, text)

    def _certainly_held(self, key: RecordKey, sent: _Sent) -> bool:
        """Whether the member had the record, inside its lock, from before the acknowledgement until its answer."""
        held = [
            event
            for event in self._deliveries[key]
            if event.member == sent.event.member and event.time <= sent.event.time
        ]
        if not held or sent.answer is None:
            return False
        if sent.answer.time >= self._acquired_at(key, held[-1]) + self._expected.lock_duration_s:
            return False
        given_up = (other.event.time for other in self._sent[key] if other is not sent)
        lost = (time for time, gateway in self._hold_ends[key.group, sent.event.member] if gateway == held[-1].gateway)
        return not any(held[-1].time <= time <= sent.event.time for time in (*given_up, *lost))


def _keys(event: Delivered | Acquired | AcknowledgeSent) -> Iterator[RecordKey]:
    for offset in range(event.run[0], event.run[1] + 1):
        yield RecordKey(event.group, event.partition, offset)


def _concerns(event: Event, key: RecordKey, acknowledge_ids: set[int]) -> bool:
    if isinstance(event, FaultEvent | HoldsEnded):
        return not isinstance(event, HoldsEnded) or event.group == key.group
    if isinstance(event, Delivered | Acquired | AcknowledgeSent):
        inside = event.run[0] <= key.offset <= event.run[1]
        return inside and (event.group, event.partition) == (key.group, key.partition)
    if isinstance(event, AcknowledgeAnswered):
        return event.acknowledge_id in acknowledge_ids
    if isinstance(event, StateWritten):
        if (event.group, event.partition) != (key.group, key.partition):
            return False
        return event.start_offset > key.offset or any(b[0] <= key.offset <= b[1] for b in event.batches)
    return False
