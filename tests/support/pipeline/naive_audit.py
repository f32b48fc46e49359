"""The rules of the audit with one entry an offset, and loops over single offsets: the model of the audit of runs.

`audit_offsets` gives each finding once for each of its offsets, as (severity, rule, offset); -1 where it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kshare.audit.events import HistoryEvent

OPEN = ("available", "acquired", "unknown")
ENDS = {"accepted": "accepted", "rejected": "rejected", "released": "available", "expired": "available"}
LOG_REASONS = ("missing_in_log", "below_log_start")
STATES = {"Available": "available", "Acknowledged": "accepted", "Archiving": "archiving", "Archived": "archived"}


@dataclass(slots=True)
class Offset:
    state: str
    count: int = 0
    member: str | None = None
    reason: str | None = None
    said_by: str = ""
    """The kind of the event that brought it here."""
    loaded_archiving: bool = False

    @property
    def is_log_matter(self) -> bool:
        """Whether it only ended because the log does not have it, which need not be stored."""
        return self.state == "archived" and self.reason in LOG_REASONS


@dataclass(slots=True)
class NaiveAudit:
    limit: int
    findings: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    offsets: dict[int, Offset] = field(default_factory=dict)
    floor: int | None = None
    told_start: int | None = None
    behind: str = "unknown"
    may_have_reloaded: bool = False
    state_epoch: int | None = None
    last: HistoryEvent | None = None
    last_of: dict[tuple[int, int], int] = field(default_factory=dict)

    def fault(self, rule: str, offset: int = -1) -> None:
        self.findings["fault", rule, offset] += 1

    def unproven(self, rule: str, offset: int = -1) -> None:
        self.findings["unproven", rule, offset] += 1

    # The order of events

    def apply(self, event: HistoryEvent) -> None:
        last = self.last
        if last is not None and event[:3] == last[:3] and event.leader == last.leader:
            if event != last:
                self.fault("sequence_reused")
            return
        source = (event.leader, event.incarnation)
        follows = False
        lost = False
        if last is not None:
            same = source == (last.leader, last.incarnation)
            if not same and event.leader_epoch == last.leader_epoch:
                self.fault("two_leaders")
            if self.state_epoch is not None and event.state_epoch < self.state_epoch:
                self.fault("state_epoch_back")
            if event.sequence <= self.last_of.get(source, -1):
                self.fault("leader_epoch_back")
            lost = same and event.sequence != last.sequence + 1
            follows = same and not lost and event[3:5] == last[3:5] and event.leader_epoch == last.leader_epoch
        self.last, self.last_of[source] = event, event.sequence
        if self.state_epoch is None or event.state_epoch > self.state_epoch:
            self.begin_era(event.state_epoch)
        if not follows:
            self.something_is_missing(event, lost=lost)
        if event.problem is not None:
            self.fault("malformed")
            return
        self.change(event, follows=follows)

    def begin_era(self, state_epoch: int) -> None:
        self.count("reset")
        self.state_epoch = state_epoch
        self.offsets, self.floor, self.told_start, self.behind = {}, None, None, "unknown"
        self.may_have_reloaded = False

    def something_is_missing(self, event: HistoryEvent, *, lost: bool) -> None:
        open_offsets = [offset for offset in sorted(self.offsets) if self.offsets[offset].state in OPEN]
        named = range(open_offsets[0], max(self.offsets) + 1) if open_offsets else range(-1, 0)
        for offset in named:
            if lost:
                self.unproven("events_lost", offset)
            elif event.event != "loaded":
                self.unproven("not_loaded", offset)
        for one in self.offsets.values():
            if one.state == "acquired":
                one.count -= 1
            if one.state in OPEN:
                one.state, one.member = "unknown", None
        self.behind = "unknown"
        self.may_have_reloaded = True

    def change(self, event: HistoryEvent, *, follows: bool) -> None:
        if event.event == "loaded":
            self.loaded(event, follows=follows)
        elif event.event == "start_offset_moved":
            self.start_moved(event)
        elif event.event != "unloaded":
            for offset in self.reach(event):
                self.change_one(offset, event)

    def reach(self, event: HistoryEvent) -> Iterable[int]:
        """The offsets of the event, which are known from now on unless they are forgotten."""
        assert event.first_offset is not None and event.last_offset is not None
        if event.event == "acquired" and not 1 <= (event.delivery_count or 0) <= self.limit:
            for offset in range(event.first_offset, event.last_offset + 1):
                self.fault("delivery_count_limit", offset)
        begin = event.first_offset
        if self.floor is not None:
            for offset in range(event.first_offset, min(event.last_offset + 1, self.floor)):
                if event.event == "acquired":
                    self.fault("delivered_after_end", offset)
                elif event.event in ENDS or event.event == "renewed":
                    self.fault("ended_after_end", offset)
            begin = max(begin, self.floor)
            if begin > event.last_offset:
                return range(0)
            if not self.offsets:
                self.fill(self.floor, begin - 1, self.behind)
        if self.offsets:
            self.fill(begin, min(self.offsets) - 1, "unknown")
            self.fill(max(self.offsets) + 1, event.last_offset, self.behind)
        else:
            self.fill(begin, event.last_offset, self.behind)
        return range(begin, event.last_offset + 1)

    def fill(self, first: int, last: int, state: str) -> None:
        for offset in range(first, last + 1):
            self.offsets[offset] = Offset(state)

    # Events of one offset

    def change_one(self, offset: int, event: HistoryEvent) -> None:
        one = self.offsets[offset]
        if event.event == "acquired":
            self.acquired(offset, one, event)
        elif event.event in ENDS or event.event == "renewed":
            self.of_holder(offset, one, event)
        elif event.event == "archived":
            if not event.reason:
                self.fault("archived_without_reason", offset)
            if one.state in OPEN:
                self.offsets[offset] = Offset("archived", one.count, None, event.reason, event.event)
            elif one.state == "accepted" and event.reason not in LOG_REASONS:
                self.fault("ended_after_end", offset)
        elif event.event == "dead_lettered":
            at_limit = one.said_by in ("released", "expired") and event.reason == "delivery_count_limit"
            if one.state == "dead_lettered" and not one.loaded_archiving:
                self.fault("dead_lettered_twice", offset)
            elif one.state in ("acquired", "accepted") or (one.state == "available" and not at_limit):
                self.fault("dead_lettered_undue", offset)
            self.offsets[offset] = Offset("dead_lettered", one.count, None, event.reason, event.event)

    def acquired(self, offset: int, one: Offset, event: HistoryEvent) -> None:
        count = event.delivery_count
        assert count is not None
        if one.is_log_matter and self.may_have_reloaded:
            pass
        elif one.state == "accepted":
            self.fault("delivered_after_accept", offset)
        elif one.state not in OPEN:
            self.fault("delivered_after_end", offset)
        elif one.state == "acquired":
            self.fault("held_twice", offset)
        elif (one.state == "available" and count != one.count + 1) or (one.state == "unknown" and count <= one.count):
            self.fault("delivery_count", offset)
        self.offsets[offset] = Offset("acquired", count, event.member_id, None, event.event)

    def of_holder(self, offset: int, one: Offset, event: HistoryEvent) -> None:
        count = event.delivery_count
        assert count is not None
        if one.state not in OPEN:
            if not one.is_log_matter:
                twice = one.state == "accepted" and event.event == "accepted"
                self.fault("accepted_twice" if twice else "ended_after_end", offset)
            return
        if one.state == "available":
            self.fault("ended_unheld", offset)
        elif one.state == "unknown":
            if count <= one.count:
                self.fault("delivery_count", offset)
        else:
            if None not in (one.member, event.member_id) and one.member != event.member_id:
                self.fault("ended_by_another", offset)
            if count != one.count:
                self.fault("delivery_count", offset)
        after = ENDS.get(event.event, "acquired")
        count -= event.reason == "not_delivered"
        member = event.member_id if after == "acquired" else None
        self.offsets[offset] = Offset(after, count, member, event.reason, event.event)

    # The start offset

    def know_beginning(self, offset: int) -> None:
        if self.floor is None:
            if self.offsets:
                self.fill(offset, min(self.offsets) - 1, "unknown")
            self.floor = min([offset, *self.offsets])

    def start_moved(self, event: HistoryEvent) -> None:
        start = event.start_offset
        assert start is not None
        if self.told_start is not None and start < self.told_start:
            for offset in range(start, self.told_start):
                self.fault("start_offset_back", offset)
            return
        self.told_start = start
        self.know_beginning(start)
        assert self.floor is not None
        self.fill(max(self.offsets) + 1 if self.offsets else self.floor, start - 1, self.behind)
        for offset, one in self.offsets.items():
            if offset < start and one.state in OPEN:
                if one.state == "unknown":
                    self.unproven("unseen", offset)
                else:
                    self.fault("skipped", offset)
                self.offsets[offset] = Offset("done", one.count, None, None, event.event)

    def loaded(self, event: HistoryEvent, *, follows: bool) -> None:
        start = event.start_offset
        assert start is not None
        told = self.told_states(event, start)
        if told is None:
            self.fault("malformed")
            return
        if self.told_start is not None and start < self.told_start:
            passed = [self.offsets.get(offset) for offset in range(start, self.told_start)]
            if not all(one is not None and one.is_log_matter for one in passed):
                for offset in range(start, self.told_start):
                    self.fault("start_offset_back", offset)
        if self.floor is None and not self.offsets:
            self.floor = start
            for offset, (state, count) in told.items():
                self.take_over(offset, state, count, event)
        else:
            self.compare(start, told, event, follows=follows)
        self.told_start, self.behind, self.may_have_reloaded = start, "available", False

    @staticmethod
    def told_states(event: HistoryEvent, start: int) -> dict[int, tuple[str, int]] | None:
        told: dict[int, tuple[str, int]] = {}
        end = start
        for run in event.runs or ():
            if run.first_offset < end or run.last_offset < run.first_offset or run.state not in STATES:
                return None
            for offset in range(end, run.first_offset):
                told[offset] = ("available", 0)
            for offset in range(run.first_offset, run.last_offset + 1):
                told[offset] = (STATES[run.state], run.delivery_count)
            end = run.last_offset + 1
        return told

    def compare(self, start: int, told: dict[int, tuple[str, int]], event: HistoryEvent, *, follows: bool) -> None:
        begin = min(self.offsets) if self.offsets else self.floor
        assert begin is not None
        end = max(self.offsets) + 1 if self.offsets else begin
        self.fill(start, begin - 1, "unknown" if self.floor is None else "done")
        self.fill(end, max([start - 1, *told]), self.behind if follows else "unknown")
        for offset in sorted(self.offsets):
            state, count = told.get(offset, ("done", 0) if offset < start else ("available", 0))
            self.compare_one(offset, self.offsets[offset], state, count, event, follows=follows)
        self.know_beginning(start)

    def compare_one(
        self, offset: int, one: Offset, state: str, count: int, event: HistoryEvent, *, follows: bool
    ) -> None:
        if one.state not in OPEN:
            self.compare_ended(offset, one, state, count, event)
            return
        if state == "available":
            lowest = one.count - (one.state == "acquired")
            if count < lowest:
                self.fault("count_forgotten", offset)
            elif one.state != "unknown" and count > one.count:
                if follows:
                    self.fault("delivery_count", offset)
                else:
                    self.unproven("unseen", offset)
            self.take_over(offset, state, count, event)
            return
        came_back = one.state == "available" and one.said_by in ("released", "expired")
        if came_back and state == "archiving":
            pass
        elif follows and one.state == "available" and not (came_back and state == "archived"):
            self.fault("skipped", offset)
        else:
            self.unproven("unseen", offset)
        self.take_over(offset, state, one.count, event)

    def compare_ended(self, offset: int, one: Offset, state: str, count: int, event: HistoryEvent) -> None:
        is_back = state == "available"
        if one.is_log_matter:
            if is_back:
                self.take_over(offset, state, count, event)
            else:
                one.loaded_archiving = state == "archiving"
            return
        is_other = (one.state == "accepted" and state in ("archived", "archiving")) or (
            one.state not in ("accepted", "done") and state == "accepted"
        )
        if is_back or is_other:
            self.fault("end_forgotten", offset)
            self.take_over(offset, state, count if is_back else one.count, event)
        else:
            one.loaded_archiving = state == "archiving"

    def take_over(self, offset: int, state: str, count: int, event: HistoryEvent) -> None:
        archiving = state == "archiving"
        reason = "durable_state" if state in ("archived", "archiving") else None
        state = "archived" if archiving else state
        self.offsets[offset] = Offset(state, count, None, reason, event.event, archiving)

    # The account

    def count(self, open_as: str | None) -> None:
        for one in self.offsets.values():
            if one.state in OPEN:
                self.outcomes[open_as or one.state] += 1
            elif one.state == "archived":
                self.outcomes[f"archived: {one.reason or 'no reason'}"] += 1
            else:
                self.outcomes[one.state] += 1


def audit_offsets(events: Iterable[HistoryEvent], *, delivery_count_limit: int) -> NaiveAudit:
    """The audit of one share-partition's events, in any order."""
    audit = NaiveAudit(delivery_count_limit)
    for event in sorted(events, key=lambda event: event[:3]):
        audit.apply(event)
    for offset, one in audit.offsets.items():
        if one.state == "unknown":
            audit.unproven("unknown", offset)
    audit.count(None)
    return audit
