"""`kafka-verifiable-producer`, `-consumer` and `-share-consumer` of Kafka 4.3.1: each event they print is JSON.

They print while they end, so each is a process of its own.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.kafka.tools import Printed, ToolPair

PRODUCER, CONSUMER = "kafka-verifiable-producer", "kafka-verifiable-consumer"
SHARE_CONSUMER = "kafka-verifiable-share-consumer"
RECORDS = 20

Event = dict[str, Any]


def events(printed: Printed) -> list[Event]:
    """Without times; AssertionError where the tool failed."""
    assert printed.exit_code == 0, printed
    found = [json.loads(line) for line in printed.lines if line.startswith("{")]
    return [{key: value for key, value in event.items() if key != "timestamp"} for event in found]


def named(found: list[Event], name: str) -> list[Event]:
    return [event for event in found if event.get("name") == name]


@pytest.fixture
def topic(pair: ToolPair, name: str) -> str:
    pair.create_topic(name)
    return name


@pytest.fixture
def full_topic(pair: ToolPair, topic: str) -> str:
    fill(pair, topic)
    return topic


def fill(pair: ToolPair, topic: str) -> None:
    pair.same("kafka-console-producer", "--topic", topic, typed="".join(f"{index}\n" for index in range(RECORDS)))


@pytest.mark.parametrize(
    "options", [(), ("--throughput", "1000", "--acks", "1", "--value-prefix", "7", "--repeating-keys", "2")], ids=str
)
def test_produce(pair: ToolPair, topic: str, options: tuple[str, ...]) -> None:
    kshare, kafka = map(events, pair.in_processes(PRODUCER, "--topic", topic, "--max-messages", "5", *options))
    sent = named(kshare, "producer_send_success")
    assert [event["offset"] for event in sent] == list(range(5))
    assert [event["value"] for event in sent] == [("7." if options else "") + str(index) for index in range(5)]
    assert sent == named(kafka, "producer_send_success")
    for found in (kshare, kafka):
        (summary,) = named(found, "tool_data")
        assert (summary["sent"], summary["acked"]) == (5, 5)


@pytest.mark.parametrize(
    "options",
    [(), ("--group-protocol", "consumer"), ("--enable-autocommit", "--verbose")],
    ids=str,
)
def test_consume(pair: ToolPair, full_topic: str, options: tuple[str, ...]) -> None:
    of = ("--topic", full_topic, "--group-id", f"{full_topic}-group", "--reset-policy", "earliest")
    both = pair.in_processes(CONSUMER, *of, "--max-messages", str(RECORDS), *options)
    for found in map(events, both):
        assert found[0]["name"] == "startup_complete"
        assert len(named(found, "shutdown_complete")) == 1
        # KIP-848's client is first assigned nothing where its assignment comes before the topic's metadata.
        *earlier, assigned = (event["partitions"] for event in named(found, "partitions_assigned"))
        assert assigned == [{"topic": full_topic, "partition": 0}]
        assert not any(earlier)
        consumed = named(found, "records_consumed")
        assert sum(event["count"] for event in consumed) == RECORDS
        assert consumed[-1]["partitions"][0]["maxOffset"] == RECORDS - 1
        if "--verbose" in options:
            assert [event["offset"] for event in named(found, "record_data")] == list(range(RECORDS))
        else:
            committed = named(found, "offsets_committed")[-1]
            assert committed["success"]
            assert committed["offsets"] == [{"topic": full_topic, "partition": 0, "offset": RECORDS}]


@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
def test_share_consume(share_pair: ToolPair, name: str, mode: str) -> None:
    share_pair.create_topic(name)
    fill(share_pair, name)
    of = ("--topic", name, "--group-id", f"{name}-share", "--offset-reset-strategy", "earliest")
    options = ("--max-messages", str(RECORDS), "--acknowledgement-mode", mode, "--verbose")
    for found in map(events, share_pair.in_processes(SHARE_CONSUMER, *of, *options)):
        assert found[0]["name"] == "startup_complete"
        assert len(named(found, "shutdown_complete")) == 1
        assert named(found, "offset_reset_strategy_set")[0]["offsetResetStrategy"] == "earliest"
        assert sorted(event["offset"] for event in named(found, "record_data")) == list(range(RECORDS))
        acknowledged = named(found, "offsets_acknowledged")
        assert all(event["success"] for event in acknowledged)
        assert sum(event["count"] for event in acknowledged) == RECORDS


@pytest.mark.parametrize("tool", [PRODUCER, CONSUMER, SHARE_CONSUMER])
def test_commands_that_are_wrong(pair: ToolPair, tool: str) -> None:
    kshare, kafka = pair.in_processes(tool, "--nonsense")
    assert kshare == kafka
    assert kshare.exit_code == 1
