"""Kafka 4.3.1's performance tests: they run on kshare, count every record, and print figures that can be.

kshare and Kafka run at the same time on one machine, so the figures of the two are not compared.
"""

from __future__ import annotations

import re

import pytest

from support.clients.delivery import wait_for
from support.clusters.engines import protocols_of_groups
from support.kafka.tools import Printed, ToolPair

PRODUCE, CONSUME, SHARE = "kafka-producer-perf-test", "kafka-consumer-perf-test", "kafka-share-consumer-perf-test"
NUMBER = r"([\d.]+)"
SENT = re.compile(
    rf"{NUMBER} records sent, {NUMBER} records/sec \({NUMBER} MB/sec\), {NUMBER} ms avg latency, "
    rf"{NUMBER} ms max latency, {NUMBER} ms 50th, {NUMBER} ms 95th, {NUMBER} ms 99th, {NUMBER} ms 99.9th\."
)
RECORD_BYTES = 200


def records_in(pair: ToolPair, topic: str) -> list[int]:
    """On each system."""
    return [
        sum(int(line.split(":")[2]) for line in printed.lines)
        for printed in pair.run("kafka-get-offsets", "--topic", topic)
    ]


def check_sent(printed: Printed, records: int, record_bytes: float) -> None:
    found = [match for line in printed.lines if (match := SENT.fullmatch(line))]
    assert len(found) == 1, printed
    sent, per_second, megabytes, average, longest, *percentiles = map(float, found[0].groups())
    assert sent == records
    assert per_second > 0
    assert megabytes == pytest.approx(per_second * record_bytes / 1024 / 1024, abs=0.01)
    assert average <= longest
    assert percentiles == sorted(percentiles)
    assert percentiles[-1] <= longest


@pytest.fixture
def topic(pair: ToolPair, name: str) -> str:
    pair.create_topic(name, 2)
    return name


@pytest.fixture
def full_topic(pair: ToolPair, topic: str) -> str:
    """3,000 records of 200 bytes."""
    fill(pair, topic)
    return topic


def fill(pair: ToolPair, topic: str) -> None:
    of = ("--topic", topic, "--num-records", "3000", "--record-size", str(RECORD_BYTES), "--throughput", "-1")
    for printed in pair.run(PRODUCE, *of):
        check_sent(printed, 3000, RECORD_BYTES)
    assert records_in(pair, topic) == [3000, 3000]


@pytest.mark.parametrize(
    ("options", "record_bytes"),
    [
        (("--record-size", "100"), 100),
        (("--record-size", "100", "--command-property", "acks=1"), 100),
        (("--record-size", "100", "--command-property", "compression.type=lz4"), 100),
        (("--record-size", "100", "--producer-props", "acks=all", "linger.ms=5"), 100),
        (("--record-size", "100", "--transaction-duration-ms", "100"), 100),
        (("--payload-monotonic",), None),
    ],
    ids=str,
)
def test_produce(pair: ToolPair, topic: str, options: tuple[str, ...], record_bytes: int | None) -> None:
    of = ("--topic", topic, "--num-records", "500", "--throughput", "-1")
    digits = sum(len(str(number)) for number in range(500)) / 500
    for printed in pair.run(PRODUCE, *of, *options):
        check_sent(printed, 500, record_bytes or digits)
    if "acks=1" in options:  # the leader answers before the high watermark has followed
        wait_for(lambda: records_in(pair, topic) == [500, 500], "all records can be read")
    elif "--transaction-duration-ms" in options:  # markers have offsets, too; the end of a transaction is told before
        wait_for(lambda: min(records_in(pair, topic)) > 500, "the last transaction has its markers")
    else:
        assert records_in(pair, topic) == [500, 500]


def test_produce_at_a_rate(pair: ToolPair, topic: str) -> None:
    of = ("--topic", topic, "--num-records", "100", "--record-size", "10", "--throughput", "100")
    for printed in pair.run(PRODUCE, *of, "--warmup-records", "20", "--reporting-interval", "60000"):
        (per_second,) = {float(match[2]) for line in printed.lines if (match := re.match(SENT, line))}
        assert per_second < 130
        assert printed.has("80 steady state records sent")


def test_produce_from_a_file(pair: ToolPair, topic: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    payloads = tmp_path_factory.mktemp("payloads") / "payloads"
    payloads.write_text("alpha;beta")
    of = ("--topic", topic, "--num-records", "50", "--throughput", "-1", "--payload-file", str(payloads))
    for printed in pair.run(PRODUCE, *of, "--payload-delimiter", ";", "--print-metrics"):
        assert printed.has("50 records sent")
        assert printed.has("producer-metrics:record-send-total:{client-id=perf-producer-client} : 50.000")
    reading = ("--topic", topic, "--from-beginning", "--max-messages", "50", "--timeout-ms", "20000")
    for printed in pair.run("kafka-console-consumer", *reading, "--group", topic):
        assert set(printed.lines[:50]) == {"alpha", "beta"}


@pytest.mark.parametrize("protocol", protocols_of_groups())
def test_consume(pair: ToolPair, full_topic: str, protocol: str) -> None:
    of = ("--topic", full_topic, "--num-records", "3000", "--group", f"{full_topic}-{protocol}", "--timeout", "20000")
    for printed in pair.run(CONSUME, *of, "--command-property", f"group.protocol={protocol}"):
        row = _row_after(printed, "start.time")
        assert row["data.consumed.in.nMsg"] == 3000
        assert row["data.consumed.in.MB"] == pytest.approx(3000 * RECORD_BYTES / 1024 / 1024, abs=0.001)
        assert row["rebalance.time.ms"] > 0
        assert row["nMsg.sec"] > 0
        # The tool counts the time of joining twice where the client, which has not seen the topic's id yet, first hands
        # over an empty assignment. The rest of the time may then be below 0.
        passed_ms = 1000 * 3000 / row["nMsg.sec"]
        assert row["rebalance.time.ms"] + row["fetch.time.ms"] == pytest.approx(passed_ms, abs=1)


def test_consume_with_details(pair: ToolPair, full_topic: str) -> None:
    of = ("--topic", full_topic, "--num-records", "3000", "--group", full_topic, "--timeout", "20000")
    details = ("--show-detailed-stats", "--reporting-interval", "1", "--print-metrics", "--hide-header")
    for printed in pair.run(CONSUME, *of, *details):
        rows = [line.split(", ") for line in printed.lines if line.count(", ") == 9]
        assert len(rows) > 1
        counts = [float(row[4]) for row in rows]  # so far; the last interval is not printed
        assert counts == sorted(counts) and 0 < counts[-1] <= 3000
        assert printed.has("consumer-fetch-manager-metrics:records-consumed-total:{client-id=perf-consumer-client}")
    late = ("--topic", full_topic, "--num-records", "3000", "--group", f"{full_topic}-late", "--timeout", "1000")
    for printed in pair.run(CONSUME, *late, "--from-latest"):
        assert _row_after(printed, "start.time")["data.consumed.in.nMsg"] == 0


@pytest.mark.parametrize("threads", ["1", "2"])
def test_share_consume(share_pair: ToolPair, name: str, threads: str) -> None:
    """Kafka takes a few records more than it was asked for, where a batch has them."""
    group = f"{name}-share"
    share_pair.create_topic(name, 2)
    fill(share_pair, name)
    share_pair.same("kafka-configs", "--alter", "--group", group, "--add-config", "share.auto.offset.reset=earliest")
    of = ("--topic", name, "--num-records", "2500", "--group", group, "--threads", threads)
    for printed in share_pair.run(SHARE, *of, "--timeout", "20000"):
        row = _row_after(printed, "start.time")
        assert 2500 <= row["data.consumed.in.nMsg"] <= 3000
        consumed = row["data.consumed.in.nMsg"] * RECORD_BYTES / 1024 / 1024
        assert row["data.consumed.in.MB"] == pytest.approx(consumed, abs=0.001)
        assert row["nMsg.sec"] > 0


def _row_after(printed: Printed, heading: str) -> dict[str, float]:
    """The last row of the table with this heading; of times only that they are there."""
    index = next(index for index, line in enumerate(printed.lines) if line.startswith(heading))
    names = printed.lines[index].split(", ")
    cells = printed.lines[-1].split(", ")
    assert len(names) == len(cells)
    return {name: float(cell) for name, cell in zip(names[2:], cells[2:], strict=True)}


@pytest.mark.parametrize("tool", [PRODUCE, CONSUME, SHARE])
def test_commands_that_are_wrong(pair: ToolPair, tool: str) -> None:
    for wrong in ((), ("--topic", "t"), ("--topic", "t", "--num-records", "many"), ("--nonsense",)):
        pair.same(tool, *wrong, server=tool != PRODUCE)
