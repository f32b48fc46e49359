"""The section of a group: its findings, key figures, charts, and the records that were given up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from html import escape

from kshare_pipeline.report.charts import Bar, Line, Span, line_chart, share_chart
from kshare_pipeline.report.figures import Figures, Interval, Row, interval_of, line, total, totals_by, window_line
from kshare_pipeline.report.given_up import given_up
from kshare_pipeline.report.scales import count_scale, duration_scale, share_scale
from kshare_pipeline.report.units import OUTCOMES, count, duration, member_text, ordinal, percent
from kshare_pipeline.report.verdict import given_up_by_reason, worst

MEMBERS_LIMIT = 7
"""The limit of members with separate lines, by records; the others are combined."""
OTHERS = "all others"
MINUTE_MARTS = ("append_to_accept", "workers", "fairness", "lag")
PERCENTILES = {"p50": "half of the records", "p90": "90 %", "p99": "99 %"}


class TimeAxis:
    """The interval of points, and the span that all charts of a group share."""

    def __init__(self, figures: Figures, group: str) -> None:
        minutes = [row["minute"] for mart in MINUTE_MARTS for row in figures.of(mart, group)]
        self.interval: Interval = interval_of(minutes)
        begins = [self.interval.begin(minute) for minute in minutes]
        self.span: Span | None = (min(begins), max(begins)) if begins else None
        self.step = timedelta(seconds=self.interval.seconds)

    @property
    def each(self) -> str:
        """minute, 10 m, hour."""
        return {60: "minute", 3600: "hour", 86_400: "day"}.get(
            self.interval.seconds, duration(self.interval.seconds * 1000)
        )


def group_section(figures: Figures, group: str, at: int, findings: str) -> str:
    """`findings` is the list of them, as HTML."""
    axis = TimeAxis(figures, group)
    charts = [
        _latency(figures.of("append_to_accept", group), axis),
        _throughput(figures, group, axis),
        *_lag(figures.of("lag", group), axis),
        _redelivery(figures.of("redelivery", group)),
        *_fairness(figures.of("fairness", group), axis),
    ]
    return (
        f'<section id="group-{at}" data-group="{escape(group)}"><h2>{escape(group)}</h2>{findings}'
        f'{_facts(figures, group)}<div class="charts">{"".join(charts)}</div>{given_up(figures, group)}</section>'
    )


def _facts(figures: Figures, group: str) -> str:
    redelivery, days = figures.of("redelivery", group), figures.of("append_to_accept_by_day", group)
    delivered = total(redelivery, "acquired_records")
    again = total([row for row in redelivery if (row["delivery_count"] or 0) > 1], "acquired_records")
    members = {row["member_id"] for row in figures.of("workers", group)}
    facts = {
        "accepted": count(total(redelivery, "accepted_records")),
        "half within": duration(worst(days, "p50_ms")),
        "99 % within": duration(worst(days, "p99_ms")),
        "delivered again": percent(again, delivered),
        "longest wait": duration(worst(figures.of("lag", group), "oldest_first_delivery_ms")),
        "given up": count(sum(given_up_by_reason(figures, group).values())),
        "dead letters": count(total(figures.of("dead_letters", group), "records")),
        "members": count(len(members)),
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items())
    return f'<dl class="facts">{items}</dl>'


def _latency(rows: Sequence[Row], axis: TimeAxis) -> str:
    lines = [Line(text, line(rows, f"{name}_ms", axis.interval, max)) for name, text in PERCENTILES.items()]
    which = "" if axis.interval.seconds == 60 else f"worst minute of each {axis.each}"
    return line_chart(
        "latency",
        "From append to acceptance, within",
        which,
        lines,
        scale=duration_scale,
        step=axis.step,
        span=axis.span,
    )


def _throughput(figures: Figures, group: str, axis: TimeAxis) -> str:
    rows = figures.of("workers", group)
    by_member = totals_by(rows, ["member_id"], "accepted_records")
    busiest = [key[0] for key, _ in sorted(by_member.items(), key=lambda item: -item[1])[:MEMBERS_LIMIT]]
    client_ids = figures.client_ids(group)
    lines = [
        Line(
            member_text(member, client_ids),
            line([row for row in rows if row["member_id"] == member], "accepted_records", axis.interval, sum),
        )
        for member in busiest
    ]
    others = [row for row in rows if row["member_id"] not in busiest]
    if others:
        lines.append(Line(OTHERS, line(others, "accepted_records", axis.interval, sum)))
    unit = f"records in a {axis.each}" if axis.interval.seconds in (60, 3600, 86_400) else f"records in {axis.each}"
    return line_chart(
        "throughput", "Accepted by each member", unit, lines, scale=count_scale, step=axis.step, span=axis.span
    )


def _fairness(rows: Sequence[Row], axis: TimeAxis) -> list[str]:
    """A chart only where members could share the work."""
    shared = [row for row in rows if (row.get("members") or 0) > 1]
    if not shared:
        return []
    lines = [Line("evenness", line(shared, "fairness", axis.interval, min))]
    title = "How evenly members share the work"
    unit = "Jain's index, 100 % is even"
    return [line_chart("fairness", title, unit, lines, scale=share_scale, step=axis.step, span=axis.span)]


def _lag(rows: Sequence[Row], axis: TimeAxis) -> list[str]:
    return [
        line_chart(
            "age",
            "How long the oldest record waited for its first delivery",
            "",
            [Line("wait", line(rows, "oldest_first_delivery_ms", axis.interval, max))],
            scale=duration_scale,
            step=axis.step,
            span=axis.span,
        ),
        line_chart(
            "window",
            "From the start offset to the last delivered record",
            "records of all share-partitions",
            [Line("records", window_line(rows, axis.interval))],
            scale=count_scale,
            step=axis.step,
            span=axis.span,
        ),
    ]


def _redelivery(rows: Sequence[Row]) -> str:
    counts = sorted({row["delivery_count"] for row in rows if row["delivery_count"] is not None})
    bars = [
        Bar(
            f"{ordinal(number)} delivery",
            [
                (text, float(total([row for row in rows if row["delivery_count"] == number], f"{outcome}_records")))
                for outcome, text in OUTCOMES.items()
            ],
        )
        for number in counts
    ]
    return share_chart("redelivery", "How deliveries ended", "records", bars)
