"""Rules of the share coordinators: a leader reads the state that was confirmed as stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.simulation.evidence import Evidence, RecordKey, Violation
from support.simulation.history import StateLoaded, StateWriteArrived, StateWritten, describe

Place = tuple[str, int]
Batches = tuple[tuple[int, int, int, int], ...]
Stored = tuple[int, int]
"""Delivery state and delivery count of one record."""


@dataclass(slots=True)
class _State:
    """What was written about a share-partition in one state epoch."""

    state_epoch: int = -1
    starts: list[tuple[float, int]] = field(default_factory=list)
    """When a start offset was confirmed, and which."""
    confirmed: dict[int, list[tuple[float, Stored]]] = field(default_factory=lambda: defaultdict(list))
    """By offset: when a write was confirmed, and what it said."""
    arrived: dict[int, list[Stored]] = field(default_factory=lambda: defaultdict(list))
    """By offset: what every write said that arrived, with or without an answer."""
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    """Number of an event, and the leader epoch of the read or write that was answered without an error then."""


class StoredStateRules:
    """A read finds what was confirmed before it arrived, or a write without an answer that goes before it.

    With the kafka engine it finds what was confirmed before it was sent: a share coordinator that was paused may answer
    it although another one owns the state partition meanwhile. Its reader knew of no write by the other.

    Of all writes that took effect, the one with the highest delivery count is stored, then the one with the highest
    delivery state (Kafka's PersisterStateBatchCombiner), whatever their order. One without an answer may have taken
    effect or not. A read or write that was answered fences the leaders of older epochs: a write of theirs that arrives
    afterwards is refused.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._states: dict[Place, _State] = defaultdict(_State)
        self._numbers: dict[tuple[int, int], int] = {}
        """Of writes, by call and partition."""

    def violations(self) -> Iterator[Violation]:
        for number, event in enumerate(self._evidence.events):
            if isinstance(event, StateWriteArrived):
                self._numbers[event.call, event.partition] = number
                state = self._state(event.group, event.partition, event.state_epoch)
                for offset, stored in _by_offset(event.batches):
                    state.arrived[offset].append(stored)
            elif isinstance(event, StateWritten):
                state = self._state(event.group, event.partition, event.state_epoch)
                state.starts.append((event.time, event.start_offset))
                arrival = self._numbers.get((event.call, event.partition), number)
                for offset, stored in _by_offset(event.batches):
                    state.confirmed[offset].append((event.time, stored))
                yield from _fenced(state, event, arrival)
                state.leader_epochs.append((number, event.leader_epoch))
            elif isinstance(event, StateLoaded):
                self._state(event.group, event.partition, event.state_epoch).leader_epochs.append(
                    (number, event.leader_epoch)
                )
                yield from self._compare(event)

    def _state(self, group: str, partition: int, state_epoch: int) -> _State:
        """A higher state epoch begins with nothing; what is said of a lower one does not matter any more."""
        state = self._states[group, partition]
        if state_epoch > state.state_epoch:
            state = self._states[group, partition] = _State(state_epoch)
        return state if state_epoch == state.state_epoch else _State()

    def _compare(self, event: StateLoaded) -> Iterator[Violation]:
        state = self._states[event.group, event.partition]
        if event.state_epoch != state.state_epoch:
            return
        since = event.sent_at if self._evidence.expected.switches_owners else event.arrived_at
        start_offset = max((start for time, start in state.starts if time <= since), default=-1)
        if event.start_offset < start_offset:
            text = f"{event.group}/{event.partition}: start offset {start_offset} was confirmed"
            yield Violation("a confirmed state was not stored", text, [describe(event)])
        found = dict(_by_offset(event.batches))
        for offset, all_confirmed in state.confirmed.items():
            before = [stored for time, stored in all_confirmed if time <= since]
            if offset < event.start_offset or not before:
                continue
            confirmed = max(before, key=_rank)
            possible = [stored for stored in state.arrived[offset] if _rank(stored) >= _rank(confirmed)]
            if found.get(offset) not in (confirmed, *possible):
                key = RecordKey(event.group, event.partition, offset)
                text = f"state and count {confirmed} were confirmed, {found.get(offset)} was read: {describe(event)}"
                yield self._evidence.violation("a confirmed state was not stored", key, text)
                return


def _rank(stored: Stored) -> tuple[int, int]:
    delivery_state, count = stored
    return count, delivery_state


def _fenced(state: _State, event: StateWritten, arrival: int) -> Iterator[Violation]:
    """An initialization has the leader epoch -1 and is not fenced."""
    newest = max((epoch for number, epoch in state.leader_epochs if number < arrival), default=-1)
    if -1 < event.leader_epoch < newest:
        text = f"{event.group}/{event.partition}: leader epoch {newest} was answered before the write arrived"
        yield Violation("a write of an older leader epoch was stored", text, [describe(event)])


def _by_offset(batches: Batches) -> Iterator[tuple[int, Stored]]:
    for first, last, delivery_state, count in batches:
        for offset in range(first, last + 1):
            yield offset, (delivery_state, count)
