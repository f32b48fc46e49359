"""The audit of one share-partition: a pure machine that takes its events in order and names each fault.

Rules
- An offset is acquired only while it is Available, by one member, with a delivery count one higher than before and
  within the limit. An acquisition ends by one event (accepted, released, rejected, expired, archived), of that member
  and count.
- What was accepted, rejected or archived is never acquired or accepted again, and has at most one dead letter.
- The start offset and the epochs only move forwards; only a new state epoch (an administrator altered or deleted the
  offsets), and a truncation of the state after the log lost records, begin anew. The start offset passes nothing that
  has not ended.
- A `loaded` event agrees with all that was durable (`loaded_state`).

Events may be missing: some sequence numbers, or the last events of a crashed incarnation. Then open offsets are UNKNOWN
until an event shows their state, and rules apply to known offsets only. Ends stay known, because they were durable. So
the audit never reports a fault that lost events could explain. Offsets that no event explains are reported as unproven.

After a fault the machine continues with the state that the event has, so one fault is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare.audit.events import HistoryEvent, SharePartitionId
from kshare.audit.findings import FINDINGS_LIMIT, Finding, Outcome, Rule, Severity, SharePartitionAudit
from kshare.audit.loaded_state import (
    DURABLE_STATE,
    UNSTORED_REASONS,
    Change,
    Told,
    change_of,
    covering,
    is_durable,
    told_runs,
)
from kshare.audit.offset_runs import KnownRun, OffsetRuns, Standing
from kshare.audit.order import Continuity, OrderOfEvents
from kshare_core.delivery_history import REASON_DELIVERY_COUNT_LIMIT, REASON_NOT_DELIVERED

DELIVERY_COUNT_LIMIT = 10
"""The default limit: the highest that a group may set (group.share.max.delivery.count.limit)."""
RUNS_LIMIT = 50_000
"""UNKNOWN runs with so many later runs are given up, because a share-partition's window is smaller."""

_OUTCOME_OF_OPEN = {
    Standing.AVAILABLE: Outcome.AVAILABLE,
    Standing.ACQUIRED: Outcome.ACQUIRED,
    Standing.UNKNOWN: Outcome.UNKNOWN,
}
_STANDING_AFTER = {
    "accepted": Standing.ACCEPTED,
    "rejected": Standing.REJECTED,
    "released": Standing.AVAILABLE,
    "expired": Standing.AVAILABLE,
    "renewed": Standing.ACQUIRED,
}
_NO_OFFSETS = (-1, -1)


class SharePartitionAuditor:
    """The auditor of one share-partition: call `apply` for each event in order, then `finish` once."""

    def __init__(self, share_partition: SharePartitionId, *, delivery_count_limit: int = DELIVERY_COUNT_LIMIT) -> None:
        self._audit = SharePartitionAudit(share_partition)
        self._limit = delivery_count_limit
        self._order = OrderOfEvents()
        self._state_epoch: int | None = None
        self._truncation_epoch = 0
        """The leader epoch in which the durable state was last truncated; 0 for never."""
        self._begin_era()

    def _begin_era(self) -> None:
        """Resets all knowledge: at the beginning, and after a new state epoch."""
        self._runs = OffsetRuns()
        self._floor: int | None = None
        """Offsets below this have ended and are forgotten; None while the beginning is unknown."""
        self._told_start: HistoryEvent | None = None
        self._behind = Standing.UNKNOWN
        """The standing of offsets after the last run: Available once a durable state was seen."""
        self._may_have_reloaded = False
        """Whether a `loaded` event may be missing since the last one."""

    @property
    def runs_known(self) -> int:
        """How many runs are in memory."""
        return len(self._runs)

    # Input

    def apply(self, event: HistoryEvent) -> None:
        place = self._order.place(event)
        for breach in place.breaches:
            self._fault(breach.rule, _NO_OFFSETS, breach.text, *breach.shown_by, event)
        if place.continuity is Continuity.REPEATED:
            self._audit.duplicates += 1
            return
        self._audit.events += 1
        if self._state_epoch is None or event.state_epoch > self._state_epoch:
            self._end_era(Outcome.RESET)
            self._state_epoch = event.state_epoch
            self._truncation_epoch = 0
            self._begin_era()
        if (truncation_epoch := event.truncation_leader_epoch) > self._truncation_epoch:
            self._end_era(Outcome.RESET)
            self._truncation_epoch = truncation_epoch
            self._begin_era()
        self._pass_over_missing(place.continuity, event)
        if event.problem is not None:
            self._fault(Rule.MALFORMED, _NO_OFFSETS, event.problem, event)
            return
        self._change(event, complete=place.continuity is Continuity.FOLLOWS)
        self._tidy(event)

    def _change(self, event: HistoryEvent, *, complete: bool) -> None:
        kind = event.event
        if kind == "acquired":
            self._acquired(event)
        elif kind in _STANDING_AFTER:
            self._of_holder(event, _STANDING_AFTER[kind])
        elif kind == "archived":
            self._archived(event)
        elif kind == "dead_lettered":
            self._dead_lettered(event)
        elif kind == "start_offset_moved":
            self._start_moved(event)
        elif kind == "loaded":
            self._loaded(event, complete=complete)

    def finish(self) -> SharePartitionAudit:
        """The account of all offsets at the end of the history."""
        for run in self._runs:
            if run.standing is Standing.UNKNOWN:
                text = "nothing in the history says what became of it"
                self._unproven(Rule.UNKNOWN, _offsets(run), text, *_events(run))
        self._end_era(None)
        return self._audit

    # What is missing

    def _pass_over_missing(self, continuity: Continuity, event: HistoryEvent) -> None:
        if continuity is Continuity.FOLLOWS:
            return
        is_loaded = event.event == "loaded"
        if continuity is Continuity.LOST:
            text = f"events before sequence {event.sequence} are missing"
            self._unproven(Rule.EVENTS_LOST, self._open_offsets(), text, event)
        elif not is_loaded:
            text = "what is known begins here, without the durable state"
            self._unproven(Rule.NOT_LOADED, self._open_offsets(), text, event)
        for run in self._runs:
            if run.standing is Standing.ACQUIRED:
                run.delivery_count -= 1
            if not run.standing.is_ended:
                run.standing = Standing.UNKNOWN
                run.member_id = None
        self._behind = Standing.UNKNOWN
        self._may_have_reloaded = True

    def _open_offsets(self) -> tuple[int, int]:
        first = self._runs.first_open()
        return _NO_OFFSETS if first is None else (first.first_offset, self._runs.end_offset - 1)

    # Events of offsets

    def _reach(self, event: HistoryEvent) -> list[KnownRun]:
        """The known runs of the event's offsets, without forgotten ones."""
        assert event.first_offset is not None and event.last_offset is not None
        first, last = event.first_offset, event.last_offset
        runs = self._runs
        if self._floor is not None:
            if last < self._floor:
                return []
            first = max(first, self._floor)
            if not runs and first > self._floor:
                runs.extend(self._floor, first - 1, self._behind)
        if runs:
            runs.extend(min(first, runs.first_offset), runs.first_offset, Standing.UNKNOWN)
        runs.extend(first, last, self._behind)
        return runs.carve(first, last)

    def _forgotten(self, event: HistoryEvent) -> tuple[int, int] | None:
        assert event.first_offset is not None and event.last_offset is not None
        if self._floor is None or event.first_offset >= self._floor:
            return None
        return event.first_offset, min(event.last_offset, self._floor - 1)

    def _acquired(self, event: HistoryEvent) -> None:
        assert event.delivery_count is not None
        assert event.first_offset is not None and event.last_offset is not None
        count = event.delivery_count
        self._audit.deliveries += event.last_offset - event.first_offset + 1
        if not 1 <= count <= self._limit:
            text = f"delivery count {count}; 1 to {self._limit} is allowed"
            self._fault(Rule.DELIVERY_COUNT_LIMIT, (event.first_offset, event.last_offset), text, event)
        forgotten = self._forgotten(event)
        if forgotten is not None:
            text = f"acquired below {self._floor}, and everything there has ended"
            self._fault(Rule.DELIVERED_AFTER_END, forgotten, text, *_told(self._told_start), event)
        for run in self._reach(event):
            breach = self._breach_of_acquired(run, count)
            if breach is not None:
                self._fault(breach[0], _offsets(run), breach[1], *_events(run), event)
            self._set(run, Standing.ACQUIRED, event, delivery_count=count, member_id=event.member_id)

    def _breach_of_acquired(self, run: KnownRun, count: int) -> tuple[Rule, str] | None:
        standing = run.standing
        if self._may_have_reloaded and standing.is_ended and not is_durable(run):
            return None
        if standing is Standing.ACCEPTED:
            return Rule.DELIVERED_AFTER_ACCEPT, "acquired after its accept was confirmed"
        if standing.is_ended:
            return Rule.DELIVERED_AFTER_END, f"acquired after it was {_word(run)}"
        if standing is Standing.ACQUIRED:
            return Rule.HELD_TWICE, f"acquired while member {run.member_id} held it"
        if standing is Standing.AVAILABLE and count != run.delivery_count + 1:
            return Rule.DELIVERY_COUNT, f"delivery count {count} after {run.delivery_count}"
        if standing is Standing.UNKNOWN and count <= run.delivery_count:
            return Rule.DELIVERY_COUNT, f"delivery count {count}, and it had been {run.delivery_count} or more"
        return None

    def _of_holder(self, event: HistoryEvent, after: Standing) -> None:
        """Accepted, released, rejected, expired or renewed."""
        forgotten = self._forgotten(event)
        if forgotten is not None:
            text = f"{event.event} below {self._floor}, and everything there has ended"
            self._fault(Rule.ENDED_AFTER_END, forgotten, text, *_told(self._told_start), event)
        for run in self._reach(event):
            if not run.standing.is_ended:
                self._change_delivery(run, event, after)
            elif is_durable(run):
                self._ended_again(run, event)

    def _change_delivery(self, run: KnownRun, event: HistoryEvent, after: Standing) -> None:
        assert event.delivery_count is not None
        count = event.delivery_count
        if run.standing is Standing.AVAILABLE:
            text = f"{event.event}, and nobody had acquired it"
            self._fault(Rule.ENDED_UNHELD, _offsets(run), text, *_events(run), event)
        elif run.standing is Standing.ACQUIRED:
            self._check_holder(run, event, count)
        elif count <= run.delivery_count:
            text = f"{event.event} with delivery count {count}, and {run.delivery_count} deliveries had ended before"
            self._fault(Rule.DELIVERY_COUNT, _offsets(run), text, *_events(run), event)
        if event.reason == REASON_NOT_DELIVERED:
            count -= 1  # it never reached the member, so the delivery does not count
        member_id = event.member_id if after is Standing.ACQUIRED else None
        self._set(run, after, event, delivery_count=count, member_id=member_id, reason=event.reason)

    def _check_holder(self, run: KnownRun, event: HistoryEvent, count: int) -> None:
        if event.member_id is not None and run.member_id is not None and event.member_id != run.member_id:
            text = f"{event.event} by member {event.member_id}, and member {run.member_id} held it"
            self._fault(Rule.ENDED_BY_ANOTHER, _offsets(run), text, *_events(run), event)
        if count != run.delivery_count:
            text = f"{event.event} with delivery count {count}, acquired with {run.delivery_count}"
            self._fault(Rule.DELIVERY_COUNT, _offsets(run), text, *_events(run), event)

    def _ended_again(self, run: KnownRun, event: HistoryEvent) -> None:
        if run.standing is Standing.ACCEPTED and event.event == "accepted":
            text = "accepted again after its accept was confirmed"
            self._fault(Rule.ACCEPTED_TWICE, _offsets(run), text, *_events(run), event)
        else:
            text = f"{event.event} after it was {_word(run)}"
            self._fault(Rule.ENDED_AFTER_END, _offsets(run), text, *_events(run), event)

    def _archived(self, event: HistoryEvent) -> None:
        for run in self._reach(event):
            if not event.reason:
                text = "archived without a reason"
                self._fault(Rule.ARCHIVED_WITHOUT_REASON, _offsets(run), text, event)
            if not run.standing.is_ended:
                self._set(run, Standing.ARCHIVED, event, delivery_count=run.delivery_count, reason=event.reason)
            elif run.standing is Standing.ACCEPTED and event.reason not in UNSTORED_REASONS:
                self._ended_again(run, event)

    def _dead_lettered(self, event: HistoryEvent) -> None:
        for run in self._reach(event):
            standing = run.standing
            if standing is Standing.DEAD_LETTERED and not run.is_archiving:
                text = "a second dead letter"
                self._fault(Rule.DEAD_LETTERED_TWICE, _offsets(run), text, *_events(run), event)
            elif not _may_have_dead_letter(run, event):
                text = f"a dead letter ({event.reason}) of a record that was {_word(run)}"
                self._fault(Rule.DEAD_LETTERED_UNDUE, _offsets(run), text, *_events(run), event)
            self._set(run, Standing.DEAD_LETTERED, event, delivery_count=run.delivery_count, reason=event.reason)

    # The start offset

    def _start_moved(self, event: HistoryEvent) -> None:
        start = event.start_offset
        assert start is not None
        told = self._told_start
        if told is not None and told.start_offset is not None and start < told.start_offset:
            offsets = (start, told.start_offset - 1)
            text = f"the start offset went back from {told.start_offset} to {start}"
            self._fault(Rule.START_OFFSET_BACK, offsets, text, told, event)
            return
        self._told_start = event
        self._know_beginning(start)
        if not self._runs or self._runs.end_offset < start:
            end = self._runs.end_offset if self._runs else self._floor
            assert end is not None
            if end < start:
                self._runs.extend(end, start - 1, self._behind)
        for run in self._runs.open_before(start):
            self._passed_by_start(run, event)

    def _passed_by_start(self, run: KnownRun, event: HistoryEvent) -> None:
        if run.standing is Standing.UNKNOWN:
            text = "the start offset passed it; the event that ended it is not in the history"
            self._unproven(Rule.UNSEEN, _offsets(run), text, *_events(run), event)
        else:
            text = f"the start offset passed it while it was {_word(run)}"
            self._fault(Rule.SKIPPED, _offsets(run), text, *_events(run), event)
        self._set(run, Standing.DONE, event, delivery_count=run.delivery_count)

    def _know_beginning(self, offset: int) -> None:
        """Notes that all offsets below `offset` have ended: the stretch begins there, or at an earlier known offset."""
        if self._floor is None:
            if self._runs:
                first = self._runs.first_offset
                self._runs.extend(min(offset, first), first, Standing.UNKNOWN)
            self._floor = self._runs.first_offset if self._runs else offset
            self._note_beginning(self._floor)

    def _note_beginning(self, offset: int) -> None:
        audit = self._audit
        audit.first_offset = offset if audit.first_offset < 0 else min(audit.first_offset, offset)

    def _loaded(self, event: HistoryEvent, *, complete: bool) -> None:
        start = event.start_offset
        assert start is not None
        try:
            told = told_runs(event)
        except ValueError as problem:
            self._fault(Rule.MALFORMED, _NO_OFFSETS, str(problem), event)
            return
        self._check_durable_start(start, event)
        if self._floor is None and not self._runs:
            self._know_beginning(start)
            self._adopt(told, event)
        else:
            self._compare(told, start, event, complete=complete)
        self._told_start = event
        self._behind = Standing.AVAILABLE
        self._may_have_reloaded = False

    def _check_durable_start(self, start: int, event: HistoryEvent) -> None:
        told = self._told_start
        if told is None or told.start_offset is None or start >= told.start_offset:
            return
        last = told.start_offset - 1
        passed = self._runs.overlapping(start, last)
        if passed and passed[0].first_offset <= start and all(not is_durable(run) for run in passed):
            return  # gaps of the log, which need not be stored
        text = f"the durable start offset went back from {told.start_offset} to {start}"
        self._fault(Rule.START_OFFSET_BACK, (start, last), text, told, event)

    def _adopt(self, told: Iterable[Told], event: HistoryEvent) -> None:
        """Nothing was known before."""
        for one in told:
            self._runs.extend(one.first_offset, one.last_offset, Standing.AVAILABLE)
            (run,) = self._runs.carve(one.first_offset, one.last_offset)
            self._take_over(run, one, Change(one.standing, one.delivery_count), event)

    def _compare(self, told: list[Told], start: int, event: HistoryEvent, *, complete: bool) -> None:
        runs = self._runs
        if runs:
            begin = runs.first_offset
        else:
            assert self._floor is not None
            begin = self._floor
        if start < begin:
            # All offsets below the floor have ended; if the beginning is unknown, nothing is known of them.
            runs.extend(start, begin - 1, Standing.UNKNOWN if self._floor is None else Standing.DONE)
        end_told = told[-1].last_offset + 1 if told else start
        end_known = runs.end_offset if runs else begin
        if end_told > end_known:
            runs.extend(end_known, end_told - 1, self._behind if complete else Standing.UNKNOWN)
        if not runs:
            self._know_beginning(start)
            return
        for one in covering(told, start, runs.first_offset, runs.end_offset):
            for run in runs.carve(one.first_offset, one.last_offset):
                change = change_of(run, one, complete=complete)
                if change.rule is not None and change.severity is not None:
                    self._find(change.severity, change.rule, _offsets(run), change.text, (*_events(run), event))
                self._take_over(run, one, change, event)
        self._know_beginning(start)

    def _take_over(self, run: KnownRun, told: Told, change: Change, event: HistoryEvent) -> None:
        if change.standing is run.standing and run.standing.is_ended:
            run.is_archiving = told.is_archiving
            return
        reason = DURABLE_STATE if change.standing is Standing.ARCHIVED else None
        self._set(run, change.standing, event, delivery_count=change.delivery_count, reason=reason)
        run.is_archiving = told.is_archiving

    # Bookkeeping

    def _set(
        self,
        run: KnownRun,
        standing: Standing,
        because: HistoryEvent,
        *,
        delivery_count: int,
        member_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        run.standing = standing
        run.delivery_count = delivery_count
        run.member_id = member_id
        run.reason = reason
        run.because = because
        run.is_archiving = False
        if not standing.is_ended:
            self._runs.look_anew(run.first_offset)

    def _tidy(self, event: HistoryEvent) -> None:
        runs = self._runs
        if len(runs) > RUNS_LIMIT:
            self._give_up_unknown(event)
        forgotten = runs.forget_ended()
        if forgotten:
            self._note_beginning(forgotten[0].first_offset)
            self._floor = forgotten[-1].last_offset + 1
            self._count(forgotten, None)

    def _give_up_unknown(self, event: HistoryEvent) -> None:
        """Ends an UNKNOWN run at the front that is so far behind the others that it must have ended."""
        run = self._runs.first_open()
        while run is not None and run.standing is Standing.UNKNOWN:
            text = "nothing in the history says what became of it, and the window is far behind it"
            self._unproven(Rule.UNKNOWN, _offsets(run), text, *_events(run))
            self._set(run, Standing.DONE, event, delivery_count=run.delivery_count)
            run = self._runs.first_open()

    def _end_era(self, outcome_of_open: Outcome | None) -> None:
        if self._runs:
            self._note_beginning(self._runs.first_offset)
            self._audit.end_offset = max(self._audit.end_offset, self._runs.end_offset)
            self._count(self._runs, outcome_of_open)
        elif self._floor is not None:
            self._audit.end_offset = max(self._audit.end_offset, self._floor)

    def _count(self, runs: Iterable[KnownRun], outcome_of_open: Outcome | None) -> None:
        offsets = self._audit.offsets
        for run in runs:
            offsets[_outcome(run, outcome_of_open)] += run.length

    # Findings

    def _fault(self, rule: Rule, offsets: tuple[int, int], text: str, *events: HistoryEvent) -> None:
        self._find(Severity.FAULT, rule, offsets, text, events)

    def _unproven(self, rule: Rule, offsets: tuple[int, int], text: str, *events: HistoryEvent) -> None:
        self._find(Severity.UNPROVEN, rule, offsets, text, events)

    def _find(
        self, severity: Severity, rule: Rule, offsets: tuple[int, int], text: str, events: tuple[HistoryEvent, ...]
    ) -> None:
        audit = self._audit
        shown = tuple(str(event) for event in events)
        if audit.findings and _continues(audit.findings[-1], severity, rule, offsets, text, shown):
            audit.findings[-1] = audit.findings[-1]._replace(last_offset=offsets[1])
            return
        number = audit.faults if severity is Severity.FAULT else audit.unproven
        if severity is Severity.FAULT:
            audit.faults += 1
        else:
            audit.unproven += 1
        if number < FINDINGS_LIMIT:
            audit.findings.append(Finding(severity, rule, audit.share_partition, *offsets, text, shown))


def _continues(
    last: Finding, severity: Severity, rule: Rule, offsets: tuple[int, int], text: str, shown: tuple[str, ...]
) -> bool:
    """Whether a finding continues the previous one at the next offset."""
    same = (last.severity, last.rule, last.text, last.events) == (severity, rule, text, shown)
    return same and offsets[0] >= 0 and last.last_offset + 1 == offsets[0]


def _offsets(run: KnownRun) -> tuple[int, int]:
    return run.first_offset, run.last_offset


def _events(run: KnownRun) -> tuple[HistoryEvent, ...]:
    return () if run.because is None else (run.because,)


def _told(event: HistoryEvent | None) -> tuple[HistoryEvent, ...]:
    return () if event is None else (event,)


def _may_have_dead_letter(run: KnownRun, event: HistoryEvent) -> bool:
    """Whether a run may have a dead letter. A release or expiry at the delivery limit needs no further event for it."""
    if run.standing is Standing.AVAILABLE:
        has_ended = run.because is not None and run.because.event in ("released", "expired")
        return has_ended and event.reason == REASON_DELIVERY_COUNT_LIMIT
    return run.standing not in (Standing.ACQUIRED, Standing.ACCEPTED)


def _word(run: KnownRun) -> str:
    word = run.standing.name.lower().replace("_", "-")
    return f"{word} ({run.reason})" if run.reason else word


def _outcome(run: KnownRun, outcome_of_open: Outcome | None) -> str:
    standing = run.standing
    if standing in _OUTCOME_OF_OPEN:
        return outcome_of_open or _OUTCOME_OF_OPEN[standing]
    if standing is Standing.ARCHIVED:
        return f"{Outcome.ARCHIVED}: {run.reason or 'no reason'}"
    return Outcome[standing.name]
