"""The comparison of a `loaded` event, which has the durable state, with the audit's knowledge of each offset.

The durable state has every confirmed end and no acquisitions. So an offset that ended durably must still be ended. One
that was held is Available again, with the count of this delivery or of the one before. An end whose write
succeeded, but whose response was lost, appears here for the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kshare.audit.events import HistoryEvent
from kshare.audit.findings import Rule, Severity
from kshare.audit.offset_runs import KnownRun, Standing
from kshare_core.delivery_history import REASON_BELOW_LOG_START, REASON_MISSING_IN_LOG, DurableRun

DURABLE_STATE = "durable_state"
"""The reason of an Archived run without an event that has one."""

UNSTORED_REASONS = frozenset({REASON_MISSING_IN_LOG, REASON_BELOW_LOG_START})
"""Reasons of archived offsets that the log shows again, so their archiving need not be durable."""


class Told(NamedTuple):
    """The durable state of some offsets."""

    first_offset: int
    last_offset: int
    standing: Standing
    delivery_count: int = 0
    is_archiving: bool = False


class Change(NamedTuple):
    """The change of a known run: its new standing and count, and the fault or unproven stretch, if any."""

    standing: Standing
    delivery_count: int
    severity: Severity | None = None
    rule: Rule | None = None
    text: str = ""


_STANDING_OF_STATE = {
    "available": Standing.AVAILABLE,
    "acquired": Standing.AVAILABLE,
    "acknowledged": Standing.ACCEPTED,
    "archiving": Standing.ARCHIVED,
    "archived": Standing.ARCHIVED,
}


def told_runs(event: HistoryEvent) -> list[Told]:
    """The state from its start offset to its end, without a hole: offsets outside of all runs are Available and were
    never delivered. ValueError for impossible runs."""
    assert event.start_offset is not None
    position = event.start_offset
    found: list[Told] = []
    for run in event.runs or ():
        if run.last_offset < run.first_offset or run.first_offset < position:
            raise ValueError(f"its runs are not in order at {run.first_offset}-{run.last_offset}")
        if run.first_offset > position:
            found.append(Told(position, run.first_offset - 1, Standing.AVAILABLE))
        found.append(_told(run))
        position = run.last_offset + 1
    return found


def _told(run: DurableRun) -> Told:
    state = run.state.lower()
    if state not in _STANDING_OF_STATE:
        raise ValueError(f"its run {run.first_offset}-{run.last_offset} has the unknown state {run.state!r}")
    standing = _STANDING_OF_STATE[state]
    return Told(run.first_offset, run.last_offset, standing, run.delivery_count, state == "archiving")


def is_durable(run: KnownRun) -> bool:
    """Whether the end of a run is durable, so that no later state may contradict it."""
    return not (run.standing is Standing.ARCHIVED and run.reason in UNSTORED_REASONS)


def change_of(run: KnownRun, told: Told, *, complete: bool) -> Change:
    """The changes that the durable state makes to known runs; `complete`: no event is missing before it."""
    if run.standing.is_ended:
        return _of_ended(run, told)
    if run.standing is Standing.UNKNOWN:
        return _of_unknown(run, told)
    if told.standing is Standing.AVAILABLE:
        return _of_open(run, told, complete=complete)
    return _of_open_now_ended(run, told, complete=complete)


def _of_ended(run: KnownRun, told: Told) -> Change:
    if not is_durable(run):
        if told.standing is Standing.AVAILABLE:
            return Change(Standing.AVAILABLE, told.delivery_count)
        return Change(run.standing, run.delivery_count)
    if told.standing is Standing.AVAILABLE:
        text = f"it had ended ({run.standing.name.lower()}), and the durable state says that it is available"
        return Change(Standing.AVAILABLE, told.delivery_count, Severity.FAULT, Rule.END_FORGOTTEN, text)
    others = {Standing.ACCEPTED: (Standing.ARCHIVED,), Standing.DONE: ()}.get(run.standing, (Standing.ACCEPTED,))
    if told.standing in others:
        text = f"it was {run.standing.name.lower()}, and the durable state says {told.standing.name.lower()}"
        return Change(told.standing, run.delivery_count, Severity.FAULT, Rule.END_FORGOTTEN, text)
    return Change(run.standing, run.delivery_count)


def _of_unknown(run: KnownRun, told: Told) -> Change:
    if told.standing is not Standing.AVAILABLE:
        return _unseen_end(run, told)
    if told.delivery_count < run.delivery_count:
        return _count_forgotten(told, run.delivery_count)
    return Change(Standing.AVAILABLE, told.delivery_count)


def _of_open(run: KnownRun, told: Told, *, complete: bool) -> Change:
    lowest = run.delivery_count - 1 if run.standing is Standing.ACQUIRED else run.delivery_count
    if told.delivery_count < lowest:
        return _count_forgotten(told, lowest)
    if told.delivery_count <= run.delivery_count:
        return Change(Standing.AVAILABLE, told.delivery_count)
    text = f"the durable state has delivery count {told.delivery_count}, the events before it {run.delivery_count}"
    if complete:
        return Change(Standing.AVAILABLE, told.delivery_count, Severity.FAULT, Rule.DELIVERY_COUNT, text)
    return Change(Standing.AVAILABLE, told.delivery_count, Severity.UNPROVEN, Rule.UNSEEN, text)


def _of_open_now_ended(run: KnownRun, told: Told, *, complete: bool) -> Change:
    if run.standing is Standing.AVAILABLE and _may_be_archiving(run) and told.standing is Standing.ARCHIVED:
        if told.is_archiving:
            return Change(Standing.ARCHIVED, run.delivery_count)
        return _unseen_end(run, told)
    if complete and run.standing is Standing.AVAILABLE:
        text = f"the durable state says {_word(told)}, and nobody had it: no event ended it"
        return Change(told.standing, run.delivery_count, Severity.FAULT, Rule.SKIPPED, text)
    return _unseen_end(run, told)


def _may_be_archiving(run: KnownRun) -> bool:
    """Whether a run may have become Archiving at its delivery limit, which has no event (with a dead-letter topic)."""
    return run.because is not None and run.because.event in ("released", "expired")


def _unseen_end(run: KnownRun, told: Told) -> Change:
    text = f"the durable state says {_word(told)}; the event that ended it is not in the history"
    return Change(told.standing, run.delivery_count, Severity.UNPROVEN, Rule.UNSEEN, text)


def _count_forgotten(told: Told, lowest: int) -> Change:
    text = f"the durable state has delivery count {told.delivery_count}, and {lowest} was durable before"
    return Change(Standing.AVAILABLE, told.delivery_count, Severity.FAULT, Rule.COUNT_FORGOTTEN, text)


def _word(told: Told) -> str:
    return "archiving" if told.is_archiving else told.standing.name.lower()


def covering(told: list[Told], start_offset: int, first_known: int, end_known: int) -> Iterator[Told]:
    """`told` extended below and above to all known offsets (`end_known` is after the last)."""
    if first_known < start_offset:
        yield Told(first_known, start_offset - 1, Standing.DONE)
    yield from told
    end = told[-1].last_offset + 1 if told else start_offset
    if end < end_known:
        yield Told(end, end_known - 1, Standing.AVAILABLE)  # never stored
