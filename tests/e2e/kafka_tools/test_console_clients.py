"""`kafka-console-producer` and `kafka-console-consumer` of Kafka 4.3.1, on kshare and on Kafka alike."""

from __future__ import annotations

import pytest

from support.clusters.engines import protocols_of_groups
from support.kafka.tools import Printed, ToolPair, any_order

PRODUCER, CONSUMER = "kafka-console-producer", "kafka-console-consumer"
KEYED = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
FORMATTERS = "org.apache.kafka.tools.consumer."
SEPARATOR = ";"
"""What ends a record where line.separator is set."""
SERIALIZATION = "org.apache.kafka.common.serialization."


@pytest.fixture
def topic(pair: ToolPair, name: str) -> str:
    """Four records with keys; the producer's partitioner decides where they are, and it is the same on both."""
    pair.create_topic(name, 3)
    pair.same(PRODUCER, "--topic", name, *KEYED, typed="a:1\nb:2\nc:3\nd:4\n")
    return name


@pytest.fixture
def one_partition(pair: ToolPair, name: str) -> str:
    pair.same("kafka-topics", "--create", "--topic", f"{name}-one")
    pair.same(PRODUCER, "--topic", f"{name}-one", typed="first\nsecond\nthird\n")
    return f"{name}-one"


def consume(pair: ToolPair, topic: str, *options: str, group: str = "") -> Printed:
    """What is printed of the topic from its beginning on; a group of its own where none is given."""
    of = ("--group", group or f"{topic}-reader", "--timeout-ms", "20000")
    return pair.same(CONSUMER, "--topic", topic, "--from-beginning", *of, *options, view=records_in_any_order)


def records_in_any_order(printed: Printed) -> Printed:
    """The partitions come in the order of the brokers' answers, which Kafka does not promise."""
    records = "\n".join(printed.lines).replace(SEPARATOR, f"{SEPARATOR}\n")
    return any_order(printed._replace(lines=tuple(records.splitlines())))


def test_values_in_order(pair: ToolPair, one_partition: str) -> None:
    printed = consume(pair, one_partition, "--max-messages", "3")
    assert printed.lines[:3] == ("first", "second", "third")
    assert printed.has("Processed a total of 3 messages")


def test_all_that_can_be_printed_of_a_record(pair: ToolPair, topic: str) -> None:
    wanted = ("key", "partition", "offset", "headers", "epoch", "delivery", "value")
    properties = [word for each in wanted for word in ("--formatter-property", f"print.{each}=true")]
    printed = consume(pair, topic, "--max-messages", "4", *properties, group=f"{topic}-all")
    assert printed.has("Offset:0") and printed.has("NO_HEADERS") and printed.has("Partition:")
    separators = ("key.separator=#", "headers.separator=|", "null.literal=NOTHING", f"line.separator={SEPARATOR}")
    other = [word for each in (*separators, "print.key=true") for word in ("--formatter-property", each)]
    printed = consume(pair, topic, "--max-messages", "4", *other, group=f"{topic}-other")
    assert printed.has(f"a#1{SEPARATOR}")


def test_keys_headers_and_nulls(pair: ToolPair, topic: str) -> None:
    options = ("parse.headers=true", "headers.delimiter=!", "headers.separator=,", "headers.key.separator==")
    reader = [word for each in (*options, "null.marker=NIL") for word in ("--reader-property", each)]
    typed = "h1=one,h2=two!key:value\nh1=x!NIL:NIL\n"
    one = f"{topic}-headers"
    pair.create_topic(one)
    pair.same(PRODUCER, "--topic", one, *KEYED, *reader, typed=typed)
    shown = [word for each in ("key", "headers") for word in ("--formatter-property", f"print.{each}=true")]
    printed = consume(pair, one, "--max-messages", "2", *shown)
    assert "h1:one,h2:two key value" in printed.lines
    assert "h1:x null null" in printed.lines


@pytest.mark.parametrize(
    "options",
    [
        ("--sync", "--timeout", "5"),
        ("--compression-codec", "gzip"),
        ("--compression-codec", "zstd"),
        ("--batch-size", "1", "--timeout", "10", "--max-block-ms", "5000", "--max-memory-bytes", "100000"),
        ("--request-required-acks", "0"),
        ("--request-required-acks", "1", "--request-timeout-ms", "5000", "--message-send-max-retries", "2"),
        ("--command-property", "enable.idempotence=false", "--line-reader", "org.apache.kafka.tools.LineMessageReader"),
    ],
    ids=" ".join,
)
def test_ways_to_produce(pair: ToolPair, name: str, options: tuple[str, ...]) -> None:
    pair.create_topic(name)
    pair.same("kafka-get-offsets", "--topic", name)  # answered by the leader: without acknowledgements it must be there
    typed = "".join(f"line {index}\n" for index in range(20))
    assert pair.same(PRODUCER, "--topic", name, *options, typed=typed).exit_code == 0
    assert consume(pair, name, "--max-messages", "20").lines[:2] == ("line 0", "line 1")


def test_lines_that_are_no_records(pair: ToolPair, topic: str) -> None:
    """Without a key where one is wanted; a topic that does not exist."""
    assert pair.same(PRODUCER, "--topic", topic, *KEYED, typed="no key\n").exit_code == 1
    ignored = ("--reader-property", "ignore.error=true")
    pair.same(PRODUCER, "--topic", f"{topic}", *KEYED, *ignored, typed="no key\n")
    missing = ("--topic", f"{topic}-missing", "--max-block-ms", "1000")
    pair.same(PRODUCER, *missing, typed="lost\n")
    assert pair.same(PRODUCER, typed="").exit_code == 1


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (("--offset", "1", "--max-messages", "2"), ("second", "third")),
        (("--offset", "earliest", "--max-messages", "1"), ("first",)),
        (("--offset", "latest", "--timeout-ms", "1000"), ()),
        (("--offset", "99", "--timeout-ms", "1000"), ()),
        (("--from-beginning", "--max-messages", "2"), ("first", "second")),
    ],
    ids=str,
)
def test_one_partition(pair: ToolPair, one_partition: str, options: tuple[str, ...], lines: tuple[str, ...]) -> None:
    timeout = () if "--timeout-ms" in options else ("--timeout-ms", "20000")
    printed = pair.same(CONSUMER, "--topic", one_partition, "--partition", "0", *options, *timeout)
    assert printed.lines[: len(lines)] == lines
    assert printed.has(f"Processed a total of {len(lines)} messages")


def test_a_group_goes_on_where_it_was(pair: ToolPair, one_partition: str) -> None:
    for protocol in protocols_of_groups():
        group = f"{one_partition}-{protocol}"
        of = ("--command-property", f"group.protocol={protocol}")
        assert consume(pair, one_partition, "--max-messages", "2", *of, group=group).has("Processed a total of 2 ")
        rest = consume(pair, one_partition, "--max-messages", "1", *of, group=group)
        assert "third" in rest.lines and "first" not in rest.lines


def test_several_topics(pair: ToolPair, topic: str, one_partition: str) -> None:
    reading = ("--from-beginning", "--max-messages", "7", "--timeout-ms", "20000")
    for protocol in protocols_of_groups():
        of = ("--group", f"{topic}-{protocol}", "--command-property", f"group.protocol={protocol}")
        printed = pair.same(CONSUMER, "--include", f"{topic}(-one)?", *reading, *of, view=any_order)
        assert {"1", "4", "first", "third"} <= set(printed.lines)


def test_internal_topics_are_in_no_pattern(pair: ToolPair, topic: str) -> None:
    reading = ("--from-beginning", "--timeout-ms", "4000", "--group", f"{topic}-pattern")
    printed = pair.same(CONSUMER, "--include", f"{topic}|__.*", *reading, view=any_order)
    assert printed.has("Processed a total of 4 messages")


@pytest.mark.parametrize(
    "options",
    [
        ("--formatter", f"{FORMATTERS}LoggingMessageFormatter"),
        ("--formatter", f"{FORMATTERS}NoOpMessageFormatter"),
        ("--formatter", f"{FORMATTERS}DefaultMessageFormatter", "--formatter-property", "print.timestamp=false"),
        ("--key-deserializer", f"{SERIALIZATION}StringDeserializer"),
        ("--value-deserializer", f"{SERIALIZATION}LongDeserializer", "--skip-message-on-error"),
        ("--isolation-level", "read_committed"),
        ("--isolation-level", "read_uncommitted", "--enable-systest-events"),
    ],
    ids=" ".join,
)
def test_ways_to_print(pair: ToolPair, one_partition: str, options: tuple[str, ...]) -> None:
    assert consume(pair, one_partition, "--max-messages", "3", *options).exit_code == 0


def test_only_what_was_committed(pair: ToolPair, name: str) -> None:
    """A transactional producer of the performance test commits what it sends."""
    pair.same("kafka-topics", "--create", "--topic", name)
    sending = ("--topic", name, "--num-records", "5", "--payload-monotonic", "--throughput", "-1")
    pair.run("kafka-producer-perf-test", *sending, "--transactional-id", name, "--transaction-duration-ms", "60000")
    printed = consume(pair, name, "--isolation-level", "read_committed", "--max-messages", "5")
    assert printed.lines[:5] == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--topic", "t", "--include", "t"),
        ("--topic", "t", "--offset", "1"),
        ("--topic", "t", "--partition", "0", "--offset", "-1"),
        ("--topic", "t", "--partition", "0", "--offset", "soon"),
        ("--topic", "t", "--partition", "0", "--group", "g"),
        ("--topic", "t", "--isolation-level", "nonsense"),
        ("--topic", "t", "--formatter", "no.such.Formatter"),
        ("--topic", "t", "--group", "one", "--command-property", "group.id=other"),
    ],
    ids=" ".join,
)
def test_commands_that_are_wrong(pair: ToolPair, wrong: tuple[str, ...]) -> None:
    assert pair.same(CONSUMER, *wrong).exit_code == 1


def test_topics_and_partitions_that_are_not_there(pair: ToolPair, one_partition: str) -> None:
    timeout = ("--timeout-ms", "1000")
    pair.same(CONSUMER, "--topic", f"{one_partition}-missing", "--group", f"{one_partition}-m", *timeout)
    pair.same(CONSUMER, "--topic", one_partition, "--partition", "5", "--offset", "0", *timeout)


@pytest.mark.parametrize("protocol", protocols_of_groups())
def test_internal_topics(pair: ToolPair, name: str, protocol: str) -> None:
    """`__share_group_state` has what Kafka's has; committed offsets are no records here, and a reader is told so."""
    formatter = ("--formatter", f"{FORMATTERS}group.share.ShareGroupStateMessageFormatter")
    by = ("--command-property", f"group.protocol={protocol}")
    reading = ("--topic", "__share_group_state", "--from-beginning", "--group", f"{name}-state", *by)
    for printed in pair.run(CONSUMER, *reading, *formatter, "--timeout-ms", "8000"):
        assert printed.has('"groupId":"first-share"')
    offsets = ("--topic", "__consumer_offsets", "--from-beginning", "--group", f"{name}-offsets", *by)
    kshare, _ = pair.run(CONSUMER, *offsets, "--max-messages", "1", "--timeout-ms", "20000")
    assert kshare.has("Processed a total of 0 messages")
    assert kshare.has("TopicAuthorizationException")
