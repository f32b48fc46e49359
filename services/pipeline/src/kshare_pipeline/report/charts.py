"""Charts as SVG: lines over time, and bars. Each mark has its value as `data-value` and as a tooltip.

A chart is as wide as a column of the page. On a phone it is smaller, and the page's style makes its text larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from kshare_pipeline.report.figures import Point
from kshare_pipeline.report.scales import Scale, even_ticks, linear_scale, time_label, time_ticks
from kshare_pipeline.report.units import count, percent, short_count

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 16, 28
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
COLORS = 8
"""Classes c0 to c7 of the page's style."""
BAR_WIDTH_LIMIT = 64
NOTHING = "Nothing in these days."
RADIUS, ALONE_RADIUS = 1, 2.2
"""Of points; one without a neighbour has no line that shows it."""
GAP_STEPS = 1.5
"""Points whose distance is more than this many steps have no line between them: there is no data."""

Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, by its name in the legend."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of parts: the names of its parts, as in the legend, and their values."""

    label: str
    parts: Sequence[tuple[str, float]]


def line_chart(
    name: str,
    title: str,
    unit: str,
    lines: Sequence[Line],
    *,
    scale: Callable[[Sequence[float]], Scale] = linear_scale,
    step: timedelta | None = None,
    span: Span | None = None,
) -> str:
    """Lines over time. Points further apart than `step` are not joined; `span` is the axis, else that of the points."""
    shown = [line for line in lines if line.points]
    if not shown:
        return figure(name, title, unit, "", [])
    times = [moment for line in shown for moment, _ in line.points]
    first, last = span or (min(times), max(times))
    axis = scale([value for line in shown for _, value in line.points])
    span_s = (last - first).total_seconds()

    def x(moment: datetime) -> float:
        if not span_s:
            return LEFT + PLOT_WIDTH / 2
        return LEFT + PLOT_WIDTH * (moment - first).total_seconds() / span_s

    parts = [value_axis(axis), _time_axis(first, last, x)]
    for at, line in enumerate(shown):
        places = [(x(moment), scale_y(value, axis)) for moment, value in line.points]
        parts.append(_line_marks(line, at % COLORS, places, axis, unit, step))
    note = _outliers([value for line in shown for _, value in line.points], axis)
    more = f"{unit}, logarithmic axis" if axis.is_logarithmic else unit
    return figure(name, title, more.removeprefix(", "), "".join(parts), [line.name for line in shown], note=note)


def _outliers(values: Sequence[float], axis: Scale) -> str:
    beyond = [value for value in values if axis.is_outlier(value)]
    if not beyond:
        return ""
    many = "1 value lies" if len(beyond) == 1 else f"{len(beyond)} values lie"
    return f"▲ {many} above the axis; the highest is {axis.shown(max(beyond))}."


def _line_marks(
    line: Line, color: int, places: Sequence[tuple[float, float]], axis: Scale, unit: str, step: timedelta | None
) -> str:
    pieces = _joined(line.points, places, step)
    paths = "".join(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in piece)}"/>' for piece in pieces)
    alone = {piece[0] for piece in pieces if len(piece) == 1}
    marks = "".join(
        _mark(
            f"{line.name}, {moment:%Y-%m-%d %H:%M}: {axis.shown(value)} {unit}".rstrip(),
            value,
            place,
            axis,
            radius=ALONE_RADIUS if place in alone else RADIUS,
        )
        for place, (moment, value) in zip(places, line.points, strict=True)
    )
    return f'<g class="line c{color}" data-series="{escape(line.name)}">{paths}{marks}</g>'


def _joined(
    points: Sequence[Point], places: Sequence[tuple[float, float]], step: timedelta | None
) -> list[list[tuple[float, float]]]:
    """The pieces of a line, which is interrupted where points are missing."""
    pieces: list[list[tuple[float, float]]] = []
    before: datetime | None = None
    for (moment, _), place in zip(points, places, strict=True):
        if before is None or (step is not None and moment - before > step * GAP_STEPS):
            pieces.append([])
        pieces[-1].append(place)
        before = moment
    return pieces


def _mark(text: str, value: float, place: tuple[float, float], axis: Scale, *, radius: float) -> str:
    x, y = place
    title = f"<title>{escape(text)}</title>"
    if axis.is_outlier(value):
        corners = f"{x - 5:.1f},{y + 4:.1f} {x + 5:.1f},{y + 4:.1f} {x:.1f},{y - 5:.1f}"
        return f'<polygon class="outlier" points="{corners}" data-value="{number(value)}">{title}</polygon>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" data-value="{number(value)}">{title}</circle>'


def share_chart(name: str, title: str, unit: str, bars: Sequence[Bar]) -> str:
    """A row for each bar: the shares of its parts, so that small bars can be read beside large ones."""
    shown = [bar for bar in bars if any(value for _, value in bar.parts)]
    names = list(dict.fromkeys(part for bar in shown for part, value in bar.parts if value))
    if not names:
        return figure(name, title, unit, "", [])
    row, top = 40, 4
    rows = "".join(_share_marks(bar, top + row * at, names, unit) for at, bar in enumerate(shown))
    return figure(name, title, unit, rows, names, height=top + row * len(shown))


def _share_marks(bar: Bar, y: float, names: Sequence[str], unit: str) -> str:
    whole = sum(value for _, value in bar.parts)
    x, found = 0.0, []
    for part, value in bar.parts:
        if value:
            width = WIDTH * value / whole
            text = f"{bar.label}, {part}: {count(value)} {unit} ({percent(value, whole)})"
            found.append(
                f'<rect class="c{names.index(part) % COLORS}" x="{x:.2f}" y="{y + 18:.1f}" width="{width:.2f}"'
                f' height="14" data-part="{escape(part)}" data-value="{number(value)}">'
                f"<title>{escape(text)}</title></rect>"
            )
            x += width
    label = f'<text class="row" x="0" y="{y + 13:.1f}">{escape(bar.label)}</text>'
    amount = f'<text x="{WIDTH}" y="{y + 13:.1f}" text-anchor="end">{count(whole)} {escape(unit)}</text>'
    return f'<g class="bar" data-bar="{escape(bar.label)}">{label}{amount}{"".join(found)}</g>'


def number(value: float) -> str:
    """A number for programs: an integer, or with three decimals."""
    return str(round(value)) if abs(value - round(value)) < 1e-9 else f"{value:.3f}"


def scale_y(value: float, axis: Scale) -> float:
    """Where a value lies on the axis of `value_axis`."""
    return TOP + PLOT_HEIGHT * (1 - axis.part(value))


def value_axis(axis: Scale) -> str:
    """The grid and the labels of an axis."""
    found: list[str] = []
    for value in axis.ticks:
        y = scale_y(value, axis)
        found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(axis.label(value))}</text>')
    return "".join(found)


def top_scale(top: float) -> Scale:
    """From zero to `top`."""
    return Scale(even_ticks(top), count, short_count)


def _time_axis(first: datetime, last: datetime, x: Callable[[datetime], float]) -> str:
    found: list[str] = []
    for moment in time_ticks(first, last):
        label = escape(time_label(moment, last - first))
        at = x(moment)
        found.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        place = min(max(at, LEFT), WIDTH - 26)  # so that the last label is not cut off
        found.append(f'<text class="time" x="{place:.1f}" y="{HEIGHT - 9}" text-anchor="middle">{label}</text>')
    return "".join(found)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def figure(
    name: str,
    title: str,
    unit: str,
    marks: str,
    names: Sequence[str],
    *,
    width: float = WIDTH,
    height: float = HEIGHT,
    none: str = NOTHING,
    note: str = "",
) -> str:
    """A chart around its marks; `names` are those of its legend in the order of colors, `none` stands for no marks."""
    caption = f"<figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>"
    if not marks:
        return f'<figure data-chart="{escape(name)}">{caption}<p class="none">{none}</p></figure>'
    legend = "".join(
        f'<span class="c{at % COLORS}"><i></i>{escape(shortened(one, 60))}</span>' for at, one in enumerate(names)
    )
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<figure data-chart="{escape(name)}">{caption}<svg viewBox="0 0 {width:g} {height:g}" role="img"'
        f' aria-label="{escape(title)}">{marks}</svg><div class="legend">{legend}</div>{below}</figure>'
    )
