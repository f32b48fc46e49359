"""`kafka-groups` and `kafka-streams-groups` of Kafka 4.3.1, on kshare and on Kafka alike.

There are no streams groups on kshare; a Kafka where nobody made one says the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.clusters.engines import protocols_of_groups
from support.kafka.tools import Printed, ToolPair, about

LIST, STREAMS = "kafka-groups", "kafka-streams-groups"
CONSUMER = "consumer"


@pytest.fixture
def groups(share_pair: ToolPair, name: str) -> Callable[[Printed], Printed]:
    """A group of each type with the test's name in its own; gives the view of what is listed about them."""
    pair = share_pair
    pair.create_topic(name)
    pair.same("kafka-console-producer", "--topic", name, typed="one\n")
    reading = ("--topic", name, "--max-messages", "1", "--timeout-ms", "20000")
    consumer = ("kafka-console-consumer", *reading, "--from-beginning")
    pair.same(*consumer, "--group", f"{name}-classic")
    if CONSUMER in protocols_of_groups():
        pair.same(*consumer, "--group", f"{name}-consumer", "--command-property", "group.protocol=consumer")
    share = f"{name}-share"
    pair.same("kafka-configs", "--alter", "--group", share, "--add-config", "share.auto.offset.reset=earliest")
    pair.same("kafka-console-share-consumer", *reading, "--group", share)
    pair.same("kafka-consumer-groups", "--reset-offsets", "--group", f"{name}-offsets", "--topic", name, *TO_EARLIEST)
    return about(name)


TO_EARLIEST = ("--to-earliest", "--execute")


def test_list(share_pair: ToolPair, name: str, groups: Callable[[Printed], Printed]) -> None:
    def listed(*options: str) -> tuple[str, ...]:
        return groups(share_pair.same(LIST, "--list", *options, view=groups)).lines

    classic = f"{name}-classic Classic consumer"
    consumer = [f"{name}-consumer Consumer consumer"] if CONSUMER in protocols_of_groups() else []
    offsets = f"{name}-offsets Classic"
    share = f"{name}-share Share share"
    assert listed() == (classic, *consumer, offsets, share)
    assert listed("--share") == (share,)
    assert listed("--consumer") == (classic, *consumer, offsets)
    assert listed("--streams") == ()
    assert listed("--group-type", "share") == (share,)
    assert listed("--group-type", "consumer") == (*consumer,)
    assert listed("--group-type", "classic") == (classic, offsets)
    assert listed("--protocol", "consumer") == (classic, *consumer)
    assert listed("--protocol", "share") == (share,)
    assert listed("--protocol", "nonsense") == ()
    assert listed("--group-type", "share", "--protocol", "consumer") == ()


@pytest.mark.parametrize(
    "wrong", [(), ("--list", "--group-type", "nonsense"), ("--list", "--share", "--consumer"), ("--describe",)]
)
def test_commands_that_are_wrong(pair: ToolPair, wrong: tuple[str, ...]) -> None:
    assert pair.same(LIST, *wrong).exit_code == 1


@pytest.mark.parametrize(
    "command",
    [
        ("--list",),
        ("--list", "--state"),
        ("--list", "--state", "stable"),
        ("--describe", "--group", "missing"),
        ("--describe", "--group", "missing", "--members"),
        ("--describe", "--group", "missing", "--state"),
        ("--describe", "--group", "missing", "--offsets", "--verbose"),
        ("--describe", "--all-groups"),
        ("--delete", "--group", "missing"),
        ("--delete-offsets", "--group", "missing", "--all-input-topics"),
    ],
    ids=" ".join,
)
def test_there_are_no_streams_groups(pair: ToolPair, command: tuple[str, ...]) -> None:
    pair.same(STREAMS, *command)


def test_a_group_of_another_type_is_no_streams_group(
    share_pair: ToolPair, name: str, groups: Callable[[Printed], Printed]
) -> None:
    pair = share_pair
    for kind in ("classic", "consumer", "share"):
        assert pair.same(STREAMS, "--describe", "--group", f"{name}-{kind}").exit_code == 1
        pair.same(STREAMS, "--delete", "--group", f"{name}-{kind}")
    assert len(groups(pair.same(LIST, "--list", view=groups)).lines) == 4
