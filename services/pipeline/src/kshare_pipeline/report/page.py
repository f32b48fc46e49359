"""The page: for each group its figures, charts, and the runs that no member could process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape

from kshare_pipeline.report.charts import Bar, Line, bar_chart, line_chart, number
from kshare_pipeline.report.figures import Figures, Interval, Row, interval_of, line, total, totals_by, window_line

MEMBERS_LIMIT = 7
"""The limit of members with separate lines, by records; the others are combined."""
POISON_ROWS_LIMIT = 100
OTHERS = "all others"
OUTCOMES = ("accepted", "released", "rejected", "expired", "not_delivered")

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2024;--soft:#60646c;--grid:#e4e6ea;--card:#f7f8fa}
@media(prefers-color-scheme:dark){:root{--back:#15171a;--text:#edeef0;--soft:#a0a5ad;--grid:#2c3036;--card:#1c1f23}}
body{margin:0 auto;padding:1.5rem;max-width:1560px;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0}h2{font-size:1.2rem;margin:2rem 0 .5rem;overflow-wrap:anywhere}h3{font-size:1rem}
small,.none,.note{color:var(--soft)}.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(440px,1fr));gap:1rem}
figure{margin:0;padding:.8rem;background:var(--card);border-radius:8px}figcaption{font-weight:600}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:11px}.grid{stroke:var(--grid)}
.line polyline{fill:none;stroke:var(--c);stroke-width:1.8}.line circle{fill:var(--c)}rect{fill:var(--c)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem .9rem;font-size:12px;color:var(--soft)}
.legend span{overflow-wrap:anywhere}
.legend i{display:inline-block;width:.7em;height:.7em;margin-right:.35em;border-radius:2px;background:var(--c)}
.c0{--c:#3b7dd8}.c1{--c:#e0803a}.c2{--c:#c9484e}.c3{--c:#3f9e87}
.c4{--c:#8a63d2}.c5{--c:#b8952c}.c6{--c:#d069a8}.c7{--c:#7d8590}
table{border-collapse:collapse;font-size:14px;width:100%}th,td{text-align:left;padding:.3rem .8rem .3rem 0;
border-bottom:1px solid var(--grid);overflow-wrap:anywhere}td.n,th.n{text-align:right}.wide{overflow-x:auto}
"""


def page(figures: Figures, now: datetime) -> str:
    """The whole page; `now` is its time of creation."""
    days = f"{figures.days[0]}" if len(figures.days) == 1 else f"{figures.days[0]} to {figures.days[-1]}"
    groups = figures.groups()
    sections = "".join(_section(figures, group, at) for at, group in enumerate(groups))
    return document(
        f"kshare deliveries, {days}",
        f"<h1>Deliveries, {days}</h1><p class='note'>UTC. Made {now:%Y-%m-%d %H:%M}. A run of offsets counts with"
        " all its records.</p>"
        f"{_summary(figures, groups)}{sections}",
    )


def document(title: str, body: str, style: str = "") -> str:
    """A page that loads nothing, and has no scripts; `style` is added to STYLE."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>{body}</body></html>\n"
    )


def write_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers are aligned right."""
    first = rows[0] if rows else [""] * len(columns)
    head = "".join(
        f'<th class="n">{escape(column)}</th>' if isinstance(value, (int, float)) else f"<th>{escape(column)}</th>"
        for column, value in zip(columns, first, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    table = f'<table data-table="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _cell(value: object) -> str:
    if isinstance(value, (int, float)):
        return f'<td class="n">{number(value)}</td>'
    return f"<td>{escape(str(value)) if value is not None else ''}</td>"


def _summary(figures: Figures, groups: Sequence[str]) -> str:
    columns = ("group", "acquired", *OUTCOMES, "archived", "dead letters", "p50 ms", "p99 ms", "events missing")
    rows = []
    for group in groups:
        redelivery, latency = figures.of("redelivery", group), figures.of("append_to_accept_by_day", group)
        rows.append(
            [
                group,
                total(redelivery, "acquired_records"),
                *[total(redelivery, f"{outcome}_records") for outcome in OUTCOMES],
                total(figures.of("archived", group), "records"),
                total(figures.of("dead_letters", group), "records"),
                _worst(latency, "p50_ms"),
                _worst(latency, "p99_ms"),
                total(figures.of("completeness", group), "missing_events"),
            ]
        )
    note = (
        "<p class='note'>Records. Percentiles are from append to accept, of the worst day. Missing events were lost on "
        "the way here; figures lack what they would have told.</p>"
    )
    return write_table("summary", columns, rows) + note


def _worst(rows: Sequence[Row], column: str) -> float | None:
    return max((row[column] for row in rows if row[column] is not None), default=None)


def _section(figures: Figures, group: str, at: int) -> str:
    minutes = [
        row["minute"] for mart in ("append_to_accept", "workers", "fairness", "lag") for row in figures.of(mart, group)
    ]
    interval = interval_of(minutes)
    span = f"{interval.seconds // 60} min"
    charts = [
        _latency(figures.of("append_to_accept", group), interval, span),
        _throughput(figures.of("workers", group), interval, span),
        _fairness(figures.of("fairness", group), interval, span),
        *_lag(figures.of("lag", group), interval, span),
        _redelivery(figures.of("redelivery", group)),
        _ended(figures, group),
    ]
    return (
        f'<section id="group-{at}" data-group="{escape(group)}"><h2>{escape(group)}</h2>'
        f'<div class="charts">{"".join(charts)}</div>{_poison(figures.of("poison_records", group))}</section>'
    )


def _latency(rows: Sequence[Row], interval: Interval, span: str) -> str:
    lines = [Line(name, line(rows, f"{name}_ms", interval, max)) for name in ("p50", "p90", "p99")]
    return line_chart("latency", f"From append to accept, worst minute of {span}", "ms", lines)


def _throughput(rows: Sequence[Row], interval: Interval, span: str) -> str:
    by_member = totals_by(rows, ["member_id"], "accepted_records")
    busiest = [key[0] for key, _ in sorted(by_member.items(), key=lambda item: -item[1])[:MEMBERS_LIMIT]]
    lines = [
        Line(member, line([row for row in rows if row["member_id"] == member], "accepted_records", interval, sum))
        for member in busiest
    ]
    others = [row for row in rows if row["member_id"] not in busiest]
    if others:
        lines.append(Line(OTHERS, line(others, "accepted_records", interval, sum)))
    return line_chart("throughput", "Accepted by each member", f"records in {span}", lines)


def _fairness(rows: Sequence[Row], interval: Interval, span: str) -> str:
    lines = [Line("Jain's index", line(rows, "fairness", interval, min))]
    return line_chart("fairness", f"Fairness between members, worst minute of {span}", "of 1", lines)


def _lag(rows: Sequence[Row], interval: Interval, span: str) -> list[str]:
    return [
        line_chart(
            "window",
            "Delivered and not below the start offset, all share-partitions",
            "records",
            [Line("window", window_line(rows, interval))],
        ),
        line_chart(
            "age",
            f"Age of the oldest record at its first delivery, in {span}",
            "ms",
            [Line("age", line(rows, "oldest_first_delivery_ms", interval, max))],
        ),
    ]


def _redelivery(rows: Sequence[Row]) -> str:
    counts = sorted({row["delivery_count"] for row in rows if row["delivery_count"] is not None})
    bars = [
        Bar(
            f"delivery {count}",
            [
                (outcome, float(total([row for row in rows if row["delivery_count"] == count], f"{outcome}_records")))
                for outcome in OUTCOMES
            ],
        )
        for count in counts
    ]
    return bar_chart("redelivery", "How deliveries ended, by delivery count", "records", bars)


def _ended(figures: Figures, group: str) -> str:
    archived = totals_by(figures.of("archived", group), ["reason"], "records")
    stored = totals_by(figures.of("dead_letters", group), ["dead_letter_topic", "reason"], "records")
    bars = [Bar(f"archived: {reason}", [("archived", float(count))]) for (reason,), count in archived.items()]
    bars += [Bar(f"{topic}: {reason}", [("dead letter", float(count))]) for (topic, reason), count in stored.items()]
    return bar_chart("dead-letters", "Archived, and stored as dead letters, by reason", "records", bars)


def _poison(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    worst = sorted(rows, key=lambda row: (-row["records"], row["topic"], row["partition"], row["first_offset"]))
    columns = ("topic", "partition", "first_offset", "last_offset", "records", "delivery_count", "reason", "time")
    cells = [
        [row[name] if name != "time" else f"{row[name]:%Y-%m-%d %H:%M:%S}" for name in columns]
        for row in worst[:POISON_ROWS_LIMIT]
    ]
    left_out = len(rows) - len(cells)
    note = f"<p class='note'>and {left_out} more runs</p>" if left_out else ""
    names = [column.replace("_", " ") for column in columns]
    return f"<h3>Records that nobody could process</h3>{write_table('poison', names, cells)}{note}"
