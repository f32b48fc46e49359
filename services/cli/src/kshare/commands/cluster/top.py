"""`kshare top`: groups by lag and topics by records per second, live.

Rates are differences of two readings: a topic's records are the advance of its end offsets, and the records that a
group finished are that advance less the growth of its lag. The first view has no rates. Only partitions that both
readings have are compared: one without a leader has no end offset, and would else seem to lose or gain its whole log.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console

from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach
from kshare.commands.groups.listing import clients_text
from kshare.commands.groups.overview import GroupOverview, read_overviews
from kshare.commands.offsets import LATEST, look_up_offsets
from kshare.output import Listing, Row, counted, show

Ends = Mapping[str, Mapping[int, int]]
"""By topic, the end offset of each partition that has a leader."""


class Reading(NamedTuple):
    """What the cluster has at a time."""

    at_s: float
    groups: Sequence[GroupOverview]
    ends: Ends


class GroupRate(NamedTuple):
    """A group with its rates per second; None without a reading before, or where a lag or an end offset is unknown."""

    group: GroupOverview
    finished: float | None = None
    lag_change: float | None = None

    @property
    def seconds_to_empty(self) -> float | None:
        """When the lag will be gone at the present rate; None if it does not shrink."""
        if self.lag_change is None or not self.group.lag or self.lag_change >= 0:
            return None
        return self.group.lag / -self.lag_change


class Top:
    """The views of `kshare top` on one cluster; it keeps the reading before."""

    def __init__(self, bootstrap: str, properties: Properties = NO_PROPERTIES, *, limit: int, as_json: bool) -> None:
        self._bootstrap = bootstrap
        self._properties = properties
        self._limit = limit
        self._as_json = as_json
        self._before: Reading | None = None

    def show(self, console: Console) -> None:
        now = read(self._bootstrap, self._properties)
        show(console, *listings(self._before, now, self._limit), as_json=self._as_json)
        self._before = now


def read(bootstrap: str, properties: Properties) -> Reading:
    """Groups, and ends of topics that are not internal. CommandFailed."""
    topics = [topic for topic in reach(bootstrap, properties).topics if not topic.is_internal]
    partitions = [
        (str(topic.name), int(partition.partition_index))
        for topic in topics
        for partition in topic.partitions
        if partition.leader_id >= 0
    ]
    groups = read_overviews(bootstrap, properties)
    ends: dict[str, dict[int, int]] = {str(topic.name): {} for topic in topics}
    found = look_up_offsets(bootstrap, partitions, LATEST, properties) if partitions else {}
    for (topic, partition), end in found.items():
        ends[topic][partition] = end
    return Reading(time.monotonic(), groups, ends)


def group_rates(before: Reading | None, now: Reading) -> list[GroupRate]:
    """All groups, those with the largest lag first."""
    old = {group.group_id: group for group in before.groups} if before else {}
    rates = [
        _group_rate(old[group.group_id], before, group, now) if before and group.group_id in old else GroupRate(group)
        for group in now.groups
    ]
    return sorted(rates, key=lambda rate: (-(rate.group.lag or 0), rate.group.group_id))


def _group_rate(old: GroupOverview, before: Reading, group: GroupOverview, now: Reading) -> GroupRate:
    lags = {topic.topic: topic.lag for topic in old.topics or () if not topic.unknown}
    seconds = now.at_s - before.at_s
    finished: int | None = 0
    grown = 0
    compared = [topic for topic in group.topics or () if not topic.unknown and topic.topic in lags]
    for topic in compared:
        growth = topic.lag - lags[topic.topic]
        grown += growth
        old_ends, ends = before.ends.get(topic.topic, {}), now.ends.get(topic.topic, {})
        if finished is None or old_ends.keys() != ends.keys():
            finished = None  # the lag is of all partitions
        else:
            finished += max(_advance(old_ends, ends) - growth, 0)
    if not compared:
        return GroupRate(group)
    return GroupRate(group, None if finished is None else finished / seconds, grown / seconds)


def _advance(before: Mapping[int, int], now: Mapping[int, int]) -> int:
    """How far the end offsets of partitions moved that both readings have; those of a new log begin anew."""
    return sum(max(end - before[partition], 0) for partition, end in now.items() if partition in before)


def topic_rates(before: Reading | None, now: Reading) -> list[tuple[str, float | None]]:
    """Records per second of all topics, the fastest first; None for one of which no partition was read before."""
    rates: list[tuple[str, float | None]] = []
    for topic, ends in now.ends.items():
        old = before.ends.get(topic, {}) if before else {}
        is_known = before is not None and not old.keys().isdisjoint(ends)
        rates.append((topic, _advance(old, ends) / (now.at_s - before.at_s) if before and is_known else None))
    return sorted(rates, key=lambda rate: (-(rate[1] or 0), rate[0]))


def listings(before: Reading | None, now: Reading, limit: int) -> tuple[Listing, Listing]:
    """The tables of groups and topics, each with its first `limit` rows and a summary of all."""
    groups, topics = group_rates(before, now), topic_rates(before, now)
    lag = sum(rate.group.lag or 0 for rate in groups)
    finished = sum(rate.finished or 0 for rate in groups)
    produced = sum(rate or 0 for _, rate in topics)
    shown = f"{counted(len(groups), 'group')}, lag {counted(lag, 'record')}, {finished:,.0f} finished each second"
    group_rows: list[Row] = [_group_row(rate) for rate in groups[:limit]]
    topic_rows: list[Row] = [{"topic": name, "produced": _rounded(rate)} for name, rate in topics[:limit]]
    group_headings = {
        "group": "group",
        "state": "state",
        "members": "members",
        "lag": "lag",
        "lag_change": "lag/s",
        "finished": "finished/s",
        "empty_in": "empty in",
        "clients": "clients",
    }
    return (
        Listing("groups", group_headings, group_rows, shown),
        Listing(
            "topics",
            {"topic": "topic", "produced": "produced/s"},
            topic_rows,
            f"{counted(len(topics), 'topic')}, {produced:,.0f} records produced each second",
        ),
    )


def _group_row(rate: GroupRate) -> Row:
    seconds = rate.seconds_to_empty
    return {
        "group": rate.group.group_id,
        "state": rate.group.state,
        "members": rate.group.members,
        "lag": rate.group.lag,
        "lag_change": _rounded(rate.lag_change),
        "finished": _rounded(rate.finished),
        "empty_in": None if seconds is None else duration_text(seconds),
        "clients": clients_text(rate.group.client_ids),
        "client_ids": list(rate.group.client_ids),
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def duration_text(seconds: float) -> str:
    """`9 s`, `4 m 25 s`, `3 h 7 m`, `2 d 4 h`: the two largest units."""
    whole = max(round(seconds), 1)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next(at for at, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)
