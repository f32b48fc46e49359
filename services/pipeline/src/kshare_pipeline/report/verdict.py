"""What is well in a group and what is not, as sentences with figures. Pure.

A finding is bad where records were lost to the group or need a person, and a warning where deliveries are wasted or
figures incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from statistics import median

from kshare_core.delivery_history import REASON_BELOW_LOG_START, REASON_DELIVERY_COUNT_LIMIT, REASON_REJECTED
from kshare_pipeline.report.figures import Figures, Row, total, totals_by
from kshare_pipeline.report.units import MINUTE_MS, OUTCOMES, count, counted, duration, percent, reason_text

GIVEN_UP_REASONS = (REASON_REJECTED, REASON_DELIVERY_COUNT_LIMIT)
WASTED_SHARES = {"expired": 0.01, "not_delivered": 0.01, "released": 0.05}
"""By outcome, the share of all deliveries from which on it is a warning."""
ADVICE = {
    "expired": "Their lock ended before the member acknowledged them: it needs more time, fewer records or a renewal.",
    "not_delivered": "Their responses did not reach the member: it was slow to fetch, or its connection broke.",
    "released": "Members gave them back, or left while they held them.",
}
UNEVEN = 0.5
"""A median fairness below it is a warning."""
LATE_MS, LATE_FACTOR = MINUTE_MS, 3
"""Falling behind: the last records waited this long, and this many times the median."""


class Level(IntEnum):
    """How bad a finding is; the worst is a group's level."""

    GOOD = 0
    WARNING = 1
    BAD = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, or several, about a group."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings about a group, the worst first."""

    group: str
    findings: Sequence[Finding]

    @property
    def level(self) -> Level:
        return max((finding.level for finding in self.findings), default=Level.GOOD)


def verdict_of(figures: Figures, group: str) -> Verdict:
    found = [
        *_given_up(figures, group),
        *_deleted(figures.of("archived", group)),
        *_wasted(figures.of("redelivery", group)),
        *_falling_behind(figures.of("lag", group)),
        *_uneven(figures.of("fairness", group)),
        *_missing(figures.of("completeness", group)),
        *_accepted(figures, group),
    ]
    return Verdict(group, sorted(found, key=lambda finding: -finding.level))


def headline(verdicts: Sequence[Verdict]) -> Finding:
    """The page's verdict in one sentence."""
    bad = sum(each.level is Level.BAD for each in verdicts)
    warned = sum(each.level is Level.WARNING for each in verdicts)
    of_all = counted(len(verdicts), "group")
    if bad:
        more = f"; {counted(warned, 'other')} had wasted deliveries or gaps" if warned else ""
        return Finding(Level.BAD, f"{count(bad)} of {of_all} had records that nobody processed{more}.")
    if warned:
        return Finding(Level.WARNING, f"No record was given up, but {count(warned)} of {of_all} should be looked at.")
    return Finding(Level.GOOD, f"All is well in {of_all}.")


def given_up_by_reason(figures: Figures, group: str) -> dict[str, int]:
    """The records that no member could process."""
    archived = totals_by(figures.of("archived", group), ["reason"], "records")
    return {reason: archived[reason,] for reason in GIVEN_UP_REASONS if archived.get((reason,))}


def _given_up(figures: Figures, group: str) -> Iterator[Finding]:
    by_reason = given_up_by_reason(figures, group)
    given_up = sum(by_reason.values())
    if not given_up:
        return
    accepted = total(figures.of("redelivery", group), "accepted_records")
    reasons = ", ".join(f"{count(records)} {reason_text(reason)}" for reason, records in by_reason.items())
    stored = total(figures.of("dead_letters", group), "records")
    kept = f"{counted(stored, 'dead letter')} stored" if stored else "no dead letter stored"
    share = percent(given_up, given_up + accepted)
    yield Finding(Level.BAD, f"{counted(given_up, 'record')} ({share}) given up: {reasons}; {kept}.")


def _deleted(archived: Sequence[Row]) -> Iterator[Finding]:
    records = total([row for row in archived if row["reason"] == REASON_BELOW_LOG_START], "records")
    if records:
        text = f"{counted(records, 'record')} deleted from the log (retention or DeleteRecords) before they were done."
        yield Finding(Level.BAD, text)


def _wasted(redelivery: Sequence[Row]) -> Iterator[Finding]:
    by_outcome = {outcome: total(redelivery, f"{outcome}_records") for outcome in OUTCOMES}
    ended = sum(by_outcome.values())
    for outcome, share in WASTED_SHARES.items():
        records = by_outcome[outcome]
        if ended and records >= share * ended:
            text = f"{percent(records, ended)} of deliveries ({count(records)} of {count(ended)}): {OUTCOMES[outcome]}."
            yield Finding(Level.WARNING, f"{text} {ADVICE[outcome]}")


def _falling_behind(lag: Sequence[Row]) -> Iterator[Finding]:
    by_minute = sorted((row["minute"], row["oldest_first_delivery_ms"]) for row in lag if _has_age(row))
    if not by_minute:
        return
    usual, until = median(age for _, age in by_minute), by_minute[-1][0]
    latest = max(age for minute, age in by_minute if minute > until - timedelta(minutes=10))
    if latest >= LATE_MS and latest >= LATE_FACTOR * usual:
        text = f"At the end records waited up to {duration(latest)} for their first delivery"
        yield Finding(Level.WARNING, f"{text}; {duration(usual)} is usual.")


def _has_age(row: Row) -> bool:
    return row["oldest_first_delivery_ms"] is not None


def _uneven(fairness: Sequence[Row]) -> Iterator[Finding]:
    shared = [row for row in fairness if (row.get("members") or 0) > 1 and row["fairness"] is not None]
    if shared and median(row["fairness"] for row in shared) < UNEVEN:
        largest, members = median(row["largest_share"] for row in shared), round(median(r["members"] for r in shared))
        text = f"Work is uneven: the busiest of {members} members accepts {percent(largest, 1)} of a minute's records."
        yield Finding(Level.WARNING, text)


def _missing(completeness: Sequence[Row]) -> Iterator[Finding]:
    missing, events = total(completeness, "missing_events"), total(completeness, "events")
    if missing:
        text = f"{counted(missing, 'event')} of the history lost ({percent(missing, missing + events)})"
        yield Finding(Level.WARNING, f"{text}: the figures here lack what they would have told.")


def _accepted(figures: Figures, group: str) -> Iterator[Finding]:
    redelivery = figures.of("redelivery", group)
    accepted = total(redelivery, "accepted_records")
    if not accepted:
        yield Finding(Level.WARNING, "No record was accepted.")
        return
    first = total([row for row in redelivery if row["delivery_count"] == 1], "accepted_records")
    days = figures.of("append_to_accept_by_day", group)
    half, most = worst(days, "p50_ms"), worst(days, "p99_ms")
    within = f", half within {duration(half)} of their append and 99 % within {duration(most)}" if most else ""
    worst_day = " on the worst day" if most and len(days) > 1 else ""
    text = f"{counted(accepted, 'record')} accepted, {percent(first, accepted)} at the first delivery"
    yield Finding(Level.GOOD, f"{text}{within}{worst_day}.")


def worst(rows: Sequence[Row], column: str) -> float | None:
    """The highest value of the column; None without any."""
    return max((row[column] for row in rows if row[column] is not None), default=None)
