"""`kafka-topics` of Kafka 4.3.1 with every option, on kshare and on Kafka alike."""

from __future__ import annotations

import pytest

from support.clusters.engines import brokers_of_upstream
from support.kafka.tools import Printed, ToolPair, about, any_order, first_broker, without_drawn_brokers

TOOL = "kafka-topics"
REPLICAS = brokers_of_upstream()
"""By default a partition has a replica at each broker."""


def test_create(pair: ToolPair, name: str) -> None:
    create = ("--create", "--topic")
    configs = ("--config", "retention.ms=3600000", "--config", "cleanup.policy=compact,delete")
    assert pair.same(TOOL, *create, f"{name}-a", "--partitions", "3", *configs).lines == (f"Created topic {name}-a.",)
    pair.same(TOOL, *create, f"{name}-b")
    pair.same(TOOL, *create, f"{name}.c", "--partitions", "2", "--replication-factor", "1")
    pair.same(TOOL, *create, f"{name}-d", "--replica-assignment", "1,1,1")
    described = pair.same(TOOL, "--describe", "--topic", f"{name}.*", view=any_order)
    head = f"Topic: {name}-a TopicId: ID PartitionCount: 3 ReplicationFactor: {REPLICAS} Configs: "
    assert head + "cleanup.policy=compact,delete,min.insync.replicas=1,retention.ms=3600000" in (
        _configs_in_order(line) for line in described.lines
    )
    broker, replicas = first_broker(), ",".join([first_broker()] * REPLICAS)
    line = f"Topic: {name}-a Partition: 2 Leader: {broker} Replicas: {replicas} Isr: {replicas} Elr: LastKnownElr:"
    assert line in described.lines
    assert sum(line.startswith(f"Topic: {name}-d Partition: ") for line in described.lines) == 3


def _configs_in_order(line: str) -> str:
    head, found, configs = line.partition("Configs: ")
    parts = configs.replace("compact,delete", "compact+delete").split(",")
    return head + found + ",".join(sorted(parts)).replace("+", ",")


def test_create_what_is_there(pair: ToolPair, name: str) -> None:
    pair.same(TOOL, "--create", "--topic", name)
    again = pair.same(TOOL, "--create", "--topic", name)
    assert again.exit_code == 1
    assert again.has("TopicExistsException")
    assert pair.same(TOOL, "--create", "--topic", name, "--if-not-exists", "--partitions", "9") == Printed(0, ())
    assert pair.same(TOOL, "--describe", "--topic", name).has("PartitionCount: 1 ")
    for internal in ("__consumer_offsets", "__share_group_state"):
        assert pair.same(TOOL, "--create", "--topic", internal).has("TopicExistsException")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (("--partitions", "0"), ""),
        (("--partitions", "-1"), ""),
        (("--partitions", "many"), ""),
        (("--replication-factor", "0"), ""),
        (("--replication-factor", str(REPLICAS + 1)), "InvalidReplicationFactorException"),
        (("--config", "nonsense=1"), ""),
        (("--config", "retention.ms=soon"), "ConfigException"),
        (("--config", "retention.ms=-5"), "ConfigException"),
        (("--config", "retention.ms"), ""),
        (("--replica-assignment", "1:9"), "InvalidReplicaAssignmentException"),
        (("--replica-assignment", "7"), "InvalidReplicaAssignmentException"),
        (("--replica-assignment", "1:1"), ""),
        (("--replica-assignment", "1", "--partitions", "2"), ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_create_that_is_refused(pair: ToolPair, name: str, wrong: tuple[str, ...], error: str) -> None:
    printed = pair.same(TOOL, "--create", "--topic", name, *wrong)
    assert printed.exit_code == 1
    assert printed.has(error)
    assert pair.same(TOOL, "--list", "--topic", name).lines == ()


@pytest.mark.parametrize("wrong", ["two words", ".", "..", "a" * 250, "", "umlaut-\u00fc"])
def test_names_that_are_refused(pair: ToolPair, wrong: str) -> None:
    assert pair.same(TOOL, "--create", "--topic", wrong).exit_code == 1


def test_names_that_collide(pair: ToolPair, name: str) -> None:
    pair.same(TOOL, "--create", "--topic", f"{name}_x")
    assert pair.same(TOOL, "--create", "--topic", f"{name}.x").has("InvalidTopicException")


def test_list(pair: ToolPair, name: str) -> None:
    for topic in ("a1", "a2", "b1"):
        pair.same(TOOL, "--create", "--topic", f"{name}-{topic}")
    everything = pair.same(TOOL, "--list", view=about(name, "__consumer_offsets"))
    assert {f"{name}-b1", "__consumer_offsets"} <= set(everything.lines)
    assert not pair.same(TOOL, "--list", "--exclude-internal", view=about(name, "__")).has("__")
    assert pair.same(TOOL, "--list", "--topic", f"{name}-a.*").lines == (f"{name}-a1", f"{name}-a2")
    assert pair.same(TOOL, "--list", "--topic", f"{name}-(b1|a2)").lines == (f"{name}-a2", f"{name}-b1")
    assert pair.same(TOOL, "--list", "--topic", f"{name}-a1,{name}-b1").lines == (f"{name}-a1", f"{name}-b1")
    assert pair.same(TOOL, "--list", "--topic", "missing").lines == ()
    assert pair.same(TOOL, "--list", "--topic", "[").exit_code == 1


def test_list_the_state_of_share_groups(pair: ToolPair) -> None:
    state = "__share_group_state"
    assert pair.same(TOOL, "--list", view=about(state)).has(state)


def test_describe(pair: ToolPair, name: str) -> None:
    pair.same(TOOL, "--create", "--topic", f"{name}-plain", "--partitions", "2")
    pair.same(TOOL, "--create", "--topic", f"{name}-own", "--config", "segment.bytes=1048576")
    only_own = pair.same(TOOL, "--describe", "--topics-with-overrides", view=about(name))
    assert only_own.has(f"{name}-own")
    assert not only_own.has(" Partition: ")
    pair.same(TOOL, "--describe", "--topic", f"{name}-own", "--topics-with-overrides")
    assert len(pair.same(TOOL, "--describe", "--topic", f"{name}-plain", "--exclude-internal").lines) == 3
    paged = ("--topic", f"{name}.*", "--partition-size-limit-per-response", "1")
    assert len(pair.same(TOOL, "--describe", *paged, view=any_order).lines) == 5
    for unusual in (
        "--unavailable-partitions",
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
    ):
        assert pair.same(TOOL, "--describe", unusual).lines == ()
    at_min = pair.same(TOOL, "--describe", "--topic", f"{name}.*", "--at-min-isr-partitions", view=any_order)
    assert len(at_min.lines) == (3 if REPLICAS == 1 else 0), "each partition needs one replica"


def test_describe_by_id(pair: ToolPair, name: str) -> None:
    """The ids are not the same, so each system is asked for its own."""
    pair.same(TOOL, "--create", "--topic", name, "--partitions", "2")
    shown = []
    for runs in pair.runs:
        topic_id = runs.text(TOOL, "--describe", "--topic", name).split("TopicId: ")[1].split()[0]
        shown.append(runs.text(TOOL, "--describe", "--topic-id", topic_id).replace(topic_id, "ID"))
    assert without_drawn_brokers(shown[0]) == without_drawn_brokers(shown[1])
    assert "PartitionCount: 2" in shown[0]
    missing = pair.same(TOOL, "--describe", "--topic-id", "c5TXQ7pSS-2Wz6SAbXhmUg")
    assert missing.exit_code == 1
    assert pair.same(TOOL, "--describe", "--topic-id", "short").exit_code == 1


def test_describe_internal_topics(pair: ToolPair) -> None:
    for topic in ("__consumer_offsets", "__share_group_state"):
        described = pair.same(TOOL, "--describe", "--topic", topic, view=_first)
        assert described.has("PartitionCount: 50 ")
        assert len(described.lines) == 51


def _first(printed: Printed) -> Printed:
    """The partitions' leaders are what the first broker is; their order is the same."""
    return printed._replace(lines=tuple(map(_configs_in_order, printed.lines)))


def test_what_does_not_exist(pair: ToolPair, name: str) -> None:
    for command in (("--describe",), ("--delete",), ("--alter", "--partitions", "5")):
        refused = pair.same(TOOL, *command, "--topic", name)
        assert refused.exit_code == 1
        assert refused.has("does not exist") or refused.has("...")
        assert pair.same(TOOL, *command, "--topic", name, "--if-exists") == Printed(0, ())


def test_alter(pair: ToolPair, name: str) -> None:
    pair.create_topic(name, 2)
    alter = ("--alter", "--topic", name, "--partitions")
    assert pair.same(TOOL, *alter, "5") == Printed(0, ())
    pair.wait_for_partitions(name, 5)
    everywhere = ":".join(map(str, range(1, REPLICAS + 1)))
    assert pair.same(TOOL, *alter, "6", "--replica-assignment", ",".join([everywhere] * 6)) == Printed(0, ())
    pair.wait_for_partitions(name, 6)
    assert pair.same(TOOL, "--describe", "--topic", name).has("PartitionCount: 6 ")
    for wrong in (
        (*alter, "6"),
        (*alter, "2"),
        (*alter, "0"),
        (*alter, "7", "--replica-assignment", ",".join([*[everywhere] * 6, "9"])),
        (*alter, "8", "--replica-assignment", ",".join([everywhere] * 7)),
        ("--alter", "--topic", name),
        ("--alter", "--topic", name, "--config", "retention.ms=1"),
        ("--alter", "--topic", name, "--replication-factor", "1"),
    ):
        assert pair.same(TOOL, *wrong).exit_code == 1
    assert pair.same(TOOL, "--describe", "--topic", name).has("PartitionCount: 6 ")


def test_delete(pair: ToolPair, name: str) -> None:
    for topic in ("a1", "a2", "b1"):
        pair.create_topic(f"{name}-{topic}")
    assert pair.same(TOOL, "--delete", "--topic", f"{name}-a.*") == Printed(0, ())
    assert pair.same(TOOL, "--list", "--topic", f"{name}.*").lines == (f"{name}-b1",)
    assert pair.same(TOOL, "--delete", "--topic", f"{name}-a1").exit_code == 1


@pytest.mark.parametrize(
    "wrong", [(), ("--nonsense",), ("--list", "--describe"), ("--create",), ("--list", "--if-exists"), ("--delete",)]
)
def test_commands_that_say_how_it_is_used(pair: ToolPair, wrong: tuple[str, ...]) -> None:
    assert pair.same(TOOL, *wrong).exit_code == 1


def test_version(pair: ToolPair) -> None:
    assert pair.same(TOOL, "--version").has("4.3.1")
