"""The report's data, read from the marts' files of the requested days. Pure except for reading the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from kshare_pipeline.tables.layout import Layout, days_of

Row = Mapping[str, Any]
POINTS_LIMIT = 240
"""The limit of points in a line; more minutes are combined into intervals."""
MINUTE_S = 60

MART_NAMES = (
    "append_to_accept",
    "append_to_accept_by_day",
    "redelivery",
    "workers",
    "members",
    "fairness",
    "lag",
    "poison_records",
    "dead_letters",
    "archived",
    "completeness",
)


class NoMarts(Exception):
    """There is no data for the report; the text has the folder."""


@dataclass(frozen=True, slots=True)
class Figures:
    """All rows of the marts for the requested groups."""

    days: Sequence[date]
    rows: Mapping[str, Sequence[Row]]
    _by_group: dict[str, dict[str, list[Row]]] = field(default_factory=dict, init=False, repr=False)
    """By mart and group, since each group's section asks for its rows many times."""

    def groups(self) -> list[str]:
        return sorted({row["group"] for rows in self.rows.values() for row in rows})

    def of(self, mart: str, group: str) -> list[Row]:
        if mart not in self._by_group:
            found: dict[str, list[Row]] = {}
            for row in self.rows[mart]:
                found.setdefault(row["group"], []).append(row)
            self._by_group[mart] = found
        return self._by_group[mart].get(group, [])

    def client_ids(self, group: str) -> dict[str, str]:
        """By member id, of the members whose client id is known."""
        return {row["member_id"]: row["client_id"] for row in self.of("members", group)}

    def last_minute(self) -> datetime | None:
        """The last minute in which something happened."""
        minutes = [row["minute"] for rows in self.rows.values() for row in rows if row.get("minute") is not None]
        return utc(max(minutes, key=utc)) if minutes else None


def utc(moment: datetime) -> datetime:
    """Parquet's times without a zone are UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_figures(
    layout: Layout, *, groups: Sequence[str] = (), first: date | None = None, last: date | None = None
) -> Figures:
    """The marts of the days from `first` to `last` and of `groups`; all groups if empty.

    NoMarts without any day, and for a requested group that has no rows.
    """
    present = days_of(layout.marts / MART_NAMES[0])
    days = [day for day in present if (first is None or day >= first) and (last is None or day <= last)]
    if not days:
        reach = f"they are from {present[0]} to {present[-1]}" if present else "there are none"
        raise NoMarts(f"no marts of the days that were asked for in {layout.marts}: {reach}")
    figures = Figures(days, {name: list(_rows([layout.mart_file(name, day) for day in days])) for name in MART_NAMES})
    if not groups:
        return figures
    known = figures.groups()
    missing = sorted(set(groups) - set(known))
    if missing:
        text = f"no marts of {days[0]} to {days[-1]} tell of group {', '.join(missing)}; they have {', '.join(known)}"
        raise NoMarts(text)
    wanted = {name: [row for row in rows if row["group"] in groups] for name, rows in figures.rows.items()}
    return Figures(days, wanted)


def _rows(files: Iterable[Path]) -> Iterable[Row]:
    for file in files:
        if file.exists():
            yield from parquet.ParquetFile(file).read().to_pylist()


@dataclass(frozen=True, slots=True)
class Interval:
    """The interval of a line's points, such that it has at most POINTS_LIMIT points."""

    seconds: int

    def begin(self, minute: datetime) -> datetime:
        second = int(utc(minute).timestamp())
        return datetime.fromtimestamp(second - second % self.seconds, UTC)


def interval_of(minutes: Iterable[datetime]) -> Interval:
    """The shortest that fits: 1, 2, 5, 10, 15, 30 minutes, or hours."""
    seconds = [int(utc(minute).timestamp()) for minute in minutes]
    span_s = max(seconds, default=0) - min(seconds, default=0) + MINUTE_S
    choices = [MINUTE_S * count for count in (1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1440)]
    return Interval(next((one for one in choices if span_s / one <= POINTS_LIMIT), choices[-1]))


Point = tuple[datetime, float]


def line(
    rows: Iterable[Row], column: str, interval: Interval, joined: Callable[[Sequence[float]], float]
) -> list[Point]:
    """One point for each interval in which the column has a value, in order; `joined` makes one value of several."""
    found: dict[datetime, list[float]] = {}
    for row in rows:
        if row[column] is not None:
            found.setdefault(interval.begin(row["minute"]), []).append(float(row[column]))
    return [(begin, joined(values)) for begin, values in sorted(found.items())]


def total(rows: Iterable[Row], column: str) -> int:
    return sum(row[column] or 0 for row in rows)


def totals_by(rows: Iterable[Row], by: Sequence[str], column: str) -> dict[tuple[Any, ...], int]:
    """Sums by the values of `by`, in their order; null values last."""
    found: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        found[key] = found.get(key, 0) + (row[column] or 0)
    return dict(sorted(found.items(), key=lambda item: [(value is None, value) for value in item[0]]))


def window_line(rows: Sequence[Row], interval: Interval) -> list[Point]:
    """The sum of `window_records` over share-partitions; each keeps its last value until the next one."""
    latest: dict[tuple[str, int], int] = {}
    found: dict[datetime, float] = {}
    for row in sorted(rows, key=lambda row: row["minute"]):
        if row["window_records"] is not None:
            latest[row["topic_id"], row["partition"]] = row["window_records"]
            found[interval.begin(row["minute"])] = float(sum(latest.values()))
    return sorted(found.items())
