"""Figures as people read them: 12,345 · 0.3 % · 4 m 25 s · 20 November 2026 · "lock expired" for `expired`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

from kshare_core.delivery_history import (
    REASON_BELOW_LOG_START,
    REASON_DELIVERY_COUNT_LIMIT,
    REASON_GAP,
    REASON_MISSING_IN_LOG,
    REASON_REJECTED,
)

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
UNKNOWN = "\u2013"
SHORT_ID_LENGTH = 8

OUTCOMES = {
    "accepted": "accepted",
    "released": "released",
    "rejected": "rejected",
    "expired": "lock expired",
    "not_delivered": "did not reach the member",
}
"""By the name of its column in the marts, how a delivery ended."""
REASONS = {
    REASON_REJECTED: "rejected by a member",
    REASON_DELIVERY_COUNT_LIMIT: "delivered as often as the group allows",
    REASON_GAP: "acknowledged as a gap by a member",
    REASON_MISSING_IN_LOG: "not in the log (compacted, aborted or a control record)",
    REASON_BELOW_LOG_START: "deleted from the log before the group was done",
}


def count(value: float) -> str:
    """12,345; with up to three significant digits where it is no integer."""
    if abs(value - round(value)) < 1e-9:
        return f"{round(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def counted(value: float, one: str, many: str = "") -> str:
    """1 record, 12,345 records."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def short_count(value: float) -> str:
    """12.3k, for axes."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def percent(part: float, whole: float) -> str:
    """0.3 %; what is not zero is never shown as zero, and what is not all never as 100 %."""
    if not whole:
        return UNKNOWN
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "less than 0.1 %"
    if 99.9 < share < 100:
        return "more than 99.9 %"
    return f"{share:.1f} %" if share < 10 or (share > 99 and share < 100) else f"{share:.0f} %"


def duration(ms: float | None) -> str:
    """Two units at most: 0.4 ms, 850 ms, 1.5 s, 12 s, 4 m 25 s, 2 h 5 m, 3 d 4 h."""
    if ms is None:
        return UNKNOWN
    if ms < 10:
        return f"{ms:.2g} ms" if ms > 0 else "0 ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 9_950:
        return f"{ms / SECOND_MS:.1f} s".replace(".0 s", " s")
    seconds = round(ms / SECOND_MS)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return _two(seconds // 60, "m", seconds % 60, "s")
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return _two(minutes // 60, "h", minutes % 60, "m")
    hours = round(minutes / 60)
    return _two(hours // 24, "d", hours % 24, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def day_text(day: date | datetime) -> str:
    """20 Nov."""
    return f"{day.day} {day:%b}"


def days_text(first: date, last: date) -> str:
    """20 November 2026; 30 November to 2 December 2026."""
    end = f"{last.day} {last:%B %Y}"
    if first == last:
        return end
    if first.year != last.year:
        return f"{first.day} {first:%B %Y} to {end}"
    return f"{first.day} {first:%B} to {end}" if first.month != last.month else f"{first.day} to {end}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 11th."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def offsets(first: int, last: int) -> str:
    """7, or 7 to 12, as offsets are typed: without commas."""
    return str(first) if first == last else f"{first} to {last}"


def reason_text(reason: str) -> str:
    return REASONS.get(reason, reason.replace("_", " "))


def member_text(member_id: str | None, client_ids: Mapping[str, str]) -> str:
    """The client id, with the beginning of the member id, since members may share a client id."""
    if member_id is None:
        return "unknown member"
    short = member_id[:SHORT_ID_LENGTH]
    client_id = client_ids.get(member_id)
    return f"{client_id} ({short})" if client_id else f"member {short}"
