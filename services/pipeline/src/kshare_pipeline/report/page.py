"""The page: the verdict, a table of all groups, and a section for each group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from kshare_pipeline.report.figures import Figures, total
from kshare_pipeline.report.group_section import group_section
from kshare_pipeline.report.style import STYLE
from kshare_pipeline.report.units import MINUTE_MS, OUTCOMES, count, days_text, duration
from kshare_pipeline.report.verdict import Finding, Level, Verdict, headline, verdict_of, worst

MARKS = {Level.GOOD: "✓", Level.WARNING: "!", Level.BAD: "✗"}
WORDS = {Level.GOOD: "well", Level.WARNING: "warning", Level.BAD: "problem"}


def page(figures: Figures, now: datetime) -> str:
    """The whole page; `now` is its time of creation."""
    days = days_text(figures.days[0], figures.days[-1])
    verdicts = sorted((verdict_of(figures, group) for group in figures.groups()), key=lambda one: -one.level)
    places = {group: at for at, group in enumerate(figures.groups())}
    sections = "".join(
        group_section(figures, group, at, findings(_of(verdicts, group).findings)) for group, at in places.items()
    )
    return document(
        f"kshare deliveries, {days}",
        f"<header><h1>Deliveries, {days}</h1>{_until(figures, now)}{_verdict(verdicts, places)}</header>"
        f"{_navigation(places)}{_summary(figures)}<main>{sections}</main>",
    )


def document(title: str, body: str, style: str = "") -> str:
    """A page that loads nothing, and has no scripts; `style` is added to STYLE."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>{body}</body></html>\n"
    )


class Amount(str):
    """A figure with its unit, which a table aligns as numbers."""

    __slots__ = ()


NUMBERS = (int, float, Amount)


def write_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, stacked: bool = False) -> str:
    """A table; numbers are aligned right. On a phone a stacked table has a row's cells below each other."""
    first = rows[0] if rows else [""] * len(columns)
    head = "".join(
        f'<th class="n">{escape(column)}</th>' if isinstance(value, NUMBERS) else f"<th>{escape(column)}</th>"
        for column, value in zip(columns, first, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_cell(value, column) for column, value in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    kind = ' class="stack"' if stacked else ""
    table = f'<table{kind} data-table="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _cell(value: object, column: str) -> str:
    label = f' data-label="{escape(column)}"'
    if isinstance(value, Amount):
        return f'<td class="n"{label}>{escape(value)}</td>'
    if isinstance(value, (int, float)):
        return f'<td class="n"{label}>{count(value)}</td>'
    return f"<td{label}>{escape(str(value)) if value is not None else ''}</td>"


def findings(found: Sequence[Finding]) -> str:
    """A list of sentences, each with a mark and, for screen readers, a word."""
    items = "".join(f"<li>{mark(one.level)}{escape(one.text)}</li>" for one in found)
    return f'<ul class="findings">{items}</ul>'


def mark(level: Level) -> str:
    name = level.name.lower()
    return f'<span class="mark {name}" role="img" aria-label="{WORDS[level]}">{MARKS[level]}</span>'


def _of(verdicts: Sequence[Verdict], group: str) -> Verdict:
    return next(one for one in verdicts if one.group == group)


def _until(figures: Figures, now: datetime) -> str:
    last = figures.last_minute()
    if last is None:
        return f"<p class='note'>Without data. Made {now:%Y-%m-%d %H:%M} UTC.</p>"
    age = duration((now.astimezone(UTC) - last).total_seconds() * 1000 // MINUTE_MS * MINUTE_MS)
    made = f"this page was made {age} later, at {now:%Y-%m-%d %H:%M}"
    return f"<p class='note'>Data until {last:%Y-%m-%d %H:%M}; {made}. All times are UTC.</p>"


def _verdict(verdicts: Sequence[Verdict], places: dict[str, int]) -> str:
    whole = headline(verdicts)
    items = "".join(
        f'<li>{mark(one.level)}<a href="#group-{places[one.group]}">{escape(one.group)}</a>:'
        f" {escape(' '.join(_worst_of(one)))}</li>"
        for one in verdicts
    )
    return (
        f'<div class="verdict {whole.level.name.lower()}" data-verdict="{whole.level.name.lower()}">'
        f'<p>{escape(whole.text)}</p><ul class="findings">{items}</ul></div>'
    )


def _worst_of(verdict: Verdict) -> list[str]:
    return [one.text for one in verdict.findings if one.level is verdict.level]


def _navigation(places: dict[str, int]) -> str:
    links = "".join(f'<a href="#group-{at}">{escape(group)}</a>' for group, at in places.items())
    return f'<nav aria-label="Groups"><a href="#summary">All groups</a>{links}</nav>'


def _summary(figures: Figures) -> str:
    shown = {"accepted": "accepted", "released": "released", "rejected": "rejected"}
    shown |= {"expired": "lock expired", "not_delivered": "did not reach"}
    assert set(shown) == set(OUTCOMES)
    columns = ("group", "delivered", *shown.values(), "dead letters", "half within", "99 % within", "lost events")
    rows = []
    for group in figures.groups():
        redelivery, latency = figures.of("redelivery", group), figures.of("append_to_accept_by_day", group)
        rows.append(
            [
                group,
                total(redelivery, "acquired_records"),
                *[total(redelivery, f"{outcome}_records") for outcome in shown],
                total(figures.of("dead_letters", group), "records"),
                Amount(duration(worst(latency, "p50_ms"))),
                Amount(duration(worst(latency, "p99_ms"))),
                total(figures.of("completeness", group), "missing_events"),
            ]
        )
    which = "of the worst day" if len(figures.days) > 1 else "of the day"
    note = (
        f"<p class='note'>Records; each delivery of a record counts. “Within” is the time from a record's append to its"
        f" acceptance, {which}. Lost events of the history are deliveries that these figures lack.</p>"
    )
    return f'<div id="summary"><h3>All groups</h3>{write_table("summary", columns, rows, stacked=True)}{note}</div>'
