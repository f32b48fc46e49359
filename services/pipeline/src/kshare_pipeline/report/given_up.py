"""Records that were given up, grouped by reason: how many, where their dead letters are, and examples to look at."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kshare_core.delivery_history import REASON_GAP, REASON_MISSING_IN_LOG
from kshare_pipeline.report.figures import Figures, Row, totals_by
from kshare_pipeline.report.units import count, counted, offsets, ordinal, reason_text

EXAMPLES_LIMIT = 8
"""The limit of examples of a reason, the latest first."""
USUAL_REASONS = (REASON_GAP, REASON_MISSING_IN_LOG)
"""No record was lost: there was none that the group may see."""
PEEK_LIMIT = 5


def given_up(figures: Figures, group: str) -> str:
    """A part for each reason, the most records first; empty where no record was archived."""
    archived, stored, examples = (figures.of(mart, group) for mart in ("archived", "dead_letters", "poison_records"))
    reasons = {row["reason"] for rows in (archived, stored, examples) for row in rows} - set(USUAL_REASONS)
    amounts = {reason: sum(row["records"] for row in archived if row["reason"] == reason) for reason in reasons}
    parts = "".join(
        _reason(reason, amounts[reason], _with(stored, reason), _with(examples, reason))
        for reason in sorted(reasons, key=lambda reason: (-amounts[reason], reason))
    )
    title = "<h3>Records that were given up</h3>" if parts else ""
    return f"{title}{parts}{_usual(archived)}"


def _with(rows: Sequence[Row], reason: str) -> list[Row]:
    return [row for row in rows if row["reason"] == reason]


def _reason(reason: str, records: int, stored: Sequence[Row], examples: Sequence[Row]) -> str:
    by_topic = totals_by(stored, ["topic", "dead_letter_topic"], "records")
    kept = ", ".join(f"{count(amount)} of {topic} in {there}" for (topic, there), amount in by_topic.items())
    letters = f"Dead letters: {kept}." if kept else "No dead letters were stored."
    title = f"<h4>{_sentence(reason_text(reason))}: {counted(records, 'record')}</h4>"
    head = f"{title}<p class='note'>{escape(letters)}</p>"
    return f'<div data-reason="{escape(reason)}">{head}{_examples(examples)}</div>'


def _sentence(text: str) -> str:
    return escape(f"{text[:1].upper()}{text[1:]}")


def _examples(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    latest = sorted(rows, key=lambda row: (row["time"], row["first_offset"]), reverse=True)[:EXAMPLES_LIMIT]
    body = "".join(f"<tr>{''.join(_cell(name, text) for name, text in _example(row).items())}</tr>" for row in latest)
    head = "".join(f"<th>{name}</th>" for name in _example(latest[0]))
    table = f'<table class="stack" data-table="examples"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    first = latest[0]
    command = (
        f"kshare peek {first['topic']} --partition {first['partition']} --offset {first['first_offset']}"
        f" --max {min(first['records'], PEEK_LIMIT)}"
    )
    left_out = len(rows) - len(latest)
    more = f"The latest {len(latest)} of {counted(len(rows), 'run')} of offsets. " if left_out else ""
    return f"{table}<p class='note'>{more}To see the first: <code>{escape(command)}</code></p>"


def _cell(column: str, text: str) -> str:
    return f'<td data-label="{column}">{escape(text)}</td>'


def _example(row: Row) -> dict[str, str]:
    """Cells by column."""
    records = f" ({counted(row['records'], 'record')})" if row["records"] > 1 else ""
    return {
        "where": f"{row['topic']}, partition {row['partition']}",
        "offsets": f"{offsets(row['first_offset'], row['last_offset'])}{records}",
        "given up after": f"{ordinal(row['delivery_count'])} delivery" if row["delivery_count"] else "",
        "time": f"{row['time']:%Y-%m-%d %H:%M:%S}",
    }


def _usual(archived: Sequence[Row]) -> str:
    amounts = totals_by([row for row in archived if row["reason"] in USUAL_REASONS], ["reason"], "records")
    if not amounts:
        return ""
    told = "; ".join(f"{count(records)} {reason_text(reason)}" for (reason,), records in amounts.items())
    return f"<p class='note'>Offsets without a record for the group: {escape(told)}.</p>"
