"""The metrics of a leader, as read by a scrape.

Share-partitions, topics, groups and topics of groups have samples of their own up to a limit each
(kshare.metrics.share.partitions.limit, kshare.metrics.topics.limit); of share-partitions and groups those with the
largest lag, of topics the largest logs. The others are added up under "(others)"; see `capped_series`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kshare_core.configs import Configs
from kshare_core.distribution import DURATION_BOUNDS_S, NO_EXEMPLARS, Distribution
from kshare_core.identifiers import SharePartitionKey, TopicPartition, topic_id_text
from kshare_leader import metric_families as families
from kshare_leader.metrics import (
    AGE_BOUNDS_S,
    DELIVERY_BOUNDS,
    TOPIC_NUMBERS,
    HistoryCounts,
    LeaderMetrics,
    Progress,
    ShareCounts,
)
from kshare_leader.ports import ServedLog, TopicLog
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_leader.share.served_partition import ServedPartition
from kshare_rpc.catalog import CatalogView
from kshare_runtime.ports import KeyValueStore
from kshare_servicekit.capped_series import OTHERS, CappedSeries, Entry
from kshare_servicekit.metric_families import Family, Readings

_SHARE_NUMBERS = 13
THINGS_PER_TURN = 200
"""Share-partitions or logs that one turn of the event loop looks at."""


class MeasuredLogs(Protocol):
    """The part of ServedLogs that a scrape uses."""

    @property
    def offline_count(self) -> int: ...

    def all_logs(self) -> Sequence[ServedLog]: ...

    def find(self, key: TopicPartition) -> TopicLog | None: ...


class LeaderParts(NamedTuple):
    """The running parts of a leader that a scrape reads."""

    view: CatalogView
    store: KeyValueStore | None
    """None where this node has no disk."""
    logs: MeasuredLogs
    directory: SharePartitionDirectory


class _Gauges(NamedTuple):
    """Gauges of one share-partition, or of several added up."""

    lag: int = 0
    acquired: int = 0
    available: int = 0
    archiving: int = 0
    oldest_age_s: float = 0.0

    def together_with(self, other: _Gauges) -> _Gauges:
        return _Gauges(
            self.lag + other.lag,
            self.acquired + other.acquired,
            self.available + other.available,
            self.archiving + other.archiving,
            max(self.oldest_age_s, other.oldest_age_s),
        )


class LeaderSource:
    """See the module docstring; `parts` returns the running parts, None before the start."""

    def __init__(self, metrics: LeaderMetrics, configs: Configs, parts: Callable[[], LeaderParts | None]) -> None:
        self._metrics = metrics
        self._parts = parts
        self._found = Readings()

        def share_limit() -> int:
            return configs.integer("kshare.metrics.share.partitions.limit")

        def topic_limit() -> int:
            return configs.integer("kshare.metrics.topics.limit")

        self._shares: CappedSeries[SharePartitionKey] = CappedSeries(share_limit, _SHARE_NUMBERS)
        distributions = len(DELIVERY_BOUNDS) + len(AGE_BOUNDS_S) + 4
        self._group_topics: CappedSeries[tuple[str, bytes]] = CappedSeries(share_limit, distributions)
        self._groups: CappedSeries[str] = CappedSeries(share_limit, 3 * (len(DURATION_BOUNDS_S) + 2))
        self._topics: CappedSeries[bytes] = CappedSeries(topic_limit, len(TOPIC_NUMBERS))

    async def prepare(self) -> None:
        """Reads all parts, THINGS_PER_TURN share-partitions or logs per turn of the event loop."""
        readings = Readings()
        metrics = self._metrics
        readings.add(families.LOG_WRITE_SECONDS, metrics.log_write_s)
        readings.add(families.LOG_WRITE_FAILURES, metrics.log_write_failures)
        _add_history(readings, metrics.history)
        parts = self._parts()
        if parts is not None:
            await self._read_parts(readings, parts)
        self._found = readings

    def read(self, readings: Readings) -> None:
        """Exposes the values that `prepare` read."""
        readings.rows.update(self._found.rows)

    async def _read_parts(self, readings: Readings, parts: LeaderParts) -> None:
        served = parts.directory.served
        if parts.store is not None:
            families.STORE.read(readings, parts.store)
        readings.add(families.SHARE_PARTITIONS, len(served))
        readings.add(families.SHARE_PARTITIONS_LOADING, sum([one.is_loading for one in served.values()]))
        readings.add(families.WAITING_FETCHES, parts.directory.waiting_count)
        readings.add(families.OFFLINE_PARTITIONS, parts.logs.offline_count)
        await self._read_topics(readings, parts)
        gauges: dict[SharePartitionKey, _Gauges] = {}
        for number, (key, counts) in enumerate(list(self._metrics.share_partitions.items())):
            _add_gauges_of(gauges, key, counts, parts)
            if number % THINGS_PER_TURN == THINGS_PER_TURN - 1:
                await asyncio.sleep(0)
        await self._read_shares(readings, parts.view, gauges)
        lags: dict[str, int] = {}
        for key, one in gauges.items():
            lags[key.group_id] = lags.get(key.group_id, 0) + one.lag
        self._read_group_topics(readings, parts.view, lags)
        await asyncio.sleep(0)
        self._read_groups(readings, lags)

    # Topics

    async def _read_topics(self, readings: Readings, parts: LeaderParts) -> None:
        sizes: dict[bytes, list[int]] = {}
        for number, log in enumerate(parts.logs.all_logs()):
            size = sizes.setdefault(log.topic_partition.topic_id, [0, 0])
            size[0] += log.size_bytes
            size[1] += 1
            if number % THINGS_PER_TURN == THINGS_PER_TURN - 1:
                await asyncio.sleep(0)
        entries = [
            Entry(topic_id, sizes.get(topic_id, (0, 0))[0], self._metrics.of_topic(topic_id).numbers())
            for topic_id in {**sizes, **self._metrics.topics}
        ]
        shown = self._topics.show(entries)
        for topic_id, numbers in shown.named.items():
            _add_topic(readings, _topic_name(parts.view, topic_id), numbers, sizes.pop(topic_id, [0, 0]))
        if shown.has_others:
            rest = [sum(size[0] for size in sizes.values()), sum(size[1] for size in sizes.values())]
            _add_topic(readings, OTHERS, shown.others, rest)

    # Share-partitions

    async def _read_shares(
        self, readings: Readings, view: CatalogView, gauges: Mapping[SharePartitionKey, _Gauges]
    ) -> None:
        nothing = _Gauges()
        entries = [
            Entry(key, _rank(gauges.get(key, nothing)), _numbers(counts))
            for key, counts in self._metrics.share_partitions.items()
        ]
        await asyncio.sleep(0)
        shown = self._shares.show(entries)
        for number, (key, numbers) in enumerate(shown.named.items()):
            if number % THINGS_PER_TURN == 0:
                await asyncio.sleep(0)
            labels = (key.group_id, _topic_name(view, key.topic_id), str(key.partition))
            _add_counts(readings, labels, numbers)
            if key in gauges:
                _add_gauges(readings, labels, gauges[key])
        if shown.has_others:
            labels = (OTHERS, OTHERS, OTHERS)
            _add_counts(readings, labels, shown.others)
            rest = nothing
            for key, one in gauges.items():
                if key not in shown.named:
                    rest = rest.together_with(one)
            _add_gauges(readings, labels, rest)

    # Groups

    def _read_group_topics(self, readings: Readings, view: CatalogView, lags: Mapping[str, int]) -> None:
        alive = {(key.group_id, key.topic_id) for key in self._metrics.share_partitions}
        table = self._metrics.group_topics
        for pair in [pair for pair in table if pair not in alive]:
            del table[pair]
        entries = [
            Entry(pair, lags.get(pair[0], 0), [*one.deliveries.numbers(), *one.accept_age_s.numbers()])
            for pair, one in table.items()
        ]
        shown = self._group_topics.show(entries)
        rows = [(group, _topic_name(view, topic_id), row) for (group, topic_id), row in shown.named.items()]
        if shown.has_others:
            rows.append((OTHERS, OTHERS, shown.others))
        width = len(DELIVERY_BOUNDS) + 2
        for group, topic, row in rows:
            readings.add(families.DELIVERY_COUNT, Distribution.of_numbers(DELIVERY_BOUNDS, row[:width]), group, topic)
            readings.add(families.ACCEPT_AGE, Distribution.of_numbers(AGE_BOUNDS_S, row[width:]), group, topic)

    def _read_groups(self, readings: Readings, lags: Mapping[str, int]) -> None:
        alive = {key.group_id for key in self._metrics.share_partitions}
        table = self._metrics.groups
        for group_id in [group_id for group_id in table if group_id not in alive]:
            del table[group_id]
        entries = [
            Entry(
                group_id,
                lags.get(group_id, 0),
                [*one.fetch_s.numbers(), *one.fetch_waited_s.numbers(), *one.acknowledge_s.numbers()],
            )
            for group_id, one in table.items()
        ]
        shown = self._groups.show(entries)
        rows = [*shown.named.items(), *([(OTHERS, shown.others)] if shown.has_others else [])]
        width = len(DURATION_BOUNDS_S) + 2
        for group, row in rows:
            one = table.get(group)  # none for the common row, whose numbers are of many groups
            observed = (None,) * 3 if one is None else (one.fetch_s, one.fetch_waited_s, one.acknowledge_s)
            at_once, waited, acknowledge = (
                Distribution.of_numbers(
                    DURATION_BOUNDS_S,
                    row[number * width : (number + 1) * width],
                    NO_EXEMPLARS if each is None else each.exemplars,
                )
                for number, each in enumerate(observed)
            )
            readings.add(families.FETCH_SECONDS, at_once, group, "false")
            readings.add(families.FETCH_SECONDS, waited, group, "true")
            readings.add(families.ACKNOWLEDGE_SECONDS, acknowledge, group)


def _add_gauges_of(
    gauges: dict[SharePartitionKey, _Gauges], key: SharePartitionKey, counts: ShareCounts, parts: LeaderParts
) -> None:
    """Nothing of a share-partition whose log is not here, or of which no state is known."""
    log = parts.logs.find(key.topic_partition)
    one = parts.directory.served.get(key)
    if log is None:
        return
    if one is not None and one.machine is not None:
        gauges[key] = _gauges_of(one, log)
    elif counts.progress is not None:
        gauges[key] = _Gauges(lag=_lag(counts.progress, log))


def _gauges_of(served: ServedPartition, log: TopicLog) -> _Gauges:
    machine = served.machine
    assert machine is not None
    return _Gauges(
        lag=_lag(Progress(machine.start_offset, machine.delivery_complete_count), log),
        acquired=machine.acquired_count,
        available=machine.available_count,
        archiving=machine.archiving_count,
        oldest_age_s=served.oldest_acquired_ms / 1000,
    )


def _lag(progress: Progress, log: TopicLog) -> int:
    """The lag, without records that retention removed."""
    if progress.start_offset < log.log_start_offset:
        return log.high_watermark - log.log_start_offset
    return max(0, log.high_watermark - progress.start_offset - progress.delivery_complete_count)


def _rank(gauges: _Gauges) -> float:
    return gauges.lag + gauges.acquired


def _numbers(counts: ShareCounts) -> list[float]:
    return [
        counts.acquired,
        counts.taken_back,
        *counts.acknowledged,
        *counts.ended,
        counts.dead_letters,
        counts.dead_letters_given_up,
        counts.truncated,
    ]


def _add_counts(readings: Readings, labels: tuple[str, str, str], numbers: Sequence[float]) -> None:
    acquired, taken_back, gap, accept, release, reject, renew, timed_out, sessions, limit, *more = numbers
    letters, given_up, truncated = more
    acknowledged = {"accept": accept, "release": release, "reject": reject, "renew": renew, "gap": gap}
    readings.add(families.SHARE_ACQUIRED, acquired, *labels)
    readings.add(families.SHARE_TAKEN_BACK, taken_back, *labels)
    for name, count in acknowledged.items():
        readings.add(families.SHARE_ACKNOWLEDGED, count, *labels, name)
    for reason, count in (("delivery_limit", limit), ("rejected", reject), ("gap", gap)):
        readings.add(families.SHARE_ARCHIVED, count, *labels, reason)
    readings.add(families.SHARE_EXPIRED, timed_out, *labels)
    readings.add(families.SHARE_SESSION_RELEASED, sessions, *labels)
    readings.add(families.SHARE_DEAD_LETTERS, letters, *labels)
    readings.add(families.SHARE_DEAD_LETTERS_GIVEN_UP, given_up, *labels)
    readings.add(families.SHARE_TRUNCATED, truncated, *labels)


def _add_gauges(readings: Readings, labels: tuple[str, str, str], gauges: _Gauges) -> None:
    readings.add(families.SHARE_LAG, gauges.lag, *labels)
    readings.add(families.SHARE_IN_FLIGHT, gauges.acquired, *labels, "acquired")
    readings.add(families.SHARE_IN_FLIGHT, gauges.available, *labels, "available")
    readings.add(families.SHARE_IN_FLIGHT, gauges.archiving, *labels, "archiving")
    readings.add(families.SHARE_OLDEST_AGE, gauges.oldest_age_s, *labels)


def _add_history(readings: Readings, history: HistoryCounts) -> None:
    readings.add(families.HISTORY_EVENTS, history.published, "published")
    readings.add(families.HISTORY_EVENTS, history.dropped, "dropped")
    readings.add(families.HISTORY_BYTES, history.published_bytes)
    readings.add(families.HISTORY_BUFFER, history.buffer_bytes)
    readings.add(families.HISTORY_FAILURES, history.failures)


def _add_topic(readings: Readings, topic: str, numbers: Sequence[float], size: Sequence[int]) -> None:
    records_in, batches_in, bytes_in, records_fetched, bytes_fetched, records_shared, bytes_shared = numbers
    in_and_size: list[tuple[Family, float]] = [
        (families.TOPIC_RECORDS_IN, records_in),
        (families.TOPIC_BATCHES_IN, batches_in),
        (families.TOPIC_BYTES_IN, bytes_in),
        (families.TOPIC_LOG_BYTES, size[0]),
        (families.TOPIC_PARTITIONS, size[1]),
    ]
    for family, value in in_and_size:
        readings.add(family, value, topic)
    for call, records, size_bytes in (
        ("fetch", records_fetched, bytes_fetched),
        ("share_fetch", records_shared, bytes_shared),
    ):
        readings.add(families.TOPIC_RECORDS_OUT, records, topic, call)
        readings.add(families.TOPIC_BYTES_OUT, size_bytes, topic, call)


def _topic_name(view: CatalogView, topic_id: bytes) -> str:
    topic = view.topics_by_id.get(topic_id)
    return topic_id_text(topic_id) if topic is None else topic.name
