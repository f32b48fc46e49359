"""`kafka-configs` of Kafka 4.3.1 for topics, groups, brokers, quotas and users, on kshare and on Kafka alike.

Two things differ on purpose: kshare has the configs of dead letters (KIP-1191), which Kafka 4.3.1 does not know yet;
and it has no configs of broker loggers and client metrics, no quotas and no users, which it says (docs/known-gaps.md).
"""

from __future__ import annotations

import pytest

from support.clients.delivery import wait_for
from support.clusters.engines import release_of_answers
from support.kafka.java import NEWEST
from support.kafka.tools import Printed, ToolPair, about

TOOL = "kafka-configs"
DEAD_LETTERS = "errors.deadletterqueue."


def _as_kafka_knows(printed: Printed) -> Printed:
    return printed._replace(lines=tuple(line for line in printed.lines if not line.startswith(DEAD_LETTERS)))


def _of_groups(printed: Printed) -> Printed:
    """A cluster without KIP-848 has no configs of groups, so there are those of share groups only."""
    known = _as_kafka_knows(printed)
    if release_of_answers() == NEWEST:
        return known
    others = ("consumer.", "streams.")
    return known._replace(lines=tuple(line for line in known.lines if not line.startswith(others)))


def test_topics(pair: ToolPair, name: str) -> None:
    pair.same("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    describe = ("--describe", "--entity-type", "topics", "--entity-name", name)
    alter = ("--alter", "--entity-type", "topics", "--entity-name", name)
    assert len(pair.same(TOOL, *describe).lines) == 1
    done = pair.same(TOOL, *alter, "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
    assert done.lines == (f"Completed updating config for topic {name}.",)
    assert pair.same(TOOL, "--describe", "--topic", name).has("cleanup.policy=compact,delete sensitive=false")
    pair.same(TOOL, *alter, "--delete-config", "retention.ms,segment.ms", "--add-config", "segment.bytes=2000000")
    described = pair.same(TOOL, *describe)
    assert described.has("segment.bytes=2000000")
    assert not described.has("retention.ms")
    everything = pair.same(TOOL, *describe, "--all", view=_as_kafka_knows)
    assert everything.has("synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000, DEFAULT_CONFIG:log.segment.bytes=")
    pair.same(TOOL, "--describe", "--entity-type", "topics", view=about(name))


@pytest.mark.parametrize(
    "wrong",
    [
        ("--add-config", "retention.ms=soon"),
        ("--add-config", "retention.ms=-5"),
        ("--add-config", "nonsense=1"),
        ("--add-config", "nonsense"),
        ("--add-config", "cleanup.policy=sometimes"),
        ("--add-config-file", "/does/not/exist"),
        (),
    ],
    ids=" ".join,
)
def test_topic_configs_that_are_refused(pair: ToolPair, name: str, wrong: tuple[str, ...]) -> None:
    pair.same("kafka-topics", "--create", "--topic", name)
    assert pair.same(TOOL, "--alter", "--topic", name, *wrong).exit_code == 1
    assert len(pair.same(TOOL, "--describe", "--topic", name).lines) == 1


def test_a_topic_that_does_not_exist(pair: ToolPair, name: str) -> None:
    pair.same(TOOL, "--describe", "--topic", name)
    refused = pair.same(TOOL, "--alter", "--topic", name, "--add-config", "retention.ms=1")
    assert refused.has("UnknownTopicOrPartitionException")


def test_deleting_what_is_not_set(pair: ToolPair, name: str) -> None:
    pair.same("kafka-topics", "--create", "--topic", name)
    for config in ("segment.ms", "nonsense"):
        assert pair.same(TOOL, "--alter", "--topic", name, "--delete-config", config).exit_code == 0


def test_groups(share_pair: ToolPair, name: str) -> None:
    pair = share_pair
    alter = ("--alter", "--entity-type", "groups", "--entity-name", name)
    given = "share.auto.offset.reset=earliest,share.record.lock.duration.ms=20000"
    if release_of_answers() == NEWEST:
        given += ",consumer.session.timeout.ms=46000"
    assert pair.same(TOOL, *alter, "--add-config", given).lines == (f"Completed updating config for group {name}.",)
    described = pair.same(TOOL, "--describe", "--group", name)
    assert described.has("share.record.lock.duration.ms=20000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:share.")
    everything = pair.same(TOOL, "--describe", "--group", name, "--all", view=_of_groups)
    assert everything.has("share.assignment.interval.ms=0 sensitive=false synonyms={STATIC_BROKER_CONFIG:")
    pair.same(TOOL, "--describe", "--entity-type", "groups", view=about(name))
    pair.same(TOOL, *alter, "--delete-config", "share.record.lock.duration.ms")
    assert not pair.same(TOOL, "--describe", "--group", name).has("share.record.lock.duration.ms")
    for unknown in ((), ("--all",)):
        pair.same(TOOL, "--describe", "--group", f"{name}-unknown", *unknown, view=_of_groups)


@pytest.mark.parametrize(
    "wrong",
    [
        "share.record.lock.duration.ms=1",
        "share.record.lock.duration.ms=soon",
        "share.auto.offset.reset=never",
        "share.isolation.level=chaos",
        "consumer.session.timeout.ms=10",
        "consumer.heartbeat.interval.ms=10",
        "nonsense=1",
    ],
)
def test_group_configs_that_are_refused(share_pair: ToolPair, name: str, wrong: str) -> None:
    refused = share_pair.same(TOOL, "--alter", "--group", name, "--add-config", wrong)
    assert refused.exit_code == 1
    assert refused.has("InvalidConfigurationException")


def test_brokers(pair: ToolPair) -> None:
    """One test, for the brokers' configs are everybody's."""
    try:
        pair.same(TOOL, "--alter", "--broker", "1", "--add-config", "log.cleaner.threads=2,message.max.bytes=2000000")
        pair.same(TOOL, "--alter", "--broker-defaults", "--add-config", "message.max.bytes=3000000")
        chain = (
            "DYNAMIC_BROKER_CONFIG:message.max.bytes=2000000, DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=3000000"
        )
        assert pair.same(TOOL, "--describe", "--broker", "1", until=chain).has(chain)
        changed = "message.max.bytes=3"
        defaults = ("--entity-type", "brokers", "--entity-default")
        assert pair.same(TOOL, "--describe", *defaults, until=changed).has(changed)
        pair.same(TOOL, "--describe", "--broker-defaults", "--all")
        pair.same(TOOL, "--describe", "--entity-type", "brokers")
    finally:
        removed = "log.cleaner.threads,message.max.bytes"
        pair.same(TOOL, "--alter", "--broker", "1", "--delete-config", removed)
        pair.same(TOOL, "--alter", "--broker-defaults", "--delete-config", "message.max.bytes")
    assert not pair.same(TOOL, "--describe", "--entity-type", "brokers").has("message.max.bytes")


def test_all_configs_of_a_broker(pair: ToolPair) -> None:
    """Which configs there are, and for those whose value does not depend on the system, all that is said of them."""
    kshare, kafka = pair.run(TOOL, "--describe", "--broker", "1", "--all")
    ours, theirs = ({line.split("=")[0]: line for line in printed.lines[1:]} for printed in (kshare, kafka))
    assert [name for name in theirs if name not in ours] == []
    assert all(name.startswith(("kshare.", DEAD_LETTERS)) for name in ours if name not in theirs)
    different = [name for name in theirs if ours[name] != theirs[name]]
    assert tuple(sorted(different)) == OWN_VALUES


OWN_VALUES = (
    "advertised.listeners",
    "broker.id",
    "controller.listener.names",
    "controller.quorum.voters",
    "listener.security.protocol.map",
    "listeners",
    "log.dirs",
    "node.id",
    "offsets.topic.replication.factor",
    "process.roles",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)
"""Where the system lies and listens, and what Apache Kafka is given in tests because it is alone."""


@pytest.mark.parametrize(
    "wrong",
    [
        ("--broker", "1", "--add-config", "broker.rack=a"),
        ("--broker", "1", "--add-config", "message.max.bytes=many"),
        ("--broker", "x", "--add-config", "message.max.bytes=3000000"),
        ("--broker-defaults", "--add-config", "log.retention.ms=soon"),
    ],
    ids=" ".join,
)
def test_broker_configs_that_are_refused(pair: ToolPair, wrong: tuple[str, ...]) -> None:
    assert pair.same(TOOL, "--alter", *wrong).exit_code == 1


@pytest.mark.parametrize(
    "entity",
    [
        ("--entity-type", "users"),
        ("--entity-type", "users", "--entity-name", "alice"),
        ("--entity-type", "users", "--entity-default"),
        ("--entity-type", "clients"),
        ("--entity-type", "clients", "--entity-name", "app"),
        ("--client", "app"),
        ("--client-defaults",),
        ("--user", "alice", "--client", "app"),
        ("--user-defaults", "--client-defaults"),
        ("--entity-type", "ips"),
        ("--ip", "10.0.0.1"),
        ("--ip-defaults",),
        ("--entity-type", "client-metrics"),
        ("--client-metrics", "m"),
    ],
    ids=" ".join,
)
def test_there_are_no_quotas_users_and_client_metrics(pair: ToolPair, entity: tuple[str, ...]) -> None:
    assert pair.same(TOOL, "--describe", *entity).exit_code == 0


@pytest.mark.parametrize(
    ("entity", "config", "error"),
    [
        (("--client-metrics", "m"), "interval.ms=1000", "InvalidRequestException"),
        (("--broker-logger", "1"), "root=DEBUG", "InvalidRequestException"),
    ],
    ids=str,
)
def test_they_are_refused_with_an_error_that_clients_know(
    pair: ToolPair, entity: tuple[str, ...], config: str, error: str
) -> None:
    """Kafka would take them. kshare says no at once: a config that has no effect would be worse than none."""
    kshare, kafka = pair.run(TOOL, "--alter", *entity, "--add-config", config)
    assert kshare.exit_code == 1
    assert kshare.has(error)
    assert kafka.exit_code == 0
    names = ",".join(part.split("=")[0] for part in config.split(","))
    describe = (TOOL, "--describe", *entity)

    def is_there() -> bool:
        return any(name in line for name in names.split(",") for line in pair.run(*describe)[1].lines)

    if entity[0] != "--broker-logger":  # every logger has a level, always
        # Before the broker knows the config, the tool refuses to delete it.
        wait_for(is_there, "Kafka's broker, which answers before it knows, to have the config")
    pair.run(TOOL, "--alter", *entity, "--delete-config", names)
    if entity[0] != "--broker-logger":
        wait_for(lambda: not is_there(), "Kafka's broker, which answers before it knows, to have dropped the config")


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--describe",),
        ("--describe", "--entity-type", "nonsense"),
        ("--alter", "--entity-type", "topics", "--add-config", "retention.ms=1"),
        ("--alter", "--entity-type", "topics", "--entity-default", "--add-config", "retention.ms=1"),
        ("--user", "alice", "--alter", "--add-config", "nonsense=1"),
        ("--describe", "--alter", "--topic", "t"),
    ],
    ids=" ".join,
)
def test_commands_that_are_wrong(pair: ToolPair, wrong: tuple[str, ...]) -> None:
    assert pair.same(TOOL, *wrong).exit_code == 1


def test_client_metrics(pair: ToolPair) -> None:
    tool = "kafka-client-metrics"
    assert pair.same(tool, "--list").lines == ()
    pair.same(tool, "--describe")
    pair.same(tool, "--describe", "--name", "m")
    kshare, _ = pair.run(tool, "--alter", "--name", "m", "--interval", "2000", "--metrics", "org.apache.kafka")
    assert kshare.exit_code == 1
    pair.run(tool, "--delete", "--name", "m")
