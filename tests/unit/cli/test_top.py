"""`kshare top`: rates between two readings, the order of rows, and durations."""

from __future__ import annotations

import itertools

import pytest

from kshare.commands.cluster.top import Reading, duration_text, group_rates, listings, topic_rates
from kshare.commands.groups.overview import GroupOverview, TopicLag


def group(name: str, *lags: TopicLag) -> GroupOverview:
    return GroupOverview(name, "share", "Stable", members=1, client_ids=("a",), topics=lags)


def lag(records: int, topic: str = "orders", unknown: int = 0) -> TopicLag:
    return TopicLag(topic, 2, records, unknown)


def ends(*of_partitions: int | None) -> dict[int, int]:
    """The end offset of each partition, from 0 on; None for one without a leader."""
    return {partition: end for partition, end in enumerate(of_partitions) if end is not None}


BEFORE = Reading(
    10.0,
    [group("slow", lag(100)), group("fast", lag(50)), group("lost", lag(0, unknown=2))],
    {"orders": ends(600, 400)},
)
NOW = Reading(
    12.0,
    [group("slow", lag(140)), group("fast", lag(30)), group("lost", lag(0, unknown=2)), group("new", lag(5))],
    {"orders": ends(620, 440), "payments": ends(7)},
)


def test_rates_of_groups() -> None:
    rates = {rate.group.group_id: rate for rate in group_rates(BEFORE, NOW)}
    assert (rates["slow"].finished, rates["slow"].lag_change) == (10.0, 20.0)
    assert rates["slow"].seconds_to_empty is None, "it grows"
    assert (rates["fast"].finished, rates["fast"].lag_change) == (40.0, -10.0)
    assert rates["fast"].seconds_to_empty == 3.0
    assert rates["lost"].finished is None and rates["lost"].group.lag is None
    assert rates["new"].finished is None, "it was not there before"


def test_the_largest_lag_is_first_and_a_first_view_has_no_rates() -> None:
    assert [rate.group.group_id for rate in group_rates(None, NOW)] == ["slow", "fast", "new", "lost"]
    assert {rate.finished for rate in group_rates(None, NOW)} == {None}


def test_rates_of_topics() -> None:
    assert topic_rates(BEFORE, NOW) == [("orders", 30.0), ("payments", None)]
    assert topic_rates(None, NOW) == [("orders", None), ("payments", None)]


def test_a_reset_to_an_earlier_offset_is_no_negative_rate() -> None:
    (rate,) = group_rates(
        Reading(0.0, [group("g", lag(0))], {"orders": ends(10)}),
        Reading(1.0, [group("g", lag(10))], {"orders": ends(10)}),
    )
    assert (rate.finished, rate.lag_change) == (0.0, 10.0)


def test_a_partition_that_loses_or_regains_its_leader_is_not_compared() -> None:
    """Else the topic seemed to lose its records, and then to get millions a second."""
    readings = [
        Reading(0.0, [group("g", lag(10))], {"orders": ends(1_000_000, 2_000_000)}),
        Reading(2.0, [group("g", lag(10))], {"orders": ends(1_000_040, None)}),
        Reading(4.0, [group("g", lag(20))], {"orders": ends(1_000_060, 2_000_100)}),
        Reading(6.0, [group("g", lag(14))], {"orders": ends(1_000_070, 2_000_110)}),
    ]
    found = [(group_rates(*pair)[0], topic_rates(*pair)) for pair in itertools.pairwise(readings)]
    assert [topics for _, topics in found] == [[("orders", 20.0)], [("orders", 10.0)], [("orders", 10.0)]]
    assert [rate.finished for rate, _ in found] == [None, None, 13.0], "the lag is of both partitions"
    assert [rate.lag_change for rate, _ in found] == [0.0, 5.0, -3.0]
    groups, topics = listings(readings[0], readings[1], 20)
    assert groups.rows[0]["finished"] is None and topics.rows[0]["produced"] == 20.0


def test_a_topic_without_a_leader_before_or_now_has_no_rate() -> None:
    without, there = Reading(0.0, [], {"orders": ends(None)}), Reading(1.0, [], {"orders": ends(9)})
    assert topic_rates(without, there) == topic_rates(there, without) == [("orders", None)]


def test_a_topic_that_was_created_again_has_no_negative_rate() -> None:
    assert topic_rates(Reading(0.0, [], {"t": ends(900)}), Reading(1.0, [], {"t": ends(3)})) == [("t", 0.0)]


def test_tables_are_cut_and_summaries_count_all() -> None:
    groups, topics = listings(BEFORE, NOW, limit=1)
    assert [row["group"] for row in groups.rows] == ["slow"] and len(topics.rows) == 1
    assert groups.summary == "4 groups, lag 175 records, 50 finished each second"
    assert topics.summary == "2 topics, 30 records produced each second"
    assert groups.rows[0]["empty_in"] is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59.6, "1 m"), (265.052, "4 m 25 s"), (11_220, "3 h 7 m"), (187_200, "2 d 4 h"), (86_400, "1 d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
