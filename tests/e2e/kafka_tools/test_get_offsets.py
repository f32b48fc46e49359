"""`kafka-get-offsets` and `kafka-delete-records` of Kafka 4.3.1 with every option, on kshare and on Kafka alike."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from support.clients.delivery import produce
from support.clusters.engines import is_attached
from support.kafka.tools import Printed, ToolPair

TOOL, DELETE = "kafka-get-offsets", "kafka-delete-records"
SECOND_MS = time.time_ns() // 1_000_000
FIRST_MS = SECOND_MS - 7_200_000
TIMES = {
    "FIRST": str(FIRST_MS),
    "AFTER-FIRST": str(FIRST_MS + 1),
    "SECOND": str(SECOND_MS),
    "AFTER-SECOND": str(SECOND_MS + 1),
}


@pytest.fixture
def topic(pair: ToolPair, name: str) -> str:
    """Partition 0: 6 records, the fourth of them the newest. Partition 1: 2 old ones. Partition 2: none."""

    def fill(bootstrap: str) -> None:
        produce(bootstrap, name, map(str, range(3)), timestamp_ms=FIRST_MS)
        produce(bootstrap, name, ["newest"], timestamp_ms=SECOND_MS)
        produce(bootstrap, name, map(str, range(2)), timestamp_ms=FIRST_MS)
        produce(bootstrap, name, map(str, range(2)), partition=1, timestamp_ms=FIRST_MS)

    pair.same("kafka-topics", "--create", "--topic", name, "--partitions", "3")
    pair.each(fill)
    return name


@pytest.mark.parametrize(
    ("at", "offsets"),
    [
        ("-1", (6, 2, 0)),
        ("latest", (6, 2, 0)),
        ("-2", (0, 0, 0)),
        ("earliest", (0, 0, 0)),
        ("-3", (3, 0, None)),
        ("max-timestamp", (3, 0, None)),
        ("-4", (0, 0, 0)),
        ("earliest-local", (0, 0, 0)),
        ("-5", (None, None, None)),
        ("latest-tiered", (None, None, None)),
        ("-6", (None, None, None)),
        ("earliest-pending-upload", (None, None, None)),
        ("0", (0, 0, None)),
        ("FIRST", (0, 0, None)),
        ("AFTER-FIRST", (3, None, None)),
        ("SECOND", (3, None, None)),
        ("AFTER-SECOND", (None, None, None)),
    ],
)
def test_times(pair: ToolPair, topic: str, at: str, offsets: tuple[int | None, ...]) -> None:
    printed = pair.same(TOOL, "--topic", topic, "--time", TIMES.get(at, at))
    expected = tuple(f"{topic}:{index}:{offset}" for index, offset in enumerate(offsets) if offset is not None)
    assert printed == Printed(0, expected)


def test_which_partitions(pair: ToolPair, topic: str) -> None:
    other = f"{topic}-other"
    pair.same("kafka-topics", "--create", "--topic", other)
    zero, one, two = (f"{topic}:{index}:{offset}" for index, offset in enumerate((6, 2, 0)))
    asked = {
        ("--topic", topic): (zero, one, two),
        ("--topic", f"{topic}.*"): (zero, one, two, f"{other}:0:0"),
        ("--topic", f"{topic},{other}"): (zero, one, two, f"{other}:0:0"),
        ("--topic", topic, "--partitions", "0,2"): (zero, two),
        ("--topic", topic, "--partitions", "1", "--exclude-internal-topics"): (one,),
        ("--topic-partitions", f"{topic}:0,{other}"): (zero, f"{other}:0:0"),
        ("--topic-partitions", f"{topic}:1-"): (one, two),
        ("--topic-partitions", f"{topic}:-2"): (zero, one),
        ("--topic-partitions", f"{topic}:0-1"): (zero,),
        ("--topic-partitions", f"{topic}.*:0"): (zero, f"{other}:0:0"),
    }
    for options, expected in asked.items():
        assert tuple(sorted(pair.same(TOOL, *options).lines)) == tuple(sorted(expected)), options


def test_without_options_all_topics(pair: ToolPair, topic: str) -> None:
    """But for `__consumer_offsets`, which holds no records on kshare; the tool says which partitions it skips.

    In front of a cluster that topic is the cluster's, and there is no `__share_group_state`.
    """
    internal = "__consumer_offsets:49:" if is_attached() else "__share_group_state:49:"
    kshare, kafka = pair.run(TOOL)
    for printed in (kshare, kafka):
        assert {f"{topic}:0:6", f"{topic}:1:2", f"{topic}:2:0", "first:0:1"} <= set(printed.lines)
        assert printed.has(internal)
        assert printed.exit_code == 0
    skipped = [line for line in kshare.lines if "__consumer_offsets" in line]
    assert is_attached() or all(
        line.startswith("Skip getting offsets") and "TopicAuthorization" in line for line in skipped
    )
    assert not pair.run(TOOL, "--exclude-internal-topics")[0].has("__")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--topic", "missing"),
        ("--topic", "TOPIC", "--partitions", "7"),
        ("--topic", "TOPIC", "--partitions", "x"),
        ("--topic-partitions", "TOPIC:x"),
        ("--topic", "TOPIC", "--topic-partitions", "TOPIC"),
        ("--topic", "TOPIC", "--time", "soon"),
        ("--topic", "TOPIC", "--nonsense"),
    ],
    ids=" ".join,
)
def test_commands_that_are_wrong(pair: ToolPair, topic: str, wrong: tuple[str, ...]) -> None:
    assert pair.same(TOOL, *(argument.replace("TOPIC", topic) for argument in wrong)).exit_code == 1


def test_times_that_do_not_exist(pair: ToolPair, topic: str) -> None:
    """The tool skips the partitions that are refused."""
    pair.same(TOOL, "--topic", topic, "--time", "-7")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return tmp_path / "offsets.json"


def delete(pair: ToolPair, plan: Path, *offsets: tuple[str, int, int]) -> Printed:
    partitions = [{"topic": topic, "partition": number, "offset": offset} for topic, number, offset in offsets]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return pair.same(DELETE, "--offset-json-file", str(plan), view=_partitions_in_order)


def _partitions_in_order(printed: Printed) -> Printed:
    return printed._replace(lines=tuple(sorted(printed.lines)))


def test_delete_records(pair: ToolPair, topic: str, plan: Path) -> None:
    done = delete(pair, plan, (topic, 0, 4), (topic, 1, -1))
    assert f"partition: {topic}-0 low_watermark: 4" in done.lines
    assert f"partition: {topic}-1 low_watermark: 2" in done.lines
    assert pair.same(TOOL, "--topic", topic, "--time", "-2").lines == (f"{topic}:0:4", f"{topic}:1:2", f"{topic}:2:0")
    assert pair.same(TOOL, "--topic", topic, "--time", "-1").lines == (f"{topic}:0:6", f"{topic}:1:2", f"{topic}:2:0")
    reading = ("--topic", topic, "--partition", "0", "--from-beginning", "--max-messages", "2", "--timeout-ms", "9000")
    assert pair.same("kafka-console-consumer", *reading).lines[:2] == ("0", "1")
    again = delete(pair, plan, (topic, 0, 1))
    assert f"partition: {topic}-0 low_watermark: 4" in again.lines, "what is gone stays gone"


def test_records_that_cannot_be_deleted(pair: ToolPair, topic: str, plan: Path) -> None:
    assert delete(pair, plan, (topic, 0, 7)).has("OffsetOutOfRangeException")
    assert delete(pair, plan, (topic, 0, -2)).has("OffsetOutOfRangeException")
    compacted = f"{topic}-compacted"
    pair.same("kafka-topics", "--create", "--topic", compacted, "--config", "cleanup.policy=compact")
    assert delete(pair, plan, (compacted, 0, 0)).has("PolicyViolationException")
    internal = ["__consumer_offsets"] if is_attached() else ["__consumer_offsets", "__share_group_state"]
    assert delete(pair, plan, *((topic, 0, 0) for topic in internal)).has("InvalidTopicException")
    assert pair.same(TOOL, "--topic", topic, "--time", "-2").lines[0] == f"{topic}:0:0"


def test_records_of_what_does_not_exist(pair: ToolPair, topic: str, plan: Path, tmp_path: Path) -> None:
    """The tool looks for it as long as it is told."""
    quick = tmp_path / "quick.properties"
    quick.write_text("default.api.timeout.ms=1500\nrequest.timeout.ms=1000\n")
    partitions = [{"topic": name, "partition": number, "offset": 1} for name, number in ((topic, 9), ("missing", 0))]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    options = ("--offset-json-file", str(plan), "--command-config", str(quick))
    printed = pair.same(DELETE, *options, view=_partitions_in_order)
    assert printed.has("TimeoutException")


def test_plans_that_are_wrong(pair: ToolPair, topic: str, plan: Path) -> None:
    assert delete(pair, plan, (topic, 0, 1), (topic, 0, 2)).exit_code == 1
    for text in ("no json", "{}", '{"version": 2, "partitions": []}', '{"partitions": [{"topic": "t"}]}'):
        plan.write_text(text)
        pair.same(DELETE, "--offset-json-file", str(plan))
    assert pair.same(DELETE, "--offset-json-file", "/does/not/exist").exit_code == 1
    assert pair.same(DELETE).exit_code == 1
