"""The marts by value, against a history whose figures were computed by hand (`support.pipeline.delivery_histories`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow.parquet as parquet
import pytest

from kshare_core.delivery_history import EventType
from kshare_pipeline.marts.definitions import MARTS
from support.pipeline.delivery_histories import Leader, Pipeline, event, orders_history, write_records
from support.pipeline.spark import shared_spark

DAY, NEXT_DAY = date(2026, 11, 20), date(2026, 11, 21)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
COUNTS = ("acquired", "accepted", "released", "rejected", "expired", "not_delivered")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """The whole history is in the tables, and all marts are computed."""
    made = Pipeline(shared_spark(), tmp_path_factory.mktemp("pipeline"))
    write_records(made.topic, orders_history(), 0)
    made.stream.run_available()
    assert made.refresh.run() == [DAY, NEXT_DAY]
    yield made


def rows(pipeline: Pipeline, mart: str, day: date = DAY) -> list[dict[str, Any]]:
    """Of one day, in the order of their values."""
    found: list[dict[str, Any]] = parquet.ParquetFile(pipeline.layout.mart_file(mart, day)).read().to_pylist()
    assert {row.pop("date") for row in found} <= {day}
    return sorted(found, key=lambda row: str([str(value) for value in row.values()]))


def minute(number: int) -> datetime:
    """Of the day, after ten o'clock."""
    return TEN + timedelta(minutes=number)


def latency(group: str, when: datetime | None, records: int, unknown: int, *figures: float) -> dict[str, Any]:
    names = ("p50_ms", "p90_ms", "p99_ms", "max_ms", "processing_p50_ms", "processing_p99_ms")
    moment = {} if when is None else {"minute": when}
    counts = {"records": records, "records_without_append_time": unknown}
    return {"group": group, **moment, **counts, **dict(zip(names, figures, strict=True))}


def test_append_to_accept_of_each_minute(pipeline: Pipeline) -> None:
    # 10:01 has ten records of 61 s and one of 66 s: the 99th of a hundred lies at 9.9 of them.
    assert rows(pipeline, "append_to_accept") == [
        latency("007", minute(0), 4, 0, 2000, 2000, 2000, 2000, 1000, 1000),
        latency("workers", minute(0), 8, 0, 6000, 6000, 6000, 6000, 4000, 4000),
        latency("workers", minute(1), 11, 0, 61_000, 61_000, 65_500, 66_000, 59_000, 59_000),
        latency("workers", minute(2), 10, 5, 71_000, 71_000, 71_000, 71_000, 9000, 9000),
    ]


def test_append_to_accept_of_the_day(pipeline: Pipeline) -> None:
    # 24 records with a known append: 8 of 6 s, 10 of 61 s, 1 of 66 s, 5 of 71 s.
    assert rows(pipeline, "append_to_accept_by_day") == [
        latency("007", None, 4, 0, 2000, 2000, 2000, 2000, 1000, 1000),
        latency("workers", None, 29, 5, 61_000, 71_000, 71_000, 71_000, 9000, 59_000),
    ]


def test_a_delivery_that_ends_after_midnight_began_the_day_before(pipeline: Pipeline) -> None:
    midnight = datetime(2026, 11, 21, tzinfo=UTC)
    assert rows(pipeline, "append_to_accept", NEXT_DAY) == [
        latency("night <b>", midnight, 5, 0, 3000, 3000, 3000, 3000, 2000, 2000)
    ]
    (redelivery,) = (row for row in rows(pipeline, "redelivery", NEXT_DAY) if row["group"] == "night <b>")
    assert (redelivery["acquired_records"], redelivery["accepted_records"]) == (0, 5)


def counted(*counts: int) -> dict[str, int]:
    return {f"{name}_records": count for name, count in zip(COUNTS, counts, strict=True)}


def test_redelivery(pipeline: Pipeline) -> None:
    assert rows(pipeline, "redelivery") == [
        {"group": "007", "topic": "orders", "delivery_count": 1, **counted(4, 4, 0, 0, 0, 0)},
        {"group": "night <b>", "topic": "late", "delivery_count": 1, **counted(5, 0, 0, 0, 0, 0)},
        {"group": "workers", "topic": "orders", "delivery_count": 1, **counted(30, 18, 2, 0, 10, 0)},
        {"group": "workers", "topic": "orders", "delivery_count": 2, **counted(12, 11, 0, 1, 0, 5)},
    ]


def test_workers(pipeline: Pipeline) -> None:
    found = [row for row in rows(pipeline, "workers") if row["group"] == "workers"]
    assert found == [
        {"group": "workers", "minute": minute(0), "member_id": "m1", **counted(10, 8, 2, 0, 0, 0)},
        {"group": "workers", "minute": minute(0), "member_id": "m2", **counted(10, 0, 0, 0, 0, 0)},
        {"group": "workers", "minute": minute(1), "member_id": "m1", **counted(10, 0, 0, 0, 0, 0)},
        {"group": "workers", "minute": minute(1), "member_id": "m2", **counted(2, 11, 0, 1, 0, 0)},
        {"group": "workers", "minute": minute(2), "member_id": "m1", **counted(10, 10, 0, 0, 10, 5)},
    ]


def test_members(pipeline: Pipeline) -> None:
    """m1 says its name once, as after an upgrade; m2 and a have none."""
    assert rows(pipeline, "members") == [
        {"group": "007", "member_id": "b", "client_id": "<b>"},
        {"group": "workers", "member_id": "m1", "client_id": "worker-1"},
    ]


def test_fairness(pipeline: Pipeline) -> None:
    def fair(group: str, when: datetime, members: int, accepted: int, index: float | None, share: float | None) -> Any:
        figures = {"accepted_records": accepted, "fairness": index, "largest_share": share}
        return {"group": group, "minute": when, "members": members, **figures}

    assert rows(pipeline, "fairness") == [
        fair("007", minute(0), 2, 4, 0.8, 0.75),  # 3 and 1: 16 / (2 * 10)
        fair("night <b>", datetime(2026, 11, 20, 23, 59, tzinfo=UTC), 1, 0, None, None),
        fair("workers", minute(0), 2, 8, 0.5, 1.0),
        fair("workers", minute(1), 2, 11, 0.5, 1.0),
        fair("workers", minute(2), 1, 10, 1.0, 1.0),
    ]


def test_lag(pipeline: Pipeline) -> None:
    def told(group: str, partition: int, when: datetime, *figures: int | None) -> dict[str, Any]:
        names = ("start_offset", "delivered_end_offset", "oldest_first_delivery_ms", "window_records")
        topic = "orders" if group != "night <b>" else "late"
        place = {"group": group, "topic": topic, "topic_id": f"id-of-{topic}", "partition": partition}
        return {**place, "minute": when, **dict(zip(names, figures, strict=True))}

    assert rows(pipeline, "lag") == [
        told("007", 3, minute(0), 0, 4, 1000, 4),
        told("night <b>", 0, datetime(2026, 11, 20, 23, 59, tzinfo=UTC), None, 10, 1000, None),
        told("workers", 0, minute(0), 8, 20, 2000, 12),
        told("workers", 0, minute(1), 20, 30, 1000, 10),
        told("workers", 0, minute(2), 20, 30, None, 10),
    ]


def test_records_that_no_member_could_process(pipeline: Pipeline) -> None:
    assert rows(pipeline, "poison_records") == [
        {
            "group": "workers",
            "topic": "orders",
            "topic_id": "id-of-orders",
            "partition": 0,
            "first_offset": 9,
            "last_offset": 9,
            "records": 1,
            "delivery_count": 2,
            "reason": "rejected",
            "time": TEN + timedelta(seconds=67),
        }
    ]
    assert rows(pipeline, "archived") == [
        {"group": "workers", "topic": "orders", "reason": "rejected", "records": 1},
    ]
    assert rows(pipeline, "dead_letters") == [  # told twice, stored once
        {"group": "workers", "topic": "orders", "dead_letter_topic": "dlq", "reason": "rejected", "records": 1},
    ]


def test_completeness(pipeline: Pipeline) -> None:
    assert rows(pipeline, "completeness") == [
        {"group": "007", "topic": "orders", "events": 5, "missing_events": 0},
        {"group": "night <b>", "topic": "late", "events": 1, "missing_events": 0},
        {"group": "workers", "topic": "orders", "events": 19, "missing_events": 2},
    ]


def test_only_days_whose_events_changed_are_computed_again(pipeline: Pipeline) -> None:
    """Late events of a day change its marts and those of the next one; then there is nothing left to do."""
    assert pipeline.refresh.run() == []
    before = {mart: pipeline.layout.mart_file(mart, NEXT_DAY).stat().st_ino for mart in MARTS}
    late = Leader("late", topic="late")
    day_after = 14 * 3600 + 10
    write_records(pipeline.topic, [late.record(event(EventType.ACQUIRED, day_after, 0, 1, member="x", count=1))], 100)
    pipeline.stream.run_available()
    assert pipeline.refresh.run() == [NEXT_DAY]
    assert all(pipeline.layout.mart_file(mart, NEXT_DAY).stat().st_ino != before[mart] for mart in MARTS)
    assert {row["group"] for row in rows(pipeline, "workers", NEXT_DAY)} == {"late", "night <b>"}
    assert [row["group"] for row in rows(pipeline, "completeness")] == ["007", "night <b>", "workers"]
