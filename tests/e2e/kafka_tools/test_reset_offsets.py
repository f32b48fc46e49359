"""`kafka-consumer-groups --reset-offsets` of Kafka 4.3.1 by every scenario, on kshare and on Kafka alike."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.clients.delivery import produce
from support.clusters.engines import protocols_of_groups
from support.kafka.tools import Printed, ToolPair, any_order, no_such_group

TOOL = "kafka-consumer-groups"
HOUR_MS = 3_600_000
SECOND_MS = time.time_ns() // 1_000_000
FIRST_MS = SECOND_MS - 2 * HOUR_MS
BETWEEN = datetime.fromtimestamp((SECOND_MS - HOUR_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")


@pytest.fixture
def topic(pair: ToolPair, name: str) -> str:
    """10 records in partition 0, half of them two hours old, and 4 in partition 1."""

    def fill(bootstrap: str) -> None:
        produce(bootstrap, name, map(str, range(5)), timestamp_ms=FIRST_MS)
        produce(bootstrap, name, map(str, range(5)), timestamp_ms=SECOND_MS)
        produce(bootstrap, name, map(str, range(4)), partition=1, timestamp_ms=FIRST_MS)

    pair.same("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    pair.each(fill)
    return name


@pytest.fixture(params=protocols_of_groups())
def group(pair: ToolPair, topic: str, request: pytest.FixtureRequest) -> str:
    """It has consumed everything."""
    reading = ("--topic", topic, "--max-messages", "14", "--timeout-ms", "20000", "--from-beginning")
    of = ("--group", f"{topic}-group", "--command-property", f"group.protocol={request.param}")
    pair.same("kafka-console-consumer", *reading, *of, view=any_order)
    return f"{topic}-group"


def offsets(printed: Printed) -> list[tuple[str, str]]:
    """(partition, new offset) of each row."""
    return sorted((row[2], row[3]) for row in printed.rows() if len(row) == 4 and row[2].isdigit())


def committed(pair: ToolPair, group: str) -> list[tuple[str, str]]:
    described = pair.same(TOOL, "--describe", "--group", group, view=any_order)
    return sorted((row[2], row[3]) for row in described.rows() if row[0] == group)


def test_every_scenario(pair: ToolPair, topic: str, group: str) -> None:
    def reset(*scenario: str, of: tuple[str, ...] = ("--topic", topic)) -> list[tuple[str, str]]:
        printed = pair.same(TOOL, "--reset-offsets", "--group", group, *of, *scenario, "--execute", view=any_order)
        assert printed.exit_code == 0
        return offsets(printed)

    assert reset("--to-earliest") == [("0", "0"), ("1", "0")] == committed(pair, group)
    assert reset("--to-latest", of=("--all-topics",)) == [("0", "10"), ("1", "4")]
    assert reset("--to-offset", "1", of=("--topic", f"{topic}:1")) == [("1", "1")]
    assert committed(pair, group) == [("0", "10"), ("1", "1")]
    assert reset("--to-offset", "100") == [("0", "10"), ("1", "4")]
    assert reset("--shift-by", "-2") == [("0", "8"), ("1", "2")]
    assert reset("--shift-by", "-100") == [("0", "0"), ("1", "0")]
    assert reset("--shift-by", "7", of=("--topic", f"{topic}:0")) == [("0", "7")]
    assert reset("--to-current") == [("0", "7"), ("1", "0")]
    assert reset("--to-datetime", BETWEEN) == [("0", "5"), ("1", "4")]
    assert reset("--to-datetime", "2000-01-01T00:00:00.000") == [("0", "0"), ("1", "0")]
    assert reset("--to-datetime", "2099-01-01T00:00:00.000") == [("0", "10"), ("1", "4")]
    assert reset("--by-duration", "PT1H") == [("0", "5"), ("1", "4")]
    assert reset("--by-duration", "P1D") == [("0", "0"), ("1", "0")] == committed(pair, group)


def test_without_execute_nothing_changes(pair: ToolPair, topic: str, group: str) -> None:
    for option in ((), ("--dry-run",), ("--export",)):
        printed = pair.same(
            TOOL, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", *option, view=any_order
        )
        assert offsets(printed) == [("0", "0"), ("1", "0")] or option == ("--export",)
    assert committed(pair, group) == [("0", "10"), ("1", "4")]


def test_export_and_import(pair: ToolPair, topic: str, group: str, tmp_path: Path) -> None:
    reset = ("--reset-offsets", "--group", group)
    exported = pair.same(TOOL, *reset, "--topic", topic, "--to-offset", "3", "--export", view=any_order)
    rows = [line for line in exported.lines if line.startswith(topic)]
    assert sorted(rows) == [f"{topic},0,3", f"{topic},1,3"]
    plan = tmp_path / "plan.csv"
    plan.write_text("\n".join(rows) + "\n")
    pair.same(TOOL, *reset, "--from-file", str(plan), "--execute", view=any_order)
    assert committed(pair, group) == [("0", "3"), ("1", "3")]
    plan.write_text(f"{topic},0\n")
    pair.same(TOOL, *reset, "--from-file", str(plan), "--execute")
    assert committed(pair, group) == [("0", "0"), ("1", "3")], "the tool takes an offset that is missing for 0"
    two = (*reset, "--group", f"{topic}-second")
    pair.same(TOOL, "--reset-offsets", "--group", f"{topic}-second", "--topic", topic, "--to-earliest", "--execute")
    both = pair.same(TOOL, *two, "--all-topics", "--to-current", "--export", view=any_order)
    rows = [line for line in both.lines if f",{topic}," in line]
    assert len(rows) == 4
    plan.write_text("\n".join(rows).replace(",3", ",1") + "\n")
    pair.same(TOOL, *two, "--from-file", str(plan), "--execute", view=any_order)
    assert committed(pair, group) == [("0", "0"), ("1", "1")]


def test_a_group_that_does_not_exist_is_made(pair: ToolPair, topic: str) -> None:
    group = f"{topic}-fresh"
    reset = ("--reset-offsets", "--group", group)
    pair.same(TOOL, *reset, "--topic", topic, "--to-offset", "2", "--execute", view=any_order)
    assert committed(pair, group) == [("0", "2"), ("1", "2")]
    reading = ("--topic", topic, "--group", group, "--max-messages", "10", "--timeout-ms", "20000")
    read = pair.same("kafka-console-consumer", *reading, view=any_order)
    assert read.has("Processed a total of 10 messages")
    assert committed(pair, group) == [("0", "10"), ("1", "4")]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--topic", "missing", "--to-earliest", "--execute"),
        ("--topic", "TOPIC:7", "--to-earliest", "--execute"),
        ("--topic", "TOPIC", "--to-datetime", "yesterday", "--execute"),
        ("--topic", "TOPIC", "--by-duration", "soon", "--execute"),
        ("--topic", "TOPIC", "--to-offset", "many", "--execute"),
        ("--topic", "TOPIC", "--shift-by", "far", "--execute"),
        ("--topic", "TOPIC", "--execute"),
        ("--topic", "TOPIC", "--to-earliest", "--to-latest", "--execute"),
        ("--all-topics", "--to-earliest", "--execute"),
        ("--all-topics", "--topic", "TOPIC", "--to-earliest"),
        ("--from-file", "/does/not/exist", "--execute"),
    ],
    ids=" ".join,
)
def test_resets_that_are_refused(pair: ToolPair, topic: str, wrong: tuple[str, ...]) -> None:
    """For a group without offsets; `--to-earliest` of everything finds nothing to reset."""
    given = [argument.replace("TOPIC", topic) for argument in wrong]
    pair.same(TOOL, "--reset-offsets", "--group", f"{topic}-none", *given)
    assert pair.same(TOOL, "--describe", "--group", f"{topic}-none").has(no_such_group())
