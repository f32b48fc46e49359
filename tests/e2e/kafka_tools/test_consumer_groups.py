"""`kafka-consumer-groups` of Kafka 4.3.1 but for --reset-offsets, on kshare and on Kafka alike, for both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from support.clients.delivery import produce, wait_for
from support.clusters.engines import protocols_of_groups
from support.kafka.tools import Printed, ToolPair, about, any_order, no_such_group, without

TOOL = "kafka-consumer-groups"
CLASSIC, CONSUMER = "classic", "consumer"


@pytest.fixture(params=protocols_of_groups())
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def group(pair: ToolPair, name: str, protocol: str) -> str:
    """It has consumed 3 of 5 records of partition 0 and none of partition 1; nobody is in it any more."""
    pair.same("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    pair.each(lambda bootstrap: produce(bootstrap, name, map(str, range(5))))
    reading = ("--topic", name, "--max-messages", "3", "--timeout-ms", "20000", "--from-beginning")
    of = ("--group", f"{name}-group", "--command-property", f"group.protocol={protocol}")
    assert pair.same("kafka-console-consumer", *reading, *of).lines[:3] == ("0", "1", "2")
    return f"{name}-group"


@contextmanager
def members(pair: ToolPair, group: str, topic: str, protocol: str, **settings: Any) -> Iterator[None]:
    """One on each system, which has its partitions."""
    settings = {
        "group.id": group,
        "group.protocol": protocol,
        "client.id": "worker",
        "enable.auto.commit": False,
        "log_level": 0,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    consumers = [Consumer({"bootstrap.servers": bootstrap, **settings}) for bootstrap in pair.bootstraps]
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        for consumer in consumers:
            wait_for(lambda consumer=consumer: _polled(consumer), "the member has its partitions")  # type: ignore[misc]
        yield
    finally:
        for consumer in consumers:
            consumer.close()


def _polled(consumer: Consumer) -> bool:
    consumer.poll(0.1)
    return len(consumer.assignment()) == 2


def test_list(pair: ToolPair, group: str, protocol: str) -> None:
    view = about(group)
    kind = {CLASSIC: "Classic", CONSUMER: "Consumer"}[protocol]
    other = {CLASSIC: CONSUMER, CONSUMER: CLASSIC}[protocol]

    def listed(*options: str) -> tuple[str, ...]:
        return view(pair.same(TOOL, "--list", *options, view=view)).lines

    assert listed() == (group,)
    assert listed("--state") == (f"{group} Empty",)
    assert listed("--state", "empty,dead") == (f"{group} Empty",)
    assert listed("--state", "stable") == ()
    assert listed("--type") == (f"{group} {kind}",)
    assert listed("--type", protocol) == (f"{group} {kind}",)
    assert listed("--type", other) == ()
    assert listed("--type", "--state") == (f"{group} {kind} Empty",)
    assert listed("--type", "consumer,classic", "--state", "Empty") == (f"{group} {kind} Empty",)


def test_describe_an_empty_group(pair: ToolPair, group: str, name: str) -> None:
    described = pair.same(TOOL, "--describe", "--group", group, view=any_order)
    assert f"{group} {name} 0 3 5 2 - - -" in described.lines
    pair.same(TOOL, "--describe", "--group", group, "--offsets", "--verbose", view=without("LEADER-EPOCH"))
    for options in ((), ("--verbose",)):
        pair.same(TOOL, "--describe", "--group", group, "--members", *options)
        pair.same(TOOL, "--describe", "--group", group, "--state", *options, view=_epochs_away)
    assert pair.same(TOOL, "--describe", "--group", group, "--state").rows()[1][-2:] == ("Empty", "0")
    pair.same(TOOL, "--describe", "--all-groups", view=about(group))
    pair.same(TOOL, "--describe", "--all-groups", "--state", view=about(group))


def _epochs_away(printed: Printed) -> Printed:
    return without("GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "ASSIGNMENT-EPOCH")(printed)


def _ids_away(printed: Printed) -> Printed:
    return without("CONSUMER-ID", "CURRENT-EPOCH", "TARGET-EPOCH", "LEADER-EPOCH")(printed)


def test_a_group_with_a_member(pair: ToolPair, group: str, name: str, protocol: str) -> None:
    with members(pair, group, name, protocol, group_instance_id="static-1"):
        described = pair.same(TOOL, "--describe", "--group", group, view=_ids_away)
        assert any(row[1:3] == (name, "1") and row[-2:] == ("/127.0.0.1", "worker") for row in described.rows())
        pair.same(TOOL, "--describe", "--group", group, "--offsets", "--verbose", view=_ids_away)
        shown = pair.same(TOOL, "--describe", "--group", group, "--members", view=_ids_away)
        assert shown.has("static-1") or protocol == CLASSIC
        pair.same(TOOL, "--describe", "--group", group, "--members", "--verbose", view=_ids_away)
        state = pair.same(TOOL, "--describe", "--group", group, "--state")
        assert state.has(" Stable 1")
        pair.same(TOOL, "--describe", "--group", group, "--state", "--verbose", view=_epochs_away)
        assert about(group)(pair.same(TOOL, "--list", "--state", "stable", view=about(group))).lines
        for refused in (
            ("--reset-offsets", "--group", group, "--to-earliest", "--all-topics", "--execute"),
            ("--delete-offsets", "--group", group, "--topic", name),
            ("--delete", "--group", group),
        ):
            assert pair.same(TOOL, *refused).has("rror")
    pair.same(TOOL, "--describe", "--group", group, view=_ids_away)


def test_delete_offsets(pair: ToolPair, group: str, name: str) -> None:
    other = f"{name}-other"
    pair.same("kafka-topics", "--create", "--topic", other)
    pair.same(TOOL, "--reset-offsets", "--group", group, "--topic", other, "--to-earliest", "--execute")
    delete = ("--delete-offsets", "--group", group, "--topic")
    assert pair.same(TOOL, *delete, f"{name}:0").has(f"{name} 0 Successful")
    assert pair.same(TOOL, "--describe", "--group", group, view=any_order).has(f"{group} {other} 0 0 0 0 ")
    pair.same(TOOL, *delete, name, view=any_order)
    pair.same(TOOL, *delete, f"{name}:0,9", view=any_order)
    pair.same(TOOL, *delete, "missing", view=any_order)
    pair.same(TOOL, "--delete-offsets", "--group", f"{name}-missing", "--topic", name, view=any_order)
    pair.same(TOOL, "--delete-offsets", "--group", group)
    assert not pair.same(TOOL, "--describe", "--group", group).has(f" {name} ")


def test_delete(pair: ToolPair, group: str, name: str) -> None:
    missing = pair.same(TOOL, "--delete", "--group", f"{name}-missing")
    assert missing.has("GroupIdNotFoundException")
    done = pair.same(TOOL, "--delete", "--group", group)
    assert done.lines == (f"Deletion of requested consumer groups ('{group}') was successful.",)
    assert about(group)(pair.same(TOOL, "--list", view=about(group))).lines == ()
    pair.same(TOOL, "--delete", "--group", group)
    pair.same(TOOL, "--describe", "--group", group)


def test_share_groups_are_no_consumer_groups(pair: ToolPair) -> None:
    share = "first-share"
    assert not pair.same(TOOL, "--list", view=about(share)).has(share)
    pair.same(TOOL, "--describe", "--group", share)
    for refused in (
        ("--delete-offsets", "--group", share, "--topic", "first"),
        ("--reset-offsets", "--group", share, "--topic", "first", "--to-earliest", "--execute"),
    ):
        pair.same(TOOL, *refused)
    assert about(share)(pair.same("kafka-share-groups", "--list", view=about(share))).lines == (share,)


def test_what_does_not_exist(pair: ToolPair) -> None:
    for options in ((), ("--members",), ("--state",), ("--offsets", "--verbose")):
        assert pair.same(TOOL, "--describe", "--group", "missing", *options).has(no_such_group())


@pytest.mark.parametrize("pattern", ["g.*", "g(", "[a-z]+-(one|two)"])
def test_validate_regex(pair: ToolPair, pattern: str) -> None:
    pair.same(TOOL, "--validate-regex", pattern)


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--describe",),
        ("--list", "--state", "nonsense"),
        ("--list", "--type", "nonsense"),
        ("--describe", "--group", "g", "--all-groups"),
        ("--delete",),
        ("--reset-offsets", "--to-earliest"),
    ],
    ids=" ".join,
)
def test_commands_that_are_wrong(pair: ToolPair, wrong: tuple[str, ...]) -> None:
    assert pair.same(TOOL, *wrong).exit_code == 1
