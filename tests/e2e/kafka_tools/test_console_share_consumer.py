"""`kafka-console-share-consumer` of Kafka 4.3.1 with every option, on kshare and on Kafka alike."""

from __future__ import annotations

import pytest

from support.kafka.tools import Printed, ToolPair, any_order

TOOL = "kafka-console-share-consumer"
EVERYTHING = [
    word
    for each in ("key", "partition", "offset", "headers", "epoch", "delivery")
    for word in ("--formatter-property", f"print.{each}=true")
]


@pytest.fixture
def topic(share_pair: ToolPair, name: str) -> str:
    share_pair.create_topic(name)
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    share_pair.same("kafka-console-producer", "--topic", name, *keyed, typed="a:one\nb:two\nc:three\n")
    return name


def share(share_pair: ToolPair, topic: str, group: str, *options: str, count: int = 3) -> Printed:
    """So many records by a group that begins at the earliest one."""
    share_pair.same("kafka-configs", "--alter", "--group", group, "--add-config", "share.auto.offset.reset=earliest")
    reading = ("--topic", topic, "--group", group, "--max-messages", str(count), "--timeout-ms", "20000")
    return share_pair.same(TOOL, *reading, *options, view=any_order)


def test_what_is_accepted_is_gone(share_pair: ToolPair, topic: str) -> None:
    printed = share(share_pair, topic, f"{topic}-g")
    assert printed.lines[:3] == ("one", "two", "three")
    assert printed.has("Processed a total of 3 messages")
    rest = share_pair.same(TOOL, "--topic", topic, "--group", f"{topic}-g", "--timeout-ms", "1500")
    assert rest.has("Processed a total of 0 messages")


def test_released_records_come_again_and_rejected_ones_do_not(share_pair: ToolPair, topic: str) -> None:
    group = f"{topic}-g"
    assert share(share_pair, topic, group, "--release", *EVERYTHING).has("Delivery:1")
    again = share(share_pair, topic, group, "--reject", *EVERYTHING)
    assert again.has("Delivery:2") and not again.has("Delivery:1")
    rest = share_pair.same(TOOL, "--topic", topic, "--group", group, "--timeout-ms", "1500")
    assert rest.has("Processed a total of 0 messages")


def test_all_that_can_be_printed_of_a_record(share_pair: ToolPair, topic: str) -> None:
    printed = share(share_pair, topic, f"{topic}-g", *EVERYTHING)
    assert any(line.startswith("Partition:0 Offset:0 Delivery:1 Epoch:") for line in printed.lines), printed
    other = ("--formatter-property", "print.key=true", "--formatter-property", "key.separator=#")
    assert share(share_pair, topic, f"{topic}-h", *other).lines[:3] == ("a#one", "b#two", "c#three")


@pytest.mark.parametrize(
    "options",
    [
        ("--formatter", "org.apache.kafka.tools.consumer.LoggingMessageFormatter"),
        ("--formatter", "org.apache.kafka.tools.consumer.NoOpMessageFormatter"),
        ("--value-deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
        ("--value-deserializer", "org.apache.kafka.common.serialization.LongDeserializer", "--reject-message-on-error"),
        ("--command-property", "max.poll.records=1", "--enable-systest-events"),
    ],
    ids=" ".join,
)
def test_ways_to_consume(share_pair: ToolPair, topic: str, options: tuple[str, ...]) -> None:
    assert share(share_pair, topic, f"{topic}-g", *options).exit_code == 0


def test_from_the_latest_offset_there_is_nothing(share_pair: ToolPair, topic: str) -> None:
    printed = share_pair.same(TOOL, "--topic", topic, "--group", f"{topic}-late", "--timeout-ms", "1500")
    assert printed.has("Processed a total of 0 messages")


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--topic", "t", "--reject", "--release"),
        ("--topic", "t", "--formatter", "no.such.Formatter"),
        ("--topic", "t", "--group", "one", "--command-property", "group.id=other"),
        ("--topic", "t", "--max-messages", "many"),
    ],
    ids=" ".join,
)
def test_commands_that_are_wrong(share_pair: ToolPair, wrong: tuple[str, ...]) -> None:
    assert share_pair.same(TOOL, *wrong).exit_code == 1


def test_a_topic_that_does_not_exist(share_pair: ToolPair, name: str) -> None:
    share_pair.same(TOOL, "--topic", name, "--group", f"{name}-g", "--timeout-ms", "1500")


def test_the_id_of_a_consumer_group(share_pair: ToolPair, topic: str) -> None:
    """A share group cannot have it, nor the reverse."""
    group = f"{topic}-consumer"
    reading = ("--topic", topic, "--group", group, "--timeout-ms", "20000", "--max-messages", "1")
    of = ("--from-beginning", "--command-property", "group.protocol=consumer")
    share_pair.same("kafka-console-consumer", *reading, *of, view=any_order)
    refused = share_pair.same(TOOL, "--topic", topic, "--group", group, "--timeout-ms", "5000")
    assert refused.has("Processed a total of 0 messages") or refused.exit_code == 1
