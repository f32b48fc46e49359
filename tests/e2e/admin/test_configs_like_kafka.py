"""DescribeConfigs of every kind of resource, compared with Kafka 4.3.1's response to the same request.

Values, read-only, sources, sensitivity, synonyms and types are compared, and whether there is a documentation (its
words are kshare's own), before and after an administrator alters broker configs. What has to differ is named below.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from support.clients.delivery import new_topic, running_system, set_group, wait_for
from support.clients.kafka_requests import KafkaRequests

TOPIC, BROKER, GROUP, UNKNOWN = 2, 4, 32, 99
SET, DELETE, APPEND = 0, 1, 2
PROPERTIES = {
    "log_retention_hours": "100",
    "message_max_bytes": "2000000",
    "log_cleaner_backoff_ms": "10000",
    "group_share_record_lock_duration_ms": "20000",
}

NOT_OF_A_NODE_HERE = {
    "advertised.listeners",
    "broker.id",
    "controller.listener.names",
    "controller.quorum.voters",
    "group.initial.rebalance.delay.ms",
    "listener.security.protocol.map",
    "listeners",
    "log.dirs",
    "node.id",
    "offsets.topic.replication.factor",
    "process.roles",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
}
"""What the two systems' own set-ups say differently."""
KAFKAS_OWN = {
    "min.insync.replicas": "Kafka gives it to all brokers itself, for eligible leader replicas",
    "log.retention.hours": "Kafka shows its default as soon as log.retention.ms is altered",
}
FROM_KAFKA_4_4 = "errors.deadletterqueue."
"""KIP-1191, which kshare has and Kafka 4.3.1 has not."""

Described = dict[str, tuple[Any, ...]]


class Pair:
    """Both systems, asked the same."""

    def __init__(self, kshare: KafkaRequests, kafka: KafkaRequests, bootstraps: tuple[str, str]) -> None:
        self.both = (kshare, kafka)
        self.bootstraps = bootstraps

    def describe(self, kind: int, name: str) -> list[tuple[int, Described]]:
        return [_described(system, kind, name) for system in self.both]

    def alter(self, kind: int, name: str, *changes: tuple[str, int, str | None]) -> list[int]:
        configs = [{"name": config, "config_operation": how, "value": value} for config, how, value in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        answers = [system.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]) for system in self.both]
        return [int(answer.responses[0].error_code) for answer in answers]


def _described(system: KafkaRequests, kind: int, name: str) -> tuple[int, Described]:
    answer = system.ask(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        include_synonyms=True,
        include_documentation=True,
    )
    (result,) = answer.results
    configs = {
        config.name: (
            config.value,
            config.read_only,
            int(config.config_source),
            config.is_sensitive,
            tuple((synonym.name, synonym.value, int(synonym.source)) for synonym in config.synonyms),
            int(config.config_type),
            config.documentation is not None,
        )
        for config in result.configs
        if config.name not in NOT_OF_A_NODE_HERE
        and config.name not in KAFKAS_OWN
        and not config.name.startswith(FROM_KAFKA_4_4)
    }
    return int(result.error_code), configs


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        systems = [
            stack.enter_context(running_system(kind, tmp_path_factory.mktemp(kind), **PROPERTIES))
            for kind in ("kshare", "kafka")
        ]
        kshare, kafka = (stack.enter_context(KafkaRequests(system.bootstrap)) for system in systems)
        for system in systems:
            new_topic(system.bootstrap, name="configured", retention_ms="5000", cleanup_policy="compact,delete")
            set_group(system.bootstrap, "configured", isolation_level="read_committed")
        yield Pair(kshare, kafka, (systems[0].bootstrap, systems[1].bootstrap))


RESOURCES = [
    (TOPIC, "configured"),
    (TOPIC, "missing"),
    (TOPIC, ""),
    (TOPIC, "bad name"),
    (BROKER, "1"),
    (BROKER, ""),
    (BROKER, "2"),
    (BROKER, "one"),
    (GROUP, "configured"),
    (GROUP, "without-configs"),
    (GROUP, ""),
    (UNKNOWN, "x"),
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("kind", "name"), RESOURCES)
def test_every_resource_as_in_kafka(pair: Pair, kind: int, name: str) -> None:
    kshare, kafka = pair.describe(kind, name)
    assert kshare == kafka


@pytest.mark.timeout(120)
def test_altered_broker_configs_as_in_kafka(pair: Pair) -> None:
    """For all brokers and for one; the nearer value counts, also for topics and groups."""
    given: list[tuple[str, list[tuple[str, int, str | None]]]] = [
        (
            "",
            [
                ("log.retention.ms", SET, "7777777"),
                ("message.max.bytes", SET, "3000000"),
                ("group.share.assignment.interval.ms", SET, "2000"),
                ("nobody.knows.this", SET, "x"),
            ],
        ),
        (
            "1",
            [
                ("log.cleaner.backoff.ms", SET, "9000"),
                ("message.max.bytes", SET, "4000000"),
                ("num.io.threads", SET, "9"),
                ("log.cleanup.policy", APPEND, "compact"),
            ],
        ),
    ]
    for name, changes in given:
        assert pair.alter(BROKER, name, *changes) == [0, 0]
    wait_for(
        lambda: all(configs["message.max.bytes"][0] == "4000000" for _, configs in pair.describe(BROKER, "1")),
        "the altered values are in force",
    )
    for kind, name in [(BROKER, ""), (BROKER, "1"), (TOPIC, "configured"), (GROUP, "configured")]:
        kshare, kafka = pair.describe(kind, name)
        assert kshare == kafka
    for name, changes in given:
        assert pair.alter(BROKER, name, *((config, DELETE, None) for config, _, _ in changes)) == [0, 0]
    wait_for(
        lambda: all(configs["message.max.bytes"][0] == "2000000" for _, configs in pair.describe(BROKER, "1")),
        "the values of the properties are in force again",
    )
    kshare, kafka = pair.describe(BROKER, "1")
    assert kshare == kafka


REFUSED: list[tuple[int, str, list[tuple[str, int, str | None]]]] = [
    (TOPIC, "missing", [("retention.ms", SET, "1")]),
    (TOPIC, "missing", [("retention.ms", SET, "soon")]),
    (TOPIC, "", [("retention.ms", SET, "1")]),
    (TOPIC, "bad name", [("retention.ms", SET, "1")]),
    (TOPIC, "configured", [("no.such.config", SET, "1")]),
    (TOPIC, "configured", [("no.such.config", DELETE, None)]),
    (TOPIC, "configured", [("no.such.config", APPEND, "1")]),
    (TOPIC, "configured", [("retention.ms", APPEND, "1")]),
    (TOPIC, "configured", [("retention.ms", SET, None)]),
    (TOPIC, "configured", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)]),
    (TOPIC, "configured", [("cleanup.policy", APPEND, "nonsense")]),
    (TOPIC, "configured", [("retention.ms", SET, "1" * 30_000)]),
    (GROUP, "", [("share.heartbeat.interval.ms", SET, "6000")]),
    (GROUP, "g", [("no.such.config", SET, "1")]),
    (GROUP, "g", [("share.heartbeat.interval.ms", SET, "1")]),
    (GROUP, "g", [("share.session.timeout.ms", SET, "70000")]),
    (GROUP, "g", [("share.isolation.level", SET, "read_half")]),
    (GROUP, "g", [("share.auto.offset.reset", SET, "sometime")]),
    (BROKER, "2", [("max.connections", SET, "5")]),
    (BROKER, "one", [("max.connections", SET, "5")]),
    (BROKER, "-1", [("max.connections", SET, "5")]),
    (BROKER, "1", [("num.partitions", SET, "5")]),
    (BROKER, "", [("num.partitions", SET, "5")]),
    (BROKER, "", [("max.connections", SET, "many")]),
    (BROKER, "", [("max.connections", SET, None)]),
    (BROKER, "", [("max.connections", APPEND, "1")]),
    (BROKER, "", [("nobody.knows.this", APPEND, "1")]),
    (BROKER, "", [("listeners", SET, "PLAINTEXT://127.0.0.1:1")]),
    (BROKER, "1", [("ssl.keystore.type", SET, "JKS")]),
    (BROKER, "", [("listener.name.x.ssl.keystore.type", SET, "JKS")]),
    (BROKER, "", [("num.io.threads", SET, "17")]),
    (BROKER, "", [("num.io.threads", SET, "3")]),
    (BROKER, "", [("group.share.assignment.interval.ms", SET, "20000")]),
    (BROKER, "", [("log.retention.ms", SET, "0")]),
    (UNKNOWN, "x", [("retention.ms", SET, "1")]),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "name", "changes"), REFUSED)
def test_refused_changes_have_kafkas_codes(
    pair: Pair, kind: int, name: str, changes: list[tuple[str, int, str | None]]
) -> None:
    kshare, kafka = pair.alter(kind, name, *changes)
    assert ErrorCode(kshare) == ErrorCode(kafka)


GROUP_BOUNDS = [
    ("share.session.timeout.ms", 45_000, 60_000),
    ("share.heartbeat.interval.ms", 200, 15_000),
    ("share.assignment.interval.ms", 0, 15_000),
    ("share.record.lock.duration.ms", 1_000, 60_000),
    ("share.delivery.count.limit", 2, 10),
    ("share.partition.max.record.locks", 100, 4_000),
    ("consumer.session.timeout.ms", 45_000, 60_000),
    ("consumer.heartbeat.interval.ms", 5_000, 15_000),
    ("consumer.assignment.interval.ms", 0, 15_000),
]
"""What a group may set: both systems run with the same bounds, some of them lower than Kafka's defaults."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "low", "high"), GROUP_BOUNDS)
def test_bounds_of_group_configs(pair: Pair, name: str, low: int, high: int) -> None:
    codes = [pair.alter(GROUP, "bounded", (name, SET, str(value))) for value in (low - 1, low, high, high + 1)]
    assert [ErrorCode(kshare) for kshare, _ in codes] == [ErrorCode(kafka) for _, kafka in codes]
    refused, accepted = ErrorCode.INVALID_CONFIG, ErrorCode.NONE
    assert [ErrorCode(kshare) for kshare, _ in codes] == [refused, accepted, accepted, refused]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_takes_away_what_it_does_not_name(pair: Pair, version: int) -> None:
    topic = f"altered-{uuid.uuid4().hex[:8]}"
    for bootstrap in pair.bootstraps:
        new_topic(bootstrap, name=topic, retention_ms="5000", segment_bytes="1048576")
    resources = [
        {"resource_type": TOPIC, "resource_name": topic, "configs": [{"name": "retention.ms", "value": "6000"}]},
        {"resource_type": TOPIC, "resource_name": "missing", "configs": []},
        {"resource_type": TOPIC, "resource_name": topic + "x", "configs": [{"name": "retention.ms", "value": None}]},
    ]
    codes = []
    for system in pair.both:
        answer = system.ask(ApiKey.ALTER_CONFIGS, version, resources=resources)
        codes.append({result.resource_name: int(result.error_code) for result in answer.responses})
    assert codes[0] == codes[1]

    def told(configs: Described) -> tuple[Any, Any]:
        return configs["retention.ms"][:3], configs["segment.bytes"][:3]

    wait_for(
        lambda: all(configs["retention.ms"][0] == "6000" for _, configs in pair.describe(TOPIC, topic)),
        "the altered value is in force",
    )
    kshare, kafka = (told(configs) for _, configs in pair.describe(TOPIC, topic))
    assert kshare == kafka
    assert kshare[1][2] == 5, "segment.bytes was not named, so it has its default again"
