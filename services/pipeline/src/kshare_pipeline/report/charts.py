"""Charts as SVG: lines over time, and stacked bars. Each mark has its value as `data-value` and as a tooltip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from math import ceil, floor, log10

from kshare_pipeline.report.figures import Point

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
TICKS = 4
TIME_TICKS = 6
COLORS = 8
"""Classes c0 to c7 of the page's style."""
BAR_WIDTH_LIMIT = 64
NOTHING = "nothing in these days"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, by its name in the legend."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar: the names of its parts, as in the legend, and their values."""

    label: str
    parts: Sequence[tuple[str, float]]


def line_chart(name: str, title: str, unit: str, lines: Sequence[Line]) -> str:
    """Lines over time, from zero up. Each line is a polyline, and each point a circle."""
    shown = [line for line in lines if line.points]
    if not shown:
        return figure(name, title, unit, "", [])
    times = [moment for line in shown for moment, _ in line.points]
    first, last = min(times), max(times)
    top = nice_top(max(value for line in shown for _, value in line.points))
    span_s = (last - first).total_seconds()

    def x(moment: datetime) -> float:
        if not span_s:
            return LEFT + PLOT_WIDTH / 2
        return LEFT + PLOT_WIDTH * (moment - first).total_seconds() / span_s

    parts = [value_axis(top), _time_axis(first, last, x)]
    for number, line in enumerate(shown):
        parts.append(
            _line_marks(line, number % COLORS, [(x(at), value_y(value, top)) for at, value in line.points], unit)
        )
    return figure(name, title, unit, "".join(parts), [line.name for line in shown])


def _line_marks(line: Line, color: int, places: Sequence[tuple[float, float]], unit: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    circles = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" data-value="{number(value)}">'
        f"<title>{escape(line.name)}, {moment:%Y-%m-%d %H:%M}: {number(value)} {unit}</title></circle>"
        for (x, y), (moment, value) in zip(places, line.points, strict=True)
    )
    return f'<g class="line c{color}" data-series="{escape(line.name)}"><polyline points="{path}"/>{circles}</g>'


def bar_chart(name: str, title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Stacked bars, side by side."""
    names: list[str] = list(dict.fromkeys(part for bar in bars for part, value in bar.parts if value))
    top = nice_top(max((sum(value for _, value in bar.parts) for bar in bars), default=0))
    if not names:
        return figure(name, title, unit, "", [])
    step = PLOT_WIDTH / len(bars)
    width = min(step * 0.7, BAR_WIDTH_LIMIT)
    marks = "".join(_bar_marks(bar, LEFT + step * (at + 0.5), width, top, names, unit) for at, bar in enumerate(bars))
    return figure(name, title, unit, value_axis(top) + marks, names)


def _bar_marks(bar: Bar, middle: float, width: float, top: float, names: Sequence[str], unit: str) -> str:
    found: list[str] = []
    below = 0.0
    for part, value in bar.parts:
        if value:
            upper, lower = value_y(below + value, top), value_y(below, top)
            found.append(
                f'<rect class="c{names.index(part) % COLORS}" x="{middle - width / 2:.1f}" y="{upper:.2f}"'
                f' width="{width:.1f}" height="{lower - upper:.2f}" data-part="{escape(part)}"'
                f' data-value="{number(value)}"><title>{escape(bar.label)}, {escape(part)}: {number(value)} {unit}'
                "</title></rect>"
            )
            below += value
    label = f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(shortened(bar.label, 24))}</text>'
    return f'<g class="bar" data-bar="{escape(bar.label)}">{"".join(found)}{label}</g>'


def nice_top(value: float) -> float:
    """The top of an axis: 1, 2 or 5 times a power of ten, not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-12))


def number(value: float) -> str:
    """A number as text: an integer, or with three decimals."""
    return str(round(value)) if abs(value - round(value)) < 1e-9 else f"{value:.3f}"


def value_y(value: float, top: float) -> float:
    """Where a value lies on the axis of `value_axis`."""
    return TOP + PLOT_HEIGHT * (1 - value / top)


def value_axis(top: float) -> str:
    """The grid and the labels of an axis from zero to `top`."""
    found: list[str] = []
    for tick in range(TICKS + 1):
        value = top * tick / TICKS
        y = value_y(value, top)
        found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short_number(value)}</text>')
    return "".join(found)


def _short_number(value: float) -> str:
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def _time_axis(first: datetime, last: datetime, x: object) -> str:
    assert callable(x)
    span = last - first
    count = max(1, min(TIME_TICKS, ceil(span.total_seconds() / 60))) if span else 1
    pattern = "%H:%M" if span.days < 2 else "%m-%d %H:%M"
    moments: Iterable[datetime] = [first + span * tick / count for tick in range(count + 1)] if span else [first]
    return "".join(_time_ticks(moments, pattern, x))


def _time_ticks(moments: Iterable[datetime], pattern: str, x: object) -> Iterator[str]:
    assert callable(x)
    for moment in moments:
        yield f'<text x="{x(moment):.1f}" y="{HEIGHT - 10}" text-anchor="middle">{moment:{pattern}}</text>'


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def figure(
    name: str, title: str, unit: str, marks: str, names: Sequence[str], *, height: float = HEIGHT, none: str = NOTHING
) -> str:
    """A chart around its marks; `names` are those of its legend in the order of colors, `none` stands for no marks."""
    caption = f"<figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>"
    if not marks:
        return f'<figure data-chart="{escape(name)}">{caption}<p class="none">{none}</p></figure>'
    legend = "".join(
        f'<span class="c{at % COLORS}"><i></i>{escape(shortened(one, 60))}</span>' for at, one in enumerate(names)
    )
    return (
        f'<figure data-chart="{escape(name)}">{caption}<svg viewBox="0 0 {WIDTH} {height:g}" role="img"'
        f' aria-label="{escape(title)}">{marks}</svg><div class="legend">{legend}</div></figure>'
    )
