"""From records of the history topic to rows: values, what comes twice, what is broken, and crashes at any step."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
import pytest

from kshare_core.delivery_history import EventType, decode_history_record
from kshare_pipeline.tables.parquet import ParquetTable
from kshare_pipeline.tables.upkeep import keep_up
from support.pipeline.delivery_histories import BEGIN, Leader, Pipeline, at, event, orders_history, write_records
from support.pipeline.spark import shared_spark

DAY, NEXT_DAY = date(2026, 11, 20), date(2026, 11, 21)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(shared_spark(), tmp_path)


def events_in(pipeline: Pipeline) -> list[tuple[str, int]]:
    """Group and sequence number of all rows, read without Spark: any tool sees each of them once."""
    found = dataset.dataset(pipeline.layout.events, format="parquet").to_table(columns=["sequence"])
    assert found.num_rows == sum(pipeline.events.read([day]).count() for day in pipeline.events.days())
    rows = [row.asDict() for row in pipeline.events.read(pipeline.events.days()).select("group", "sequence").collect()]
    return sorted((row["group"], row["sequence"]) for row in rows)


def expected(values: list[bytes]) -> list[tuple[str, int]]:
    records = [decode_history_record(value) for value in values]
    return sorted((one.group, one.sequence + number) for one in records for number, _ in enumerate(one.events))


def acquired(leader: Leader, count: int, seconds: float = 1) -> list[bytes]:
    return [leader.record(event(EventType.ACQUIRED, seconds, at, at, member="m", count=1)) for at in range(count)]


def test_rows_have_what_the_events_say_and_what_comes_twice_is_one_row(pipeline: Pipeline) -> None:
    values = orders_history()
    write_records(pipeline.topic, [*values[:3], values[1]], 0)
    write_records(pipeline.topic, [values[2], *values[3:], values[0]], 10)
    pipeline.stream.run_available()
    assert events_in(pipeline) == expected(values)
    told = sum(len(decode_history_record(value).events) for value in [values[0], values[1], values[2]])
    counts = pipeline.ingest.counts
    assert (counts.batches, counts.records, counts.repeated, counts.quarantined) == (2, 4 + 1 + 4 + 1, told, 0)
    assert counts.events == len(expected(values))
    (row,) = pipeline.events.read([DAY]).where("group = 'workers' and sequence = 10").collect()
    assert {name: value for name, value in row.asDict().items() if value is not None} == {
        "leader": 1,
        "incarnation": 7,
        "sequence": 10,
        "topic": "orders",
        "topic_id": "id-of-orders",
        "partition": 0,
        "state_epoch": 1,
        "leader_epoch": 3,
        "event": "dead_lettered",
        "time_ms": at(66.5),
        "first_offset": 9,
        "last_offset": 9,
        "records": 1,
        "delivery_count": 2,
        "reason": "rejected",
        "dead_letter_topic": "dlq",
        "date": DAY,
        "group": "workers",
    }
    assert pipeline.events.days() == [DAY, NEXT_DAY]
    assert {row[0] for row in pipeline.events.read([DAY]).select("group").distinct().collect()} == {
        "007",
        "night <b>",
        "workers",
    }
    named = pipeline.events.read([DAY]).where("client_id is not null")
    assert {(row["member_id"], row["client_id"]) for row in named.collect()} == {("m1", "worker-1"), ("b", "<b>")}
    for file in pipeline.layout.events.rglob("*.parquet"):  # as versions without client ids wrote them
        parquet.write_table(parquet.ParquetFile(file).read().drop_columns(["client_id"]), file)
    assert events_in(pipeline) == expected(values)
    assert pipeline.events.read([DAY]).where("client_id is not null").count() == 0


def changed(value: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(value), **fields}).encode()


def test_broken_records_are_set_aside_and_the_others_go_on(pipeline: Pipeline) -> None:
    leader = Leader("g")
    good, whole = acquired(leader, 2)
    sound = json.loads(whole)["events"][0]
    broken: list[tuple[bytes | None, str]] = [
        (None, "the record has no value"),
        (b"", "the value is no history record in JSON"),
        (b"\xff\xfe{", "the value is no history record in JSON"),
        (b"[1, 2]", "the value is no history record in JSON"),
        (b"{}", "version is missing"),
        (changed(good, version=2), "version 2; this code reads 1"),
        (changed(good, sequence="first"), "the value is no history record in JSON"),
        (changed(good, sequence=-1), "sequence is -1"),
        (changed(good, leader=None), "leader is missing"),
        (changed(good, group=""), "group is empty"),
        (changed(good, events=None), "events is missing"),
        (changed(good, events=[{**sound, "event": "vanished"}]), "unknown event vanished"),
        (changed(good, events=[{**sound, "time_ms": None}]), "time_ms is missing"),
        (changed(good, events=[{**sound, "time_ms": 10**18}]), "time_ms is 1000000000000000000"),
        (changed(good, events=[{**sound, "last_offset": -5}]), "acquired has the offsets 1 to -5"),
        (changed(good, events=[{**sound, "first_offset": None}]), "acquired has the offsets missing to 1"),
        (changed(good, events=[{"event": "loaded", "time_ms": 5}]), "loaded has the start_offset missing"),
    ]
    partly = changed(good, sequence=50, events=[sound, None, {**sound, "first_offset": 0}])
    write_records(pipeline.topic, [good, *[value for value, _ in broken], partly, whole], 0)
    pipeline.stream.run_available()
    rows = pipeline.quarantine.read([BEGIN.date()]).orderBy("offset").collect()
    assert [(row["offset"], row["problem"]) for row in rows] == [
        *[(number, problem) for number, (_, problem) in enumerate(broken, 1)],
        (len(broken) + 1, "an event is null"),
    ]
    assert [row["value"] for row in rows] == [None if value is None else bytearray(value) for value, _ in broken] + [
        bytearray(partly)
    ]
    assert events_in(pipeline) == [("g", 0), ("g", 1), ("g", 50), ("g", 52)]
    assert pipeline.ingest.counts.quarantined == len(broken) + 1


def test_a_group_that_cannot_be_the_name_of_a_folder_does_not_stop_the_others(pipeline: Pipeline) -> None:
    escaped = "".join(map(chr, range(1, 32))) + "\"#%'*/:=?\\\x7f{[]^"
    as_long_as_possible = ["x" * 249, "ü" * 124 + "x", escaped + "}" + "x" * (248 - 3 * len(escaped))]
    refused = {
        "y" * 250: "group has 250 bytes in a folder's name; at most 249 are possible",
        "/" * 84: "group has 252 bytes in a folder's name; at most 249 are possible",
        "ü" * 125: "group has 250 bytes in a folder's name; at most 249 are possible",
        "a\0b": "group has a null character",
        "__HIVE_DEFAULT_PARTITION__": "group is __HIVE_DEFAULT_PARTITION__",
    }
    stored = ["workers", *as_long_as_possible]
    write_records(pipeline.topic, [acquired(Leader(group), 1)[0] for group in [*refused, *stored]], 0)
    pipeline.stream.run_available()
    assert events_in(pipeline) == sorted((group, 0) for group in stored)
    rows = pipeline.quarantine.read([BEGIN.date()]).orderBy("offset").collect()
    assert [row["problem"] for row in rows] == list(refused.values())


def test_a_crash_between_publishing_and_the_checkpoint(pipeline: Pipeline, tmp_path: Path) -> None:
    """The batch comes again, with some of its files published (a), or all (b); each event is there once."""
    values = orders_history()
    write_records(pipeline.topic, [*values, b"nonsense"], 0)
    pipeline.stream.run_available()
    checkpoint = pipeline.layout.checkpoint
    for lost in ("group=workers", None):
        for path in checkpoint.glob("commits/*0*"):
            path.unlink()
        if lost is not None:
            (file,) = (pipeline.layout.events / f"date={DAY}" / lost).glob("*.parquet")
            file.unlink()
        unfinished = pipeline.layout.staging / "events" / "date=2026-11-20"
        unfinished.mkdir(parents=True)
        (unfinished / "part-0.parquet").write_bytes(b"half of it")
        pipeline = Pipeline(shared_spark(), tmp_path)
        pipeline.stream.run_available()
        assert pipeline.ingest.counts.batches == 1, "the batch came again"
        assert pipeline.ingest.counts.events == (19 if lost else 0)
        assert pipeline.ingest.counts.quarantined == 0
        assert events_in(pipeline) == expected(values)
        assert pipeline.quarantine.read([BEGIN.date()]).count() == 1
    late = acquired(Leader("workers", incarnation=8, leader_epoch=4), 1)
    write_records(pipeline.topic, late, 50)
    pipeline.stream.run_available()
    assert events_in(pipeline) == expected([*values, *late])


def test_small_files_are_joined_whatever_dies_meanwhile_and_old_days_go(pipeline: Pipeline, tmp_path: Path) -> None:
    first, second = Leader("a"), Leader("b")
    values: list[bytes] = []
    for number in range(3):
        batch = [*acquired(first, 2), *acquired(second, 1)]
        write_records(pipeline.topic, batch, number * 10)
        values += batch
    write_records(pipeline.topic, old := acquired(Leader("old"), 1, seconds=-40 * 86_400), 30)
    pipeline.stream.run_available()
    assert len(list(pipeline.layout.events.rglob("*.parquet"))) == 7

    assert pipeline.events.join_files(DAY, most=3) == 0
    assert pipeline.events.join_files(DAY, most=2) == 4
    assert events_in(pipeline) == expected([*values, *old])

    write_records(pipeline.topic, more := acquired(first, 1), 40)
    pipeline.stream.run_available()
    # A crash right after the journal was written: the next process does what it says.
    events = pipeline.events
    assert isinstance(events, ParquetTable)
    files = sorted((pipeline.layout.events / f"date={DAY}").rglob("*.parquet"))
    joining = events.begin_joining(DAY)
    assert sorted(joining.old) == files and len(files) == 3
    pipeline = Pipeline(shared_spark(), tmp_path)
    assert len(list((pipeline.layout.events / f"date={DAY}").rglob("*.parquet"))) == 2
    assert not list(pipeline.layout.events.rglob(".joined-*")) and not list(pipeline.layout.events.glob("_joining*"))
    assert events_in(pipeline) == expected([*values, *old, *more])

    keep_up(pipeline.events, DAY + timedelta(days=29), retention_days=30)
    assert pipeline.events.days() == [DAY]
    assert events_in(pipeline) == expected([*values, *more])
    keep_up(pipeline.events, DAY + timedelta(days=30), retention_days=30)
    assert pipeline.events.days() == []
