"""A seed with the delivery history on, and whether what it tells agrees with what members and the network saw.

What the history tells is replayed offset by offset, in the order that the contract gives its readers
(`kshare_core.delivery_history`): by leader epoch, incarnation and sequence. A former leader's last events may be
appended after the first ones of the next leader; those of one leader are in order in the topic too. A loss of events is
allowed only where a leader ended (after its newest event); what comes after one begins with `loaded`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kshare_core.delivery_history import (
    HISTORY_TOPIC,
    REASON_NOT_DELIVERED,
    DeliveryEvent,
    EventType,
    HistoryRecord,
    decode_history_record,
)
from kshare_core.states import AcknowledgeType
from support.simulation.evidence import Evidence, Expectations, RecordKey
from support.simulation.faults import Fault
from support.simulation.history import Acquired
from support.simulation.kafka_clients.admin import Admin
from support.simulation.mutations import Mutation
from support.simulation.plan import Plan
from support.simulation.scenario import TOPIC, Account, SeedRun

PUBLISHED_WITHIN_S = 30.0
"""After the end of all faults: pauses between attempts to publish are 12 s at most."""
ON = {"kshare.delivery.history.enable": "true", "kshare.delivery.history.topic.num.partitions": "2"}

Place = tuple[str, int]
"""Group and partition."""
_ACKNOWLEDGED_AS = {
    EventType.ACCEPTED: AcknowledgeType.ACCEPT,
    EventType.REJECTED: AcknowledgeType.REJECT,
}


class HistoryRun(SeedRun):
    """A run of a plan with the history on; `records` are its, in order, when the run is over."""

    def __init__(self, plan: Plan, mutation: Mutation | None = None, *, faults: Sequence[Fault] | None = None) -> None:
        shape = replace(plan.shape, configs={**plan.shape.configs, **ON})
        super().__init__(replace(plan, shape=shape), mutation, faults=faults)
        self.records: list[HistoryRecord] = []
        self.account = Account()
        self.names: dict[str, str] = {}
        """Of members, by their ids."""

    def _add_member(self, group: str) -> None:
        super()._add_member(group)
        member = self.members[group][-1]
        self.names[member.member_id] = member.name

    async def _read_everything(self, admin: Admin, account: Account) -> None:
        await super()._read_everything(admin, account)
        self.account = account
        await asyncio.sleep(PUBLISHED_WITHIN_S)
        for partition in range(await admin.partition_count(HISTORY_TOPIC)):
            found = await admin.read_log(HISTORY_TOPIC, partition)
            self.records.extend(decode_history_record(record.value.encode()) for record in found)


@dataclass(slots=True)
class _Offset:
    """What the history says of one record."""

    delivery_count: int = 0
    holder: str = ""
    is_done: bool = False


@dataclass(slots=True)
class _Replay:
    """Of one share-partition."""

    start_offset: int = -1
    state_epoch: int = -1
    source: tuple[int, int] = (-1, -1)
    """Leader and incarnation."""
    next_sequence: dict[tuple[int, int], int] = field(default_factory=dict)
    offsets: dict[int, _Offset] = field(default_factory=dict)
    accepted: dict[int, str] = field(default_factory=dict)
    done: dict[int, EventType] = field(default_factory=dict)


class HistoryRules:
    """Replays the records; `problems` are what is wrong with them, alone and beside the evidence."""

    def __init__(
        self, history: Sequence[HistoryRecord], names: Mapping[str, str], evidence: Evidence, *, may_lose: bool
    ) -> None:
        """`history` in the order of the topic; `names` of members, by their ids."""
        self._names = names
        self._evidence = evidence
        self._may_lose = may_lose
        self._replays: dict[Place, _Replay] = {}
        self.acquired: set[tuple[RecordKey, str, int]] = set()
        self.problems: list[str] = []
        self.counts: dict[EventType, int] = {}
        records = [record for record in history if record.topic == TOPIC]
        self._check_order(records)
        for record in sorted(records, key=lambda one: (one.leader_epoch, one.incarnation, one.sequence)):
            self._read(record)
        self.problems.extend(self._missing())

    def _check_order(self, records: Sequence[HistoryRecord]) -> None:
        """In the topic, too, the events of one incarnation are in order; only what was there before comes again."""
        ends: dict[tuple[str, int, int, int], int] = {}
        seen: dict[tuple[tuple[str, int, int, int], int, int], None] = {}
        for record in records:
            source = (record.group, record.partition, record.leader, record.incarnation)
            end = record.sequence + len(record.events)
            if record.sequence < ends.get(source, 0) and (source, record.sequence, end) not in seen:
                self.problems.append(f"{source}: {record} comes behind {ends[source]}")
            seen[source, record.sequence, end] = None
            ends[source] = max(ends.get(source, 0), end)

    def _read(self, record: HistoryRecord) -> None:
        place = (record.group, record.partition)
        replay = self._replays.setdefault(place, _Replay())
        source = (record.leader, record.incarnation)
        expected = replay.next_sequence.get(source, 0)
        if record.sequence < expected:  # sent twice
            return
        is_new = source != replay.source or record.sequence > expected
        if record.sequence > expected and not self._may_lose:
            self.problems.append(f"{place}: events {expected} to {record.sequence - 1} are missing")
        if is_new and record.events[0].event is not EventType.LOADED:
            self.problems.append(f"{place}: after a loss, or from another leader, comes {record.events[0]}")
        replay.source = source
        replay.next_sequence[source] = record.sequence + len(record.events)
        for event in record.events:
            self.counts[event.event] = self.counts.get(event.event, 0) + 1
            for problem in self._apply(place, replay, record, event):
                self.problems.append(f"{place}: {problem}: {event}")

    def _apply(self, place: Place, replay: _Replay, record: HistoryRecord, event: DeliveryEvent) -> Iterator[str]:
        if event.event is EventType.LOADED:
            yield from self._load(replay, record, event)
        elif event.event is EventType.UNLOADED:
            for one in replay.offsets.values():
                one.holder = ""
        elif event.event is EventType.START_OFFSET_MOVED:
            assert event.start_offset is not None
            if event.start_offset <= replay.start_offset:
                yield f"the start offset was {replay.start_offset}"
            for offset in range(replay.start_offset, event.start_offset):
                if not replay.offsets.setdefault(offset, _Offset()).is_done:
                    yield f"{offset} is not done"
            replay.start_offset = event.start_offset
        else:
            assert event.first_offset is not None and event.last_offset is not None
            for offset in range(event.first_offset, event.last_offset + 1):
                key = RecordKey(place[0], place[1], offset)
                yield from self._apply_to(key, replay, replay.offsets.setdefault(offset, _Offset()), event)

    def _load(self, replay: _Replay, record: HistoryRecord, event: DeliveryEvent) -> Iterator[str]:
        assert event.start_offset is not None and event.runs is not None
        if record.state_epoch == replay.state_epoch and event.start_offset < replay.start_offset:
            yield f"the start offset was {replay.start_offset}"
        replay.state_epoch, replay.start_offset = record.state_epoch, event.start_offset
        replay.offsets = {}
        for run in event.runs:
            for offset in range(run.first_offset, run.last_offset + 1):
                is_done = run.state in ("Acknowledged", "Archived")
                replay.offsets[offset] = _Offset(run.delivery_count, is_done=is_done)
        for offset in replay.accepted:
            if offset >= event.start_offset and not replay.offsets.get(offset, _Offset()).is_done:
                yield f"{offset} was accepted"

    def _apply_to(self, key: RecordKey, replay: _Replay, one: _Offset, event: DeliveryEvent) -> Iterator[str]:
        kind, member = event.event, event.member_id or ""
        assert event.delivery_count is not None
        if kind is EventType.ACQUIRED:
            if one.is_done or one.holder or event.delivery_count != one.delivery_count + 1:
                yield f"{key.offset} was {one}"
            if event.delivery_count > self._evidence.expected.delivery_count_limit:
                yield f"{key.offset} was delivered too often"
            one.holder, one.delivery_count = member, event.delivery_count
            self.acquired.add((key, member, event.delivery_count))
        elif kind in (EventType.ACCEPTED, EventType.REJECTED, EventType.RELEASED, EventType.EXPIRED):
            if one.holder != member or one.is_done or event.delivery_count != one.delivery_count:
                yield f"{key.offset} was {one}"
            yield from self._was_asked_for(key, event)
            one.holder = ""
            one.is_done = kind is EventType.ACCEPTED
            if event.reason == REASON_NOT_DELIVERED:
                one.delivery_count -= 1
            if kind is EventType.ACCEPTED:
                replay.accepted[key.offset] = member
                replay.done[key.offset] = kind
        elif kind is EventType.ARCHIVED:
            if one.is_done:
                yield f"{key.offset} was {one}"
            one.holder, one.is_done = "", True
            replay.done[key.offset] = kind

    def _was_asked_for(self, key: RecordKey, event: DeliveryEvent) -> Iterator[str]:
        wanted = _ACKNOWLEDGED_AS.get(event.event)
        if wanted is not None and not any(
            sent.event.type == wanted
            and sent.event.member == self._names[event.member_id or ""]
            and sent.may_have_effect
            for sent in self._evidence.sent[key]
        ):
            yield f"nobody asked for it at {key.offset}"

    def _missing(self) -> Iterator[str]:
        """Where nothing may be lost: all that clients and the network saw is told, and every record's end."""
        if self._may_lose:
            return
        for key, all_sent in self._evidence.sent.items():
            told = self._replays[key.group, key.partition].accepted
            has_confirmed = any(sent.confirmed and sent.event.type == AcknowledgeType.ACCEPT for sent in all_sent)
            if has_confirmed and key.offset not in told and not self._evidence.is_deleted(key.partition, key.offset):
                yield f"{key} was accepted, and nobody tells it"
        yield from self._untold()

    def _untold(self) -> Iterator[str]:
        for event in self._evidence.events:
            if isinstance(event, Acquired):
                for offset in range(event.run[0], event.run[1] + 1):
                    key = RecordKey(event.group, event.partition, offset)
                    if (key, event.member, event.delivery_count) not in self.acquired:
                        yield f"{key} was acquired by {event.member}, and nobody tells it"
        for key in self._evidence.deliverable():
            if key.offset not in self._replays[key.group, key.partition].done:
                yield f"{key}: nobody tells its end"


def problems_of(run: HistoryRun, *, may_lose: bool) -> HistoryRules:
    """The rules applied to a run that is over."""
    expectations = Expectations(
        groups=run.plan.groups,
        logs=run.account.logs,
        delivery_count_limit=run.plan.delivery_count_limit,
        lock_duration_s=run.plan.lock_duration_ms / 1000,
        log_starts=run.account.log_starts,
        committed_groups=run.plan.committed_groups,
    )
    evidence = Evidence(run.cluster.history, expectations)
    return HistoryRules(run.records, run.names, evidence, may_lose=may_lose)
