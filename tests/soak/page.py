"""The page of a soak: the verdict, the totals, and plots over time, as one HTML file without scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape

from kshare_pipeline.report.charts import Line, line_chart
from kshare_pipeline.report.page import document, write_table
from kshare_pipeline.report.scales import duration_scale, linear_scale
from soak.samples import Sample
from soak.verdict import Totals, Trend

POINTS = 300
"""More samples than these are combined, each point the highest of its neighbours."""
HIDDEN_TOTALS = ("faults", "violations")
STYLE = ".good{color:#3f9e87}.bad{color:#c9484e}"


def page(
    described: Mapping[str, str],
    totals: Mapping[str, object],
    sound: Totals,
    trends: Sequence[Trend],
    samples: Sequence[Sample],
    began: datetime,
) -> str:
    """The whole page. `totals` are those of `sound` by name."""
    facts = "<br>".join(f"{escape(name)}: {escape(text)}" for name, text in described.items())
    passed = sound.is_sound and all(one.passes for one in trends)
    verdict = '<span class="good">passed</span>' if passed else '<span class="bad">failed</span>'
    rows = [[name.replace("_", " "), value] for name, value in totals.items() if name not in HIDDEN_TOTALS]
    faults = [[name, count] for name, count in sorted(sound.faults.items())]
    flat = [[one.name, f"{one.first:,.1f}", f"{one.last:,.1f}", f"{one.noise:,.1f}", one.verdict] for one in trends]
    problems = "".join(f"<li>{escape(text)}</li>" for text in sound.violations)
    charts = "".join(
        (
            _chart("latency", "Produce to delivery", "", samples, began, _latency),
            _chart("rate", "Deliveries", "per second", samples, began, lambda one: {"deliveries": one.delivered_per_s}),
            _chart("backlog", "Records sent and not settled", "records", samples, began, _backlog),
            _chart("memory", "Memory (RSS)", "MB", samples, began, lambda one: one.memory_mb),
            _chart("descriptors", "Open descriptors", "", samples, began, _descriptors),
            _chart("disk", "Data directory", "MB", samples, began, lambda one: {"disk": one.disk_mb}),
        )
    )
    body = (
        f"<h1>kshare soak: {verdict}</h1><p class='note'>{facts}</p>"
        + (f"<h2>Violations</h2><ul>{problems}</ul>" if problems else "")
        + f"<h2>Totals</h2>{write_table('totals', ('of all groups', 'count'), rows)}"
        f"<h2>Faults</h2>{write_table('faults', ('fault', 'times'), faults)}"
        f"<h2>Growth after the warm-up</h2>"
        f"{write_table('growth', ('figure', 'first third', 'last third', 'noise', 'verdict'), flat)}"
        f"<h2>Over time</h2><div class='charts'>{charts}</div>"
    )
    return document("kshare soak", body, STYLE)


def _latency(sample: Sample) -> dict[str, float]:
    found = {"p50": sample.p50_ms, "p99": sample.p99_ms}
    return {name: value for name, value in found.items() if value is not None}


def _backlog(sample: Sample) -> dict[str, float]:
    return {"backlog": float(sample.backlog)}


def _descriptors(sample: Sample) -> dict[str, float]:
    return {name: float(count) for name, count in sample.descriptors.items()}


def _chart(
    name: str,
    title: str,
    unit: str,
    samples: Sequence[Sample],
    began: datetime,
    of: Callable[[Sample], Mapping[str, float]],
) -> str:
    step = max(1, -(-len(samples) // POINTS))
    names = dict.fromkeys(line for sample in samples for line in of(sample))
    lines = [Line(line, _points(samples, step, began, of, line)) for line in names]
    return line_chart(name, title, unit, lines, scale=duration_scale if of is _latency else linear_scale)


def _points(
    samples: Sequence[Sample], step: int, began: datetime, of: Callable[[Sample], Mapping[str, float]], line: str
) -> list[tuple[datetime, float]]:
    found: list[tuple[datetime, float]] = []
    for at in range(0, len(samples), step):
        values = [of(sample)[line] for sample in samples[at : at + step] if line in of(sample)]
        if values:
            found.append((began + timedelta(seconds=samples[at].at_s), max(values)))
    return found
