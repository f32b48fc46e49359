"""The axes of charts: where a value lies, the ticks, and their text. Pure.

A scale is made of the values that it has to show. One outlier must not flatten the rest: durations get a logarithmic
axis once they spread, and the axis of counts ends a little above all but the few highest values, which are marked at
its edge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor, log10

from kshare_pipeline.report.units import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    count,
    day_text,
    duration,
    percent,
    short_count,
)

TICKS = 4
TIME_TICKS_LIMIT = 7
USUAL_PART = 0.95
"""An axis of counts reaches this quantile of its values at least; what is far above is an outlier."""
OUTLIER_FACTOR = 4
LOG_FACTOR = 20
"""Durations whose highest is this many times the median get a logarithmic axis."""
LOG_TICKS_MS: tuple[float, ...] = (
    0.1,
    1,
    10,
    100,
    SECOND_MS,
    10 * SECOND_MS,
    MINUTE_MS,
    10 * MINUTE_MS,
    HOUR_MS,
    10 * HOUR_MS,
)
LOG_TICKS_MS += (4 * DAY_MS, 40 * DAY_MS, 400 * DAY_MS)
STEPS_MS = tuple(factor * 10**power for power in range(-2, 3) for factor in (1, 2, 5))
STEPS_MS += tuple(factor * SECOND_MS for factor in (1, 2, 5, 10, 15, 30))
STEPS_MS += tuple(factor * MINUTE_MS for factor in (1, 2, 5, 10, 15, 30))
STEPS_MS += tuple(factor * HOUR_MS for factor in (1, 2, 3, 6, 12))
STEPS_MS += tuple(factor * DAY_MS for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500))
TIME_STEPS = tuple(timedelta(minutes=each) for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720))
TIME_STEPS += tuple(timedelta(days=each) for each in (1, 2, 5, 10, 20, 50, 100, 200))


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `ticks[0]` to `ticks[-1]`; `shown` writes a value with its unit, `label` a tick."""

    ticks: Sequence[float]
    shown: Callable[[float], str]
    label: Callable[[float], str]
    is_logarithmic: bool = False

    def part(self, value: float) -> float:
        """Where the value lies: 0 is the lower end, 1 the upper; what is beyond lies at the end."""
        low, high = self.ticks[0], self.ticks[-1]
        held = min(max(value, low), high)
        if self.is_logarithmic:
            return (log10(held) - log10(low)) / (log10(high) - log10(low))
        return (held - low) / (high - low)

    def is_outlier(self, value: float) -> bool:
        return value > self.ticks[-1]


def nice_top(value: float) -> float:
    """The top of an axis: 1, 2 or 5 times a power of ten, not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-12))


def even_ticks(top: float) -> list[float]:
    return [top * tick / TICKS for tick in range(TICKS + 1)]


def linear_scale(values: Sequence[float]) -> Scale:
    """From zero to above the highest value."""
    return Scale(even_ticks(nice_top(max(values, default=0))), count, short_count)


def count_scale(values: Sequence[float]) -> Scale:
    """From zero to above the highest value, or to above the usual ones if the highest is an outlier."""
    highest, usual = max(values, default=0), _quantile(values, USUAL_PART)
    reached = usual * 1.1 if usual and highest > OUTLIER_FACTOR * usual else highest
    return Scale(even_ticks(nice_top(reached)), count, short_count)


def share_scale(values: Sequence[float]) -> Scale:
    """From 0 % to 100 %, of values from 0 to 1."""
    del values  # the whole is always shown, so that charts can be compared
    return Scale(even_ticks(1.0), lambda value: percent(value, 1), lambda value: f"{100 * value:.0f} %")


def duration_scale(values: Sequence[float]) -> Scale:
    """Of milliseconds, with ticks at whole units of time; logarithmic if the highest is far above the median."""
    highest, median = max(values, default=0), _quantile(values, 0.5)
    if median > 0 and highest > LOG_FACTOR * median:
        return Scale(_log_ticks(min(value for value in values if value > 0), highest), duration, duration, True)
    step = next((each for each in STEPS_MS if each * TICKS >= highest), STEPS_MS[-1])
    ticks = max(1, ceil(highest / step - 1e-9))
    return Scale([step * tick for tick in range(ticks + 1)], duration, duration)


def _log_ticks(lowest: float, highest: float) -> Sequence[float]:
    first = max((at for at, tick in enumerate(LOG_TICKS_MS) if tick <= lowest), default=0)
    last = min((at for at, tick in enumerate(LOG_TICKS_MS) if tick >= highest), default=len(LOG_TICKS_MS) - 1)
    return LOG_TICKS_MS[first : max(last, first + 1) + 1]


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def time_ticks(first: datetime, last: datetime) -> list[datetime]:
    """Round moments between the two at equal distances, at most TIME_TICKS_LIMIT; `first` if there are none."""
    midnight = datetime(first.year, first.month, first.day, tzinfo=UTC)
    for step in TIME_STEPS:
        begin = midnight + ceil((first - midnight) / step) * step
        ticks = [begin + at * step for at in range(TIME_TICKS_LIMIT + 1) if begin + at * step <= last]
        if len(ticks) <= TIME_TICKS_LIMIT:
            return ticks or [first]
    return [first, last]


def time_label(moment: datetime, span: timedelta) -> str:
    """14:05; 20 Nov at midnight of a span of several days."""
    is_midnight = not (moment.hour or moment.minute)
    return day_text(moment) if is_midnight and span > timedelta(hours=20) else f"{moment:%H:%M}"
