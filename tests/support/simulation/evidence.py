"""The evidence in a history: its events by record, and other known facts. The checker's rules are applied to it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeSent,
    Acquired,
    DeletionAsked,
    Delivered,
    Event,
    FaultEvent,
    History,
    HoldsEnded,
    StateWritten,
    describe,
)
from support.simulation.kafka_clients.protocol import ReadRecord
from support.simulation.loop import MonotonicClock
from support.simulation.retention import Retention

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


class Impairment(NamedTuple):
    """Hosts that a fault touches for a while; without hosts it touches all."""

    begin: float
    end: float
    hosts: tuple[str, ...]
    name: str = ""
    """The kind of fault."""
    strength: float = 0.0


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
    orderly: bool = False
    """Nothing crashed, was cut off or timed out: then an answer with an error says that there was no effect."""
    log_starts: Mapping[int, int] = field(default_factory=dict)
    """Where each log starts at the end; what lay below was deleted. 0 where nothing is said."""
    log_ends: Mapping[int, int] = field(default_factory=dict)
    """The offset after the last one of each log at the end."""
    log_markers: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The offsets of control records of each log at the end."""
    earlier_logs: Mapping[int, Sequence[ReadRecord]] = field(default_factory=dict)
    """The records of each partition, as read when the faults had ended."""
    hosts: Sequence[str] = ()
    """The names of the cluster's hosts; without them nothing is said about liveness."""
    impairments: Sequence[Impairment] = ()
    """What the faults touched, and when."""
    committed_groups: Sequence[str] = ()
    """The groups with share.isolation.level=read_committed."""
    retention_bytes: int = -1
    """retention.bytes of the topic; -1: only DeleteRecords deletes records."""
    deletion_delay_s: float = 0.0
    """How long after a DeleteRecords its records may still be acquired: leaders with logs elsewhere hear of it late."""
    switches_owners: bool = False
    """Whether state partitions get new owners before the old ones know of it (the kafka engine). An old one answers a
    read that was sent before, and its writes are refused by the log."""
    member_names: Mapping[str, str] = field(default_factory=dict)
    """The names that clients' events have, by the member ids of the network's; equal where nothing is said."""
    is_tapped: bool = True
    """Whether the history has what leaders and gateways say to each other; without it clients' events are all."""
    clocks: Mapping[str, MonotonicClock] = field(default_factory=dict)
    """The monotonic clocks of hosts, by which locks end; a host that is not named sees the true time."""
    dead_letters: Mapping[str, Sequence[DeadLetter]] = field(default_factory=dict)
    """What the dead-letter topic of each group holds at the end; groups without one are not named."""

    def shown_ms(self, life: str, true_s: float) -> int:
        """What the monotonic clock of this life of a host ("leader-1#2") showed then, in whole ms."""
        clock = self.clocks.get(life.partition("#")[0])
        return int((true_s if clock is None else clock.shown_at(true_s)) * 1000)


class DeadLetter(NamedTuple):
    """A record of a dead-letter topic: which record it says it is of, and that record's value where it was copied."""

    key: RecordKey
    delivery_count: int
    value: str


class Sent(NamedTuple):
    """An acknowledgement and its answer."""

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


class Evidence:
    """Indexes a history once. By record: deliveries, acquisitions, acknowledgements; by member: the ends of holds."""

    def __init__(self, history: History, expectations: Expectations) -> None:
        self.events = history.events
        self.expected = expectations
        self.deliveries: dict[RecordKey, list[Delivered]] = defaultdict(list)
        self.acquired: dict[RecordKey, list[Acquired]] = defaultdict(list)
        self.sent: dict[RecordKey, list[Sent]] = defaultdict(list)
        self.hold_ends: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        """By group and member: time and gateway."""
        self.liveness: Counter[str] = Counter()
        """How often a share-partition had to deliver something; see `rules.liveness`."""
        self._deletions: list[DeletionAsked] = []
        self._index()

    def _index(self) -> None:
        answers = {event.acknowledge_id: event for event in self.events if isinstance(event, AcknowledgeAnswered)}
        for event in self.events:
            if isinstance(event, Delivered):
                for key in _keys(event):
                    self.deliveries[key].append(event)
            elif isinstance(event, Acquired):
                for key in _keys(event):
                    self.acquired[key].append(event)
            elif isinstance(event, AcknowledgeSent):
                sent = Sent(event, answers.get(event.acknowledge_id))
                for key in _keys(event):
                    self.sent[key].append(sent)
            elif isinstance(event, HoldsEnded):
                self.hold_ends[event.group, event.member].append((event.time, event.gateway))
            elif isinstance(event, DeletionAsked):
                self._deletions.append(event)

    def violation(self, rule: str, key: RecordKey, text: str) -> Violation:
        return Violation(rule, f"{key}: {text}", self.excerpt(key))

    def excerpt(self, key: RecordKey) -> list[str]:
        """What happened to one record, and the faults."""
        acknowledge_ids = {sent.event.acknowledge_id for sent in self.sent[key]}
        lines = [describe(event) for event in self.events if _concerns(event, key, acknowledge_ids)]
        if len(lines) > EXCERPT_LINES:
            lines = [*lines[: EXCERPT_LINES // 2], "...", *lines[-EXCERPT_LINES // 2 :]]
        return lines

    def deliverable(self) -> Iterator[RecordKey]:
        """Every record of the logs that a group has to come to an end with."""
        for group in self.expected.groups:
            committed_only = group in self.expected.committed_groups
            for partition, records in self.expected.logs.items():
                for record in records:
                    if record.committed or not committed_only:
                        yield RecordKey(group, partition, record.offset)

    def is_deleted(self, partition: int, offset: int) -> bool:
        """Whether the log starts behind the offset at the end."""
        return offset < self.expected.log_starts.get(partition, 0)

    def may_be_deleted(self, key: RecordKey, time: float) -> bool:
        """Whether the log may have dropped the record by then: it had at the end, and something can have deleted it.

        That is a DeleteRecords that was sent, or retention, when enough bytes had been produced behind the record.
        """
        if not self.is_deleted(key.partition, key.offset):
            return False
        is_asked = any(
            event.sent_at <= time and event.partition == key.partition and event.offset > key.offset
            for event in self._deletions
        )
        if is_asked or self.expected.retention_bytes < 0:
            return is_asked
        log_end = self.expected.log_ends[key.partition]
        return self._retention.can_have_deleted(key.partition, key.offset, time, log_end)

    @cached_property
    def _retention(self) -> Retention:
        return Retention(self.events, self.expected.logs, self.expected.retention_bytes)

    def highest_count(self, key: RecordKey) -> int:
        """The highest delivery count with which the record was acquired; 0 where it never was."""
        return max((event.delivery_count for event in self.given(key)), default=0)

    def given(self, key: RecordKey) -> Sequence[Acquired | Delivered]:
        """What leaders gave of the record: its acquisitions, or where nobody saw these, its deliveries."""
        return self.acquired[key] if self.expected.is_tapped else self.deliveries[key]


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
