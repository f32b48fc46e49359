"""Spark spreads the audit: the findings are those in memory, from a file or the tables; and `kshare audit`."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kshare.audit.command import AuditRequest, run_audit
from kshare.audit.direct import BadHistory, audit_records, records_of_lines
from kshare.audit.job import DeliveryCountLimits, audit_table, collect
from kshare.audit.sources import Stretch, from_lines, from_tables
from kshare.failure import BAD_USE, FAILED, CommandFailed
from kshare.main import app
from kshare_core.delivery_history import DeliveryEvent, DurableRun, EventType, HistoryRecord, encode_history_record
from kshare_kafka_client import topics
from kshare_pipeline.tables.layout import Layout
from support.clusters.kshare_cluster import KshareCluster
from support.environment.free_ports import free_port
from support.pipeline.spark import shared_spark

DAY_MS = 86_400_000
GROUPS = [f"workers-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_spark()


def record(group: str, sequence: int, *events: DeliveryEvent, partition: int = 0) -> HistoryRecord:
    return HistoryRecord(
        leader=1,
        incarnation=1,
        sequence=sequence,
        group=group,
        topic="orders",
        topic_id="id",
        partition=partition,
        state_epoch=1,
        leader_epoch=1,
        events=events,
    )


def of_run(kind: EventType, time_ms: int, first: int, last: int, count: int = 1, **fields: Any) -> DeliveryEvent:
    return DeliveryEvent(kind, time_ms, first, last, count, "m", **fields)


def history_of(group: str, partition: int = 0) -> list[HistoryRecord]:
    """Sound: accepted, released and held records, a reload, and a second day."""
    return [
        record(group, 0, DeliveryEvent(EventType.LOADED, 1, start_offset=0, runs=()), partition=partition),
        record(group, 1, of_run(EventType.ACQUIRED, 2, 0, 9), partition=partition),
        record(group, 2, of_run(EventType.ACCEPTED, 3, 0, 4), of_run(EventType.RELEASED, 3, 5, 9), partition=partition),
        record(
            group,
            4,
            DeliveryEvent(EventType.START_OFFSET_MOVED, 4, start_offset=5),
            DeliveryEvent(EventType.UNLOADED, 5),
            DeliveryEvent(
                EventType.LOADED,
                6,
                start_offset=5,
                runs=(DurableRun(5, 8, "Available", 1), DurableRun(9, 9, "Available", 1)),
            ),
            partition=partition,
        ),
        record(group, 7, of_run(EventType.ACQUIRED, DAY_MS + 1, 5, 9, 2), partition=partition),
        record(group, 8, of_run(EventType.ACCEPTED, DAY_MS + 2, 5, 7, 2), partition=partition),
    ]


def with_faults() -> list[HistoryRecord]:
    """Many groups and partitions; one group accepts twice, one loses an event."""
    records = [one for group in GROUPS for partition in range(2) for one in history_of(group, partition)]
    records.append(record(GROUPS[3], 9, of_run(EventType.ACCEPTED, DAY_MS + 3, 6, 7, 2), partition=1))
    records.append(record(GROUPS[5], 11, of_run(EventType.ACCEPTED, DAY_MS + 3, 8, 8, 2)))
    return records[::-1]


def write_lines(folder: Path, records: Sequence[HistoryRecord]) -> Path:
    file = folder / "history.jsonl"
    file.write_bytes(b"\n".join(encode_history_record(one) for one in records) + b"\n")
    return file


def test_findings_and_sums_are_those_of_the_audit_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    records = with_faults()
    events = from_lines(spark, write_lines(tmp_path, records))
    found = collect(audit_table(events, DeliveryCountLimits()), show=50)
    audits = audit_records(records)
    direct = [finding for audit in audits for finding in audit.findings]
    assert sorted([*found.faults, *found.unproven]) == sorted(direct)
    assert [(one.rule, one.share_partition.group, one.first_offset, one.last_offset) for one in found.faults] == [
        ("accepted_twice", GROUPS[3], 6, 7)
    ]
    assert [(one.rule, one.share_partition.group) for one in found.unproven] == [
        ("events_lost", GROUPS[5]),
        ("unknown", GROUPS[5]),
    ]
    assert found.totals.share_partitions == len(audits) == 24
    for name in ("events", "deliveries", "faults", "unproven", "duplicates"):
        assert found.totals.numbers[name] == sum(audit.numbers()[name] for audit in audits)
    assert sum(found.totals.offsets.values()) == 24 * 10


def test_the_service_s_tables_and_a_stretch_of_days(spark: SparkSession, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    events = from_lines(spark, write_lines(tmp_path, with_faults()))
    events.write.partitionBy("date", "group").parquet(str(layout.events))
    read = from_tables(spark, tmp_path)
    found = collect(audit_table(read, DeliveryCountLimits()), show=50)
    assert [one.rule for one in found.faults] == ["accepted_twice"]
    second_day = Stretch(since=read.agg({"date": "max"}).collect()[0][0], groups=(GROUPS[3], GROUPS[4]))
    found = collect(audit_table(second_day.of(read), DeliveryCountLimits()), show=50)
    assert found.totals.share_partitions == 4
    assert [one.rule for one in found.faults] == ["accepted_twice"]
    assert {one.rule for one in found.unproven} == {"not_loaded"}


def test_a_report_names_faults_and_says_how_many_more_there_are(spark: SparkSession, tmp_path: Path) -> None:
    records = [replace(one, group=group) for group in ("a", "b", "c") for one in history_of("x")]
    records += [record(group, 9, of_run(EventType.ACCEPTED, DAY_MS + 3, 5, 5, 2)) for group in ("a", "b", "c")]
    lines: list[str] = []
    limits = DeliveryCountLimits(5, {"c": 1})
    request = AuditRequest(lines=write_lines(tmp_path, records), limits=limits, output=tmp_path / "found", show=2)
    assert run_audit(request, lines.append) is False
    text = "\n".join(lines)
    assert text.count("fault accepted_twice: group") == 2
    assert "… and 2 more of these" in text
    assert "faults: 4" in text and "  accepted: 24" in text
    kept = spark.read.parquet(str(tmp_path / "found")).where("severity = 'fault'").collect()
    rules = sorted((row["rule"], row["group"]) for row in kept)
    assert rules == [*(("accepted_twice", group) for group in ("a", "b", "c")), ("delivery_count_limit", "c")]


def invoke(*arguments: str) -> tuple[str, CommandFailed | None]:
    result = CliRunner().invoke(app, ["audit", *arguments])
    if result.exception is not None and not isinstance(result.exception, CommandFailed):
        raise result.exception
    return result.stdout, result.exception


def test_the_command_says_by_its_exit_code_what_it_found(spark: SparkSession, tmp_path: Path) -> None:
    sound = write_lines(tmp_path, history_of("a"))
    text, failure = invoke("--lines", str(sound), "--since", "1970-01-01")
    assert failure is None
    assert "every offset is accounted for, and no rule was broken" in text
    text, failure = invoke("--lines", str(write_lines(tmp_path, with_faults())), "--delivery-count-limit", "5")
    assert failure is not None and failure.exit_code == FAILED
    assert f"group {GROUPS[3]}, orders-1, offsets 6-7" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--tables, --bootstrap and --lines"),
        (["--lines", "a", "--tables", "b"], "--tables, --bootstrap and --lines"),
        (["--lines", "/nowhere/at/all"], "there is no /nowhere/at/all"),
        (["--tables", "/nowhere/at/all"], "data folder of the pipeline"),
        (["--lines", "x", "--group-limit", "a=none"], "GROUP=LIMIT"),
        (["--lines", "x", "--kafka", "nonsense"], "NAME=VALUE"),
    ],
)
def test_bad_input_is_refused(spark: SparkSession, arguments: list[str], words: str) -> None:
    _, failure = invoke(*arguments)
    assert failure is not None and failure.exit_code == BAD_USE
    assert words in str(failure)


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REQUEST_TIMEOUT_S", 1.0)
    bootstrap = f"127.0.0.1:{free_port()}"
    _, failure = invoke("--bootstrap", bootstrap, "--kafka", "log_level=0")
    assert failure is not None and failure.exit_code == BAD_USE
    assert f"cannot read the history from {bootstrap}: cannot connect to {bootstrap}" in str(failure)
    _, failure = invoke("--bootstrap", bootstrap, "--kafka", "no.such.config=1")
    assert failure is not None and failure.exit_code == BAD_USE
    assert "no.such.config" in str(failure)


def test_a_cluster_without_history_is_told_what_to_set(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, single_process=True) as cluster:
        _, failure = invoke("--bootstrap", cluster.bootstrap)
    assert failure is not None and failure.exit_code == BAD_USE
    assert "kshare.delivery.history.enable" in str(failure)


def test_what_is_no_history_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(encode_history_record(history_of("a")[0]) + b'\n{"version": 2, "events": []}\n')
    with pytest.raises(BadHistory, match="version 2"):
        run_audit(AuditRequest(lines=file), print)


@pytest.mark.parametrize("line", [b"nonsense", b'{"version": 2, "events": []}', b'{"version": 1, "events": [{}]}'])
def test_what_is_no_history_is_refused_in_memory(line: bytes) -> None:
    with pytest.raises(BadHistory, match="line 2"):
        list(records_of_lines([encode_history_record(history_of("a")[0]), line]))


def test_an_empty_history_proves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadHistory, match="no events"):
        run_audit(AuditRequest(lines=write_lines(tmp_path, [])), print)


def test_without_pyspark_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_pyspark(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return real_import(name, *arguments, **more)

    for name in [name for name in sys.modules if name.startswith("kshare.audit")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_pyspark)
    _, failure = invoke("--lines", "x")
    assert failure is not None and failure.exit_code == BAD_USE
    assert "pyspark is not installed" in str(failure)
