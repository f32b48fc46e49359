"""Distributions, families as text, and the limit on how many things have samples of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.distribution import Distribution
from kshare_rpc.call_statistics import CallStatistics
from kshare_servicekit.capped_series import CappedSeries, Entry
from kshare_servicekit.metric_families import Chapter, Readings, counter, describe, gauge, histogram
from kshare_servicekit.metrics_server import Metrics
from support.servicekit.scraped import Scraped, scraped

CALLS = counter("things_done", "Things that were done.", "kind")
HEIGHT = gauge("height_bytes", "How high.")
AGES = histogram("age_seconds", "How old, in seconds.", "kind")


class Things:
    """A source of all three kinds; `is_broken` makes it raise."""

    def __init__(self, is_broken: bool = False) -> None:
        self.ages = Distribution((0.5, 2))
        self.is_broken = is_broken
        self.prepared = 0

    async def prepare(self) -> None:
        await asyncio.sleep(0)
        self.prepared += 1

    def read(self, readings: Readings) -> None:
        readings.add(CALLS, 3, 'a "strange"\nkind\\')
        readings.add(HEIGHT, 2.5)
        if self.is_broken:
            raise RuntimeError("a bug")
        readings.add(AGES, self.ages, "old")


def rendered(metrics: Metrics) -> Scraped:
    return asyncio.run(scraped(metrics))


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 9)), max_size=50))
def test_a_distribution_counts_like_prometheus(observed: list[tuple[float, int]]) -> None:
    bounds = (0.5, 1, 10)
    found = Distribution(bounds)
    for value, times in observed:
        found.observe(value, times)
    for index, bound in enumerate(bounds):
        assert sum(found.counts[: index + 1]) == sum(times for value, times in observed if value <= bound)
    assert found.count == sum(times for _, times in observed)
    assert found.total == pytest.approx(sum(value * times for value, times in observed))
    again = Distribution.of_numbers(bounds, found.numbers())
    assert (again.counts, again.total) == (found.counts, found.total)


def test_samples_of_all_kinds_as_text() -> None:
    things = Things()
    things.ages.observe(0.5)
    things.ages.observe(3.0, 4)
    metrics = Metrics()
    metrics.add_node("leader", 7, things, lambda: ["one", "two"])
    found = rendered(metrics)
    assert things.prepared == 1
    assert found.value("things_done_total", kind='a "strange"\nkind\\') == 3
    assert found.value("height_bytes") == 2.5
    buckets = {bound: found.value("age_seconds_bucket", kind="old", le=bound) for bound in ("0.5", "2.0", "+Inf")}
    assert buckets == {"0.5": 1, "2.0": 1, "+Inf": 5}
    assert found.value("age_seconds_count", kind="old") == 5
    assert found.value("age_seconds_sum", kind="old") == 12.5
    assert found.value("node_healthy", role="leader", node_id="7") == 0
    assert found.value("node_problems", role="leader", node_id="7") == 2
    assert found.families["kshare_things_done"] == "counter"
    assert found.families["kshare_age_seconds"] == "histogram"


def test_several_nodes_of_a_process_are_told_apart() -> None:
    metrics = Metrics(has_several_nodes=True)
    for node_id in (1, 2):
        metrics.add_node("leader", node_id, Things(), list)
    found = rendered(metrics)
    assert found.value("height_bytes", node_id="1") == found.value("height_bytes", node_id="2") == 2.5
    assert found.value("node_healthy", role="leader", node_id="2") == 1


def test_a_source_with_a_bug_is_counted_and_does_not_hide_others() -> None:
    metrics = Metrics()
    metrics.add_node("leader", 1, Things(is_broken=True), list)
    for times in (1, 2):
        found = rendered(metrics)
        assert found.value("metrics_read_failures_total") == times
        assert found.value("height_bytes") == 2.5
        assert found.value("node_healthy", role="leader", node_id="1") == 1


def test_wrong_labels_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="has the labels"):
        Readings().add(CALLS, 1)


def test_calls_between_roles() -> None:
    statistics = CallStatistics()
    metrics = Metrics()
    metrics.add_network(statistics)
    made = statistics.of_made("Leader/Fetch")
    made.started(0)
    made.started(0)
    made.failed("CallTimeout")
    made.ended(0.3)
    statistics.of_served("Coordinator/WatchCatalog").started(0)
    found = rendered(metrics)
    labels = {"service": "Leader", "method": "Fetch"}
    assert found.value("rpc_client_calls_under_way", **labels) == 1
    assert found.value("rpc_client_call_duration_seconds_sum", **labels) == 0.3
    assert found.value("rpc_client_call_failures_total", **labels, kind="CallTimeout") == 1
    assert found.value("rpc_server_calls_under_way", service="Coordinator", method="WatchCatalog") == 1


def test_the_document_names_everything() -> None:
    text = describe("# Title\n", [Chapter("Part", "What it is.", (CALLS, HEIGHT, AGES))])
    assert "| `kshare_things_done_total` | counter | kind | Things that were done. |" in text
    assert "| `kshare_height_bytes` | gauge | none | How high. |" in text
    assert "| `kshare_age_seconds` | histogram | kind | How old, in seconds. |" in text


def show(
    series: CappedSeries[str], **entries: tuple[float, Sequence[float]]
) -> tuple[dict[str, list[float]], list[float]]:
    shown = series.show([Entry(key, rank, numbers) for key, (rank, numbers) in entries.items()])
    return shown.named, shown.others


def test_what_ranks_lower_is_summed_up_and_no_part_is_shown_twice() -> None:
    series: CappedSeries[str] = CappedSeries(lambda: 1, 1)
    assert show(series, a=(5, [10]), b=(4, [3])) == ({"a": [10]}, [3])
    assert show(series, a=(5, [11]), b=(9, [4])) == ({"b": [1]}, [4])
    assert show(series, a=(9, [12]), b=(5, [4])) == ({"a": [11]}, [4])


def test_others_appear_only_when_there_are_some_and_stay_then() -> None:
    series: CappedSeries[str] = CappedSeries(lambda: 1, 1)
    assert not series.show([Entry("a", 1, [1])]).has_others
    assert series.show([Entry("a", 1, [1]), Entry("b", 0, [2])]).has_others
    assert series.show([Entry("a", 1, [1])]).others == [2]


@given(
    limit=st.integers(0, 4),
    steps=st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=5, max_size=5), max_size=20),
)
def test_no_counter_falls_and_nothing_is_lost(limit: int, steps: list[list[tuple[int, int]]]) -> None:
    """Each step: by how much each of five things grows, and how it ranks then."""
    series: CappedSeries[int] = CappedSeries(lambda: limit, 1)
    totals, before, others = [0] * 5, [0.0] * 5, 0.0
    shown_own = [0.0] * 5
    for step in steps:
        totals = [total + grown for total, (grown, _) in zip(totals, step, strict=True)]
        shown = series.show([Entry(key, rank, [totals[key]]) for key, (_, rank) in enumerate(step)])
        assert len(shown.named) == min(limit, 5)
        ranks = [rank for _, rank in step]
        rest = [rank for key, rank in enumerate(ranks) if key not in shown.named]
        assert all(ranks[key] >= max(rest, default=0) for key in shown.named)
        for key, (number,) in shown.named.items():
            assert number >= before[key]
            before[key] = shown_own[key] = number
        assert shown.others[0] >= others
        others = shown.others[0]
        assert sum(shown_own) + others == sum(totals)
