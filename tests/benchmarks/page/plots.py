"""Plots of a benchmark as SVG, in the frames and on the axes of kshare's own report (`kshare_pipeline.report.charts`).

Each mark has its value as `data-value` and as a tooltip. A system has the same color in every plot of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log2

from benchmarks.rounds import Spread, spread
from benchmarks.scaling.flatness import Series
from kshare_pipeline.report.charts import (
    BAR_WIDTH_LIMIT,
    COLORS,
    HEIGHT,
    LEFT,
    PLOT_WIDTH,
    figure,
    number,
    scale_y,
    shortened,
    top_scale,
    value_axis,
)
from kshare_pipeline.report.scales import Scale, nice_top

NONE = "no samples"
ROW_HEIGHT, LABEL_WIDTH, RATIO_WIDTH = 15, 345, 720
LABEL_LENGTH = 70
SAMPLE_STEP = 4
"""Pixels between the dots of two rounds."""
RATIO_LIMIT = 64.0
"""Ratios beyond it, and below its inverse, lie at the edge; the tooltip has the value."""


def sample_plot(name: str, better: str, by_system: Mapping[str, Sequence[float]], systems: Sequence[str]) -> str:
    """A bar for each system: its median, its quartiles, and a dot for each sample. The legend has the names."""
    shown = [system for system in systems if by_system.get(system)]
    axis = top_scale(nice_top(max((max(by_system[system]) for system in shown), default=0.0)))
    step = PLOT_WIDTH / max(1, len(shown))
    marks = []
    for at, system in enumerate(shown):
        samples, middle = by_system[system], LEFT + step * (at + 0.5)
        found, width = spread(samples), min(step * 0.6, BAR_WIDTH_LIMIT)
        upper = scale_y(found.median, axis)
        dots = "".join(
            f'<circle class="sample" cx="{middle + (place - (len(samples) - 1) / 2) * SAMPLE_STEP:.1f}"'
            f' cy="{scale_y(value, axis):.1f}" r="2" data-value="{number(value)}"/>'
            for place, value in enumerate(samples)
        )
        marks.append(
            f'<g data-system="{escape(system)}"><rect class="c{_color(system, systems)}" x="{middle - width / 2:.1f}"'
            f' y="{upper:.2f}" width="{width:.1f}" height="{scale_y(0, axis) - upper:.2f}"'
            f' data-value="{number(found.median)}"><title>{_told(system, found)}</title></rect>'
            f"{_whisker(middle, found, axis)}{dots}</g>"
        )
    return figure(name, name, better, value_axis(axis) + "".join(marks) if marks else "", systems, none=NONE)


def size_plot(name: str, better: str, sizes: Series, systems: Sequence[str]) -> str:
    """A line for each system over the sizes, which stand side by side at equal distances."""
    shown = [system for system in systems if any(by_system.get(system) for by_system in sizes.values())]
    spreads = {
        system: {size: spread(by_system[system]) for size, by_system in sizes.items() if by_system.get(system)}
        for system in shown
    }
    highest = max((found.upper for by_size in spreads.values() for found in by_size.values()), default=0.0)
    axis = top_scale(nice_top(highest))
    step = PLOT_WIDTH / len(sizes)
    places = {size: LEFT + step * (at + 0.5) for at, size in enumerate(sizes)}
    lines = "".join(_size_line(system, spreads[system], places, axis, _color(system, systems)) for system in shown)
    labels = "".join(
        f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{size:,}</text>' for size, x in places.items()
    )
    return figure(name, name, better, value_axis(axis) + labels + lines if lines else "", systems, none=NONE)


def _size_line(system: str, by_size: Mapping[int, Spread], places: Mapping[int, float], axis: Scale, color: int) -> str:
    path = " ".join(f"{places[size]:.1f},{scale_y(found.median, axis):.1f}" for size, found in by_size.items())
    marks = "".join(
        f"{_whisker(places[size], found, axis)}"
        f'<circle cx="{places[size]:.1f}" cy="{scale_y(found.median, axis):.1f}" r="3.5"'
        f' data-value="{number(found.median)}"><title>{size:,}: {_told(system, found)}</title></circle>'
        for size, found in by_size.items()
    )
    return f'<g class="line c{color}" data-system="{escape(system)}"><polyline points="{path}"/>{marks}</g>'


def ratio_plot(title: str, rows: Mapping[str, Mapping[str, Spread]], systems: Sequence[str]) -> str:
    """A row for each figure, on a logarithmic axis: a point and its quartiles for each system that has a ratio."""
    shown = {name: by_system for name, by_system in rows.items() if by_system}
    all_found = [found for by_system in shown.values() for found in by_system.values()]
    lowest = floor(min((log2(_bounded(found.lower)) for found in all_found), default=-1.0))
    highest = ceil(max((log2(_bounded(found.upper)) for found in all_found), default=1.0))
    lowest, highest = min(lowest, -1), max(highest, 1)
    height = ROW_HEIGHT * (len(shown) + 2)

    def x(ratio: float) -> float:
        place = (log2(_bounded(ratio)) - lowest) / (highest - lowest)
        return LABEL_WIDTH + (RATIO_WIDTH - 32 - LABEL_WIDTH) * place

    axis = "".join(
        f'<line class="{"even" if power == 0 else "grid"}" x1="{x(2.0**power):.1f}" x2="{x(2.0**power):.1f}" y1="4"'
        f' y2="{height - ROW_HEIGHT:.1f}"/><text x="{x(2.0**power):.1f}" y="{height - 5:.1f}"'
        f' text-anchor="middle">{_power_of_two(power)}</text>'
        for power in range(lowest, highest + 1)
    )
    marks = []
    for at, (name, by_system) in enumerate(shown.items()):
        y = ROW_HEIGHT * (at + 0.8)
        points = "".join(
            f'<g class="ratio c{_color(system, systems)}" data-system="{escape(system)}">'
            f'<line x1="{x(found.lower):.1f}" x2="{x(found.upper):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<circle cx="{x(found.median):.1f}" cy="{y:.1f}" r="3.5" data-value="{number(found.median)}">'
            f"<title>{escape(name)}, {_told(system, found)}</title></circle></g>"
            for system, found in by_system.items()
        )
        text = escape(shortened(name, LABEL_LENGTH))
        label = f'<text class="row" x="{LABEL_WIDTH - 10}" y="{y + 3:.1f}" text-anchor="end">{text}</text>'
        marks.append(f'<g data-figure="{escape(name)}">{label}{points}</g>')
    shown_marks = axis + "".join(marks) if marks else ""
    return figure("ratios", title, "", shown_marks, systems, width=RATIO_WIDTH, height=height, none=NONE)


def _power_of_two(power: int) -> str:
    return f"{2**power}" if power >= 0 else f"1/{2**-power}"


def _bounded(ratio: float) -> float:
    return min(max(ratio, 1 / RATIO_LIMIT), RATIO_LIMIT)


def _color(system: str, systems: Sequence[str]) -> int:
    return systems.index(system) % COLORS


def _whisker(x: float, found: Spread, axis: Scale) -> str:
    upper, lower = scale_y(found.upper, axis), scale_y(found.lower, axis)
    return f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{upper:.1f}" y2="{lower:.1f}"/>'


def _told(system: str, found: Spread) -> str:
    return f"{escape(system)}: {number(found.median)} [{number(found.lower)} to {number(found.upper)}]"
