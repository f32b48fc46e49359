"""Rules of acquisition, judged by what each leader knew: one holder at a time, and counts that grow by one.

A leader's *tenure* over a share-partition begins when a share coordinator answers its read of the stored state, and
ends with the next such answer. Within one tenure the leader knows every acquisition, so that it may give a record to
somebody else only for a cause that it knows too:

- the lock ran out: by the leader's clock, the lock duration has passed since the fetch that acquired the record
  arrived, and since the newest renewal that was confirmed;
- a RELEASE of the record by its holder arrived, and was not refused;
- the holder's session was released, or its gateway is gone from the catalog that the leader got;
- the answer of the fetch was lost, and the gateway gave it back (then the delivery does not count).

A new tenure forgets who holds what. The same leader epoch may begin one only where nobody holds a record any more, or
where a write's outcome is unknown, the partition moves, or an administrator replaced the state. Another life of a
leader needs a higher leader epoch, and the former one acquires nothing from then on. Counts go on from what was stored.

An acknowledgement that is confirmed came from the holder: it was given the record, nobody was given it afterwards, and
its lock had not run out. An ACCEPT or REJECT that is confirmed ends the record: no acquisition has a higher delivery
count than the one that it ended, in the same tenure or in one that reads the state afterwards. An acknowledgement of a
record that the log has dropped is confirmed and ends nothing.

No rule is ever off: a fault is no cause by itself, only what it makes known to the leader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType, RecordState
from support.simulation.evidence import ENDS, NEVER, NOT_APPLIED, Evidence, RecordKey, Violation
from support.simulation.history import (
    AcknowledgeArrived,
    AcknowledgeEnded,
    Acquired,
    Event,
    FaultEvent,
    GatewaysSeen,
    PartitionTaken,
    Run,
    SessionReleased,
    StateLoaded,
    StateWriteUnconfirmed,
    describe,
)

Place = tuple[str, int]
"""Group and partition."""

WITHOUT_EFFECT = (*NOT_APPLIED, ErrorCode.KAFKA_STORAGE_ERROR)
"""Error codes of a leader after which an acknowledgement changed nothing in the same tenure."""
ENDED_STATES = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class _Hold(NamedTuple):
    """One acquisition of one record."""

    event: Acquired
    acquired_from: float
    """The earliest time at which it can have been acquired."""


class _Acknowledged(NamedTuple):
    time: float
    call: int
    gateway: str
    delivered_fetch_number: int
    type: int


@dataclass(slots=True)
class _Tenure:
    """See the module's text."""

    leader: str
    leader_epoch: int
    loaded_at: float
    state_epoch: int = -1
    start_offset: int = 0
    asked_at: float = -1.0
    """When the leader sent the read that it begins with."""
    counts: dict[int, int] = field(default_factory=dict)
    """Stored delivery counts by offset; others are 0."""
    ended: dict[int, None] = field(default_factory=dict)
    """Offsets that were stored as Acknowledged or Archived."""
    holds: dict[int, list[_Hold]] = field(default_factory=lambda: defaultdict(list))
    causes: list[float] = field(default_factory=list)
    """When the leader got a reason to give the share-partition up without ending each hold."""


class _End(NamedTuple):
    """A confirmed ACCEPT or REJECT of one record."""

    tenure: _Tenure
    arrived: AcknowledgeArrived
    confirmed_at: float
    delivery_count: float
    """The delivery count of the acquisition that it ended; infinite where the log may have dropped the record before,
    so that it ended nothing."""

    def forbids(self, tenure: _Tenure, hold: _Hold) -> bool:
        """Whether the acquisition contradicts it, by what the leader of this tenure knew."""
        if tenure is self.tenure:
            return hold.event.delivery_count > self.delivery_count or hold.acquired_from > self.confirmed_at
        is_read = self.confirmed_at <= tenure.asked_at and tenure.state_epoch == self.tenure.state_epoch
        return is_read and hold.event.delivery_count > self.delivery_count


class HolderRules:
    """`violations` applies all rules of the module's text in one pass over the history."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._lock_ms = round(evidence.expected.lock_duration_s * 1000)
        self._tenures: dict[Place, dict[str, _Tenure]] = defaultdict(dict)
        self._newest: dict[Place, _Tenure] = {}
        self._acknowledged: dict[tuple[str, str, RecordKey], list[_Acknowledged]] = defaultdict(list)
        """By leader, member and record."""
        self._renewed: dict[tuple[str, str, RecordKey], list[_Acknowledged]] = defaultdict(list)
        """Likewise: what was to be renewed."""
        self._ends: dict[RecordKey, list[_End]] = defaultdict(list)
        self._confirmed: dict[tuple[int, int], float] = {}
        """When calls and partitions were answered without an error."""
        self._refused: dict[tuple[int, int], None] = {}
        """Calls and partitions whose acknowledgements certainly changed nothing."""
        self._arrived: dict[tuple[int, int], AcknowledgeArrived] = {}
        self._releases: dict[tuple[str, str, str], list[SessionReleased]] = defaultdict(list)
        """By leader, group and member."""
        self._gateways: dict[str, list[GatewaysSeen]] = defaultdict(list)

    def violations(self) -> Iterator[Violation]:
        for event in self._evidence.events:  # an answer may come after what it decides
            if isinstance(event, AcknowledgeEnded) and event.error_code in WITHOUT_EFFECT:
                self._refused[event.call, event.partition] = None
            elif isinstance(event, AcknowledgeEnded) and event.error_code == ErrorCode.NONE:
                self._confirmed[event.call, event.partition] = event.time
        for event in self._evidence.events:
            if isinstance(event, Acquired):
                yield from self._acquire(event)
            elif isinstance(event, StateLoaded):
                yield from self._load(event)
            elif isinstance(event, AcknowledgeEnded):
                yield from self._end(event)
            else:
                self._learn(event)
        yield from self._gaps()

    def _learn(self, event: Event) -> None:
        """Notes what a leader got to know."""
        if isinstance(event, AcknowledgeArrived):
            self._arrived[event.call, event.partition] = event
            for run, kind in zip(event.runs, event.types, strict=True):
                for key in _keys(event, (run,)):
                    self._acknowledged[event.leader, event.member, key].append(_acknowledged(event, kind))
            for key in _keys(event, event.renewed):
                self._renewed[event.leader, event.member, key].append(_acknowledged(event, AcknowledgeType.RENEW))
        elif isinstance(event, SessionReleased):
            self._releases[event.leader, event.group, event.member].append(event)
        elif isinstance(event, GatewaysSeen):
            self._gateways[event.leader].append(event)
        elif isinstance(event, StateWriteUnconfirmed | PartitionTaken | FaultEvent):
            self._give_up(event)

    def _give_up(self, event: StateWriteUnconfirmed | PartitionTaken | FaultEvent) -> None:
        """Notes that a leader has a reason to give share-partitions up."""
        for place, tenures in self._tenures.items():
            for tenure in tenures.values():
                if isinstance(event, FaultEvent):
                    concerns = event.name == "registered" and tenure.leader.partition("#")[0] in event.hosts
                else:
                    is_place = event.group in ("", place[0]) and event.partition == place[1]
                    concerns = is_place and event.leader in ("", tenure.leader)
                if concerns:
                    tenure.causes.append(event.time)

    # Tenures

    def _load(self, event: StateLoaded) -> Iterator[Violation]:
        place = (event.group, event.partition)
        before = self._tenures[place].get(event.leader)
        if before is not None and event.sent_at < before.asked_at:
            return  # its stream was cut and it arrives late: the leader asked again since, and hears no answer to it
        newest = self._newest.get(place)
        if newest is not None and newest.leader != event.leader and event.leader_epoch <= newest.leader_epoch:
            text = f"{place[0]}/{place[1]}: {event.leader} begins with leader epoch {event.leader_epoch}, "
            yield Violation("two leaders", f"{text}{newest.leader} has {newest.leader_epoch}", [describe(event)])
        if before is not None and before.leader_epoch == event.leader_epoch and not before.causes:
            yield from self._forgotten_holds(place, before, event)
        tenure = _Tenure(
            event.leader, event.leader_epoch, event.time, event.state_epoch, event.start_offset, event.sent_at
        )
        for first, last, state, count in event.batches:
            for offset in range(first, last + 1):
                tenure.counts[offset] = count
                if state in ENDED_STATES:
                    tenure.ended[offset] = None
        self._tenures[place][event.leader] = tenure
        if newest is None or event.leader_epoch >= newest.leader_epoch:
            self._newest[place] = tenure

    def _forgotten_holds(self, place: Place, before: _Tenure, event: StateLoaded) -> Iterator[Violation]:
        for offset, holds in before.holds.items():
            key = RecordKey(*place, offset)
            if not self._has_ended(key, holds[-1], event.sent_at):
                text = f"{describe(holds[-1].event)}, and the leader read the state again at {event.sent_at:.4f}"
                yield self._evidence.violation("a lock was forgotten", key, text)
                return

    # Acquisitions

    def _acquire(self, event: Acquired) -> Iterator[Violation]:
        place = (event.group, event.partition)
        arrived_at = event.sent_at if event.arrived_at < 0 else event.arrived_at
        tenure = self._tenures[place].get(event.leader)
        if tenure is None:
            if event.leader:
                yield Violation("acquired before its state was loaded", describe(event))
            tenure = self._tenures[place][event.leader] = _Tenure(event.leader, -1, 0.0)
        newest = self._newest.setdefault(place, tenure)
        if newest is not tenure and newest.loaded_at < arrived_at:
            text = f"{newest.leader} has been its leader since {newest.loaded_at:.4f}: {describe(event)}"
            yield Violation("acquired by a former leader", text)
        hold = _Hold(event, arrived_at)
        for offset in range(event.run[0], event.run[1] + 1):
            key = RecordKey(event.group, event.partition, offset)
            if offset < tenure.start_offset or offset in tenure.ended:
                text = f"its end was stored when {tenure.leader} loaded it at {tenure.loaded_at:.4f}: {describe(event)}"
                yield self._evidence.violation("delivered after its end was stored", key, text)
            yield from self._against_others(key, tenure, hold)
            for end in self._ends[key]:
                yield from self._against_end(key, end, tenure, hold)
            tenure.holds[offset].append(hold)

    def _against_others(self, key: RecordKey, tenure: _Tenure, hold: _Hold) -> Iterator[Violation]:
        count = hold.event.delivery_count
        stored = tenure.counts.get(key.offset, 0)
        if count <= stored:
            text = f"{count} after {stored} was stored: {describe(hold.event)}"
            yield self._evidence.violation("delivery count does not grow", key, text)
        for other in tenure.holds.get(key.offset, ()):
            # Answers may come in another order than the acquisitions: counts tell which one was first.
            is_later = other.event.delivery_count > count
            first, second = (hold, other) if is_later else (other, hold)
            if other.event.delivery_count == count:
                if not (
                    self._is_taken_back(key, first, second.event.time)
                    or self._is_taken_back(key, second, hold.event.time)
                ):
                    text = f"{count} twice: {describe(other.event)} and {describe(hold.event)}"
                    yield self._evidence.violation("delivery count does not grow", key, text)
                continue
            if not self._has_ended(key, first, second.event.time, is_free=True):
                text = f"held twice: {describe(first.event)} and {describe(second.event)}"
                yield self._evidence.violation("two holders", key, text)

    def _against_end(self, key: RecordKey, end: _End, tenure: _Tenure, hold: _Hold) -> Iterator[Violation]:
        if end.forbids(tenure, hold):
            text = f"{describe(end.arrived)} was confirmed at {end.confirmed_at:.4f}: {describe(hold.event)}"
            yield self._evidence.violation("acquired after its confirmed end", key, text)

    def _gaps(self) -> Iterator[Violation]:
        """Where a leader is the newest until the end, every delivery that it counted was answered to somebody."""
        for place, tenure in self._newest.items():
            for offset, holds in tenure.holds.items():
                stored = tenure.counts.get(offset, 0)
                seen = {hold.event.delivery_count for hold in holds}
                missing = set(range(stored + 1, max(seen))) - seen
                if tenure.leader and missing:
                    text = f"{sorted(seen)} since the state with count {stored} was loaded at {tenure.loaded_at:.4f}"
                    yield self._evidence.violation("a delivery was counted twice", RecordKey(*place, offset), text)

    # Causes

    def _has_ended(
        self, key: RecordKey, hold: _Hold, until: float, *, but_for_call: int = -1, is_free: bool = False
    ) -> bool:
        """Whether the leader had a cause, at the latest at `until`, to take the record from its holder.

        `is_free`: a cause to give it to someone else, which an ACCEPT or REJECT is not, with whatever outcome.
        """
        event, shown_ms = hold.event, self._evidence.expected.shown_ms
        locked_at = hold.acquired_from
        for one in self._renewed[event.leader, event.member, key]:
            if self._is_of(one, hold) and (one.call, key.partition) in self._confirmed and one.time <= until:
                if shown_ms(event.leader, one.time) - shown_ms(event.leader, locked_at) >= self._lock_ms:
                    return True  # it came too late for this acquisition, and was of a later one of the same member
                locked_at = max(locked_at, one.time)
        if shown_ms(event.leader, until) - shown_ms(event.leader, locked_at) >= self._lock_ms:
            return True
        for one in self._acknowledged[event.leader, event.member, key]:
            is_refused = (one.call, key.partition) in self._refused or one.call == but_for_call
            is_cause = not is_refused and not (is_free and one.type in ENDS)
            if self._is_of(one, hold) and is_cause and one.time <= until:
                return True
        return self._session_ended(key, hold, until) or self._gateway_is_gone(hold, until)

    @staticmethod
    def _is_of(one: _Acknowledged, hold: _Hold) -> bool:
        """Whether the request may be about this acquisition."""
        event = hold.event
        is_of_this = one.gateway == event.gateway and one.delivered_fetch_number >= event.fetch_number
        return is_of_this and hold.acquired_from <= one.time

    def _session_ended(self, key: RecordKey, hold: _Hold, until: float) -> bool:
        event = hold.event
        for release in self._releases[event.leader, event.group, event.member]:
            if release.gateway != event.gateway or not hold.acquired_from <= release.time <= until:
                continue
            if release.partitions and key.partition not in release.partitions:
                continue
            if release.lost_fetch_numbers:
                if event.fetch_number in release.lost_fetch_numbers:
                    return True
            elif not release.last_fetch_number or event.fetch_number <= release.last_fetch_number:
                return True
        return False

    def _gateway_is_gone(self, hold: _Hold, until: float) -> bool:
        event = hold.event
        return any(
            event.gateway not in seen.gateways
            for seen in self._gateways[event.leader]
            if hold.acquired_from <= seen.time <= until
        )

    def _is_taken_back(self, key: RecordKey, hold: _Hold, until: float) -> bool:
        event = hold.event
        return any(
            release.gateway == event.gateway
            and event.fetch_number in (*release.lost_fetch_numbers, *release.undelivered_fetch_numbers)
            for release in self._releases[event.leader, event.group, event.member]
            if release.time <= until and (not release.partitions or key.partition in release.partitions)
        )

    # Acknowledgements

    def _end(self, event: AcknowledgeEnded) -> Iterator[Violation]:
        """An acknowledgement is not refused while its sender holds all that it names, by what the leader knew."""
        arrived = self._arrived.get((event.call, event.partition))
        tenure = self._tenures[event.group, event.partition].get(event.leader)
        if tenure is not None and event.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            tenure.causes.append(event.time)  # also of a write that could not be sent at all, for want of an owner
        if event.error_code == ErrorCode.NONE and arrived is not None and tenure is not None:
            yield from self._by_another_than_the_holder(tenure, arrived, event.time)
            yield from self._ended(tenure, arrived, event.time)
        if event.error_code != ErrorCode.INVALID_RECORD_STATE or arrived is None or tenure is None:
            return
        is_given_up = tenure.loaded_at > arrived.time or any(time <= event.time for time in tenure.causes)
        if is_given_up or self._newest[event.group, event.partition] is not tenure:
            return
        keys = list(_keys(arrived, (*arrived.runs, *arrived.renewed)))
        if keys and all(self._is_held(key, tenure, arrived, event.time) for key in keys):
            yield self._evidence.violation("acknowledgement refused without a reason", keys[0], describe(arrived))

    def _is_held(self, key: RecordKey, tenure: _Tenure, arrived: AcknowledgeArrived, until: float) -> bool:
        return any(
            hold.event.member == arrived.member
            and hold.event.gateway == arrived.gateway
            and hold.event.fetch_number <= arrived.delivered_fetch_number
            and hold.event.time <= arrived.time
            and not self._has_ended(key, hold, until, but_for_call=arrived.call)
            for hold in tenure.holds.get(key.offset, ())
        )

    def _by_another_than_the_holder(
        self, tenure: _Tenure, arrived: AcknowledgeArrived, confirmed_at: float
    ) -> Iterator[Violation]:
        """What the log has dropped is ignored in an acknowledgement; who held it does not matter any more."""
        if tenure.loaded_at > arrived.time:
            return
        for key in _keys(arrived, (*arrived.runs, *arrived.renewed)):
            holds = tenure.holds.get(key.offset, ())
            mine = [hold for hold in holds if self._may_be_held_by(key, hold, arrived)]
            newest = max((hold.event.time for hold in mine), default=-1.0)
            taken = any(newest < hold.acquired_from and hold.event.time < arrived.time for hold in holds)
            if (taken or not mine) and not self._evidence.may_be_deleted(key, confirmed_at):
                text = (
                    f"{describe(arrived)} was confirmed; the record was acquired by {[h.event.member for h in holds]}"
                )
                yield self._evidence.violation("acknowledged without holding it", key, text)
                return

    def _ended(self, tenure: _Tenure, arrived: AcknowledgeArrived, confirmed_at: float) -> Iterator[Violation]:
        """Notes the records that a confirmed acknowledgement ended; no acquisition of the tenure contradicts it."""
        if tenure.loaded_at > arrived.time:
            return
        for run, kind in zip(arrived.runs, arrived.types, strict=True):
            for key in _keys(arrived, (run,)) if kind in ENDS else ():
                holds = tenure.holds.get(key.offset, ())
                mine = [hold.event.delivery_count for hold in holds if self._may_be_held_by(key, hold, arrived)]
                is_gone = not mine or self._evidence.may_be_deleted(key, confirmed_at)
                end = _End(tenure, arrived, confirmed_at, NEVER if is_gone else max(mine))
                self._ends[key].append(end)
                for hold in holds:
                    yield from self._against_end(key, end, tenure, hold)

    def _may_be_held_by(self, key: RecordKey, hold: _Hold, arrived: AcknowledgeArrived) -> bool:
        """Whether the sender was given the record by this acquisition, and its lock may still last."""
        event = hold.event
        one = _acknowledged(arrived, 0)
        if event.member != arrived.member or not self._is_of(one, hold):
            return False
        locked_until = event.time
        for renewal in self._renewed[event.leader, event.member, key]:
            if self._is_of(renewal, hold) and renewal.time <= arrived.time:
                locked_until = max(
                    locked_until, self._confirmed.get((renewal.call, key.partition), arrived.time), renewal.time
                )
        shown_ms = self._evidence.expected.shown_ms
        return shown_ms(event.leader, arrived.time) - shown_ms(event.leader, locked_until) <= self._lock_ms


def _acknowledged(event: AcknowledgeArrived, kind: int) -> _Acknowledged:
    return _Acknowledged(event.time, event.call, event.gateway, event.delivered_fetch_number, kind)


def _keys(event: AcknowledgeArrived, runs: Sequence[Run]) -> Iterator[RecordKey]:
    for first, last in runs:
        for offset in range(first, last + 1):
            yield RecordKey(event.group, event.partition, offset)
