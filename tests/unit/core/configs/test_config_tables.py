"""The config tables against Apache Kafka 4.3.1; the figures here were read from its jars."""

from __future__ import annotations

import pytest

from kshare_core.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    KSHARE_CONFIGS,
    PROCESS_CONFIGS,
    TOPIC_CONFIGS,
    Configs,
    ConfigTable,
    ConfigType,
    InvalidConfig,
    config_text,
)
from kshare_core.configs.authorizer import AUTHORIZER_CONFIGS
from kshare_core.configs.upstream import UPSTREAM_CONFIGS

TABLES = {"broker": BROKER_CONFIGS, "topic": TOPIC_CONFIGS, "group": GROUP_CONFIGS, "kshare": KSHARE_CONFIGS}
KAFKA_COUNTS = {"broker": 360, "topic": 34, "group": 17}
"""How many Kafka 4.3.1 defines; the rest are 4.4's of the dead letter queue."""


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_default_is_a_value_that_the_config_may_have(table: ConfigTable) -> None:
    for definition in table.values():
        text = config_text(definition.default)
        if text is not None:
            assert definition.parse(text) == definition.default, definition.name


@pytest.mark.parametrize("name", KAFKA_COUNTS)
def test_every_config_of_kafka_is_there(name: str) -> None:
    kafkas = [config for config in TABLES[name] if not config.startswith("errors.deadletterqueue.")]
    assert len(kafkas) == KAFKA_COUNTS[name]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_config_has_an_effect_exactly_when_it_is_described(table: ConfigTable) -> None:
    for definition in table.values():
        assert definition.has_effect == bool(definition.documentation), definition.name


@pytest.mark.parametrize(
    ("name", "type_", "default", "low", "high"),
    [
        ("group.share.delivery.count.limit", ConfigType.INT, 5, 2, 10),
        ("group.share.max.delivery.count.limit", ConfigType.INT, 10, 5, 25),
        ("group.share.partition.max.record.locks", ConfigType.INT, 2000, 100, 10000),
        ("group.share.record.lock.duration.ms", ConfigType.INT, 30000, 1000, 3600000),
        ("group.share.min.record.lock.duration.ms", ConfigType.INT, 15000, 1000, 30000),
        ("group.share.max.size", ConfigType.INT, 200, 1, 1000),
        ("group.share.max.share.sessions", ConfigType.INT, 2000, 1, None),
        ("share.coordinator.snapshot.update.records.per.snapshot", ConfigType.INT, 500, 0, 500),
        ("share.coordinator.state.topic.num.partitions", ConfigType.INT, 50, 1, None),
        ("socket.request.max.bytes", ConfigType.INT, 104857600, 1, None),
        ("connections.max.idle.ms", ConfigType.LONG, 600000, None, None),
        ("message.max.bytes", ConfigType.INT, 1048588, 0, None),
        ("max.connections", ConfigType.INT, 2147483647, 0, None),
        ("log.retention.ms", ConfigType.LONG, None, None, None),
        ("log.retention.hours", ConfigType.INT, 168, None, None),
        ("log.cleaner.min.cleanable.ratio", ConfigType.DOUBLE, 0.5, 0, 1),
        ("auto.create.topics.enable", ConfigType.BOOLEAN, True, None, None),
        ("group.consumer.assignors", ConfigType.LIST, ("uniform", "range"), None, None),
    ],
)
def test_broker_config(name: str, type_: ConfigType, default: object, low: int | None, high: int | None) -> None:
    definition = BROKER_CONFIGS[name]
    found = (definition.type, definition.default, definition.minimum, definition.maximum)
    assert found == (type_, default, low, high)


@pytest.mark.parametrize("table", [TOPIC_CONFIGS, GROUP_CONFIGS], ids=["topic", "group"])
def test_a_broker_synonym_is_a_broker_config_of_the_same_type(table: ConfigTable) -> None:
    synonyms = [definition for definition in table.values() if definition.broker_synonym]
    assert len(synonyms) >= 10
    for definition in synonyms:
        assert BROKER_CONFIGS[str(definition.broker_synonym)].type == definition.type, definition.name


def test_kafkas_names_and_our_own_do_not_meet() -> None:
    assert len(PROCESS_CONFIGS) == sum(map(len, (BROKER_CONFIGS, AUTHORIZER_CONFIGS, KSHARE_CONFIGS, UPSTREAM_CONFIGS)))
    assert all(name.startswith("kshare.") for name in (*KSHARE_CONFIGS, *UPSTREAM_CONFIGS))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "three"),
        ("num.partitions", "2147483648"),
        ("num.partitions", ""),
        ("num.partitions", "1_000"),
        ("num.partitions", "+"),
        ("num.partitions", "\uff11\uff10"),
        ("num.partitions", "\u0663"),
        ("num.partitions", "\u00a03"),
        ("log.retention.ms", "1_000"),
        ("sasl.login.refresh.buffer.seconds", "1_0"),
        ("auto.create.topics.enable", "\u00a0true"),
        ("auto.create.topics.enable", "tr_ue"),
        ("auto.create.topics.enable", "1"),
        ("auto.create.topics.enable", "yes"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("log.cleanup.policy", "delete,keep"),
        ("log.cleaner.min.cleanable.ratio", "1.5"),
        ("log.cleaner.min.cleanable.ratio", "NaN"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleaner.min.cleanable.ratio", "+NaN"),
        ("log.cleaner.min.cleanable.ratio", "0_0.5"),
        ("log.cleaner.min.cleanable.ratio", "\u0660"),
        ("log.cleaner.io.max.bytes.per.second", "Infinity"),
        ("log.cleaner.io.max.bytes.per.second", "-inf"),
        ("log.cleaner.io.max.bytes.per.second", "1e400"),
        ("log.cleaner.io.max.bytes.per.second", "."),
        ("group.consumer.migration.policy", "sideways"),
        ("group.share.assignors", "uniform"),
        ("group.share.assignors", "simple,org.example.Assignor"),
        ("group.share.assignors", ""),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        Configs(BROKER_CONFIGS, {name: text})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num.partitions", " 3 ", 3),
        ("num.partitions", "\t+3\r\n", 3),
        ("num.partitions", "\0" + "003\x1f", 3),
        ("log.retention.ms", "-1", -1),
        ("log.cleaner.min.cleanable.ratio", "1.", 1.0),
        ("log.cleaner.min.cleanable.ratio", " +.5e0 ", 0.5),
        ("log.cleaner.io.max.bytes.per.second", "1E+7", 1e7),
        ("auto.create.topics.enable", "FALSE", False),
        ("compression.gzip.level", "-1", -1),
        ("log.cleanup.policy", "compact, delete", ("compact", "delete")),
        ("group.consumer.migration.policy", "Upgrade", "Upgrade"),
    ],
)
def test_a_good_value(name: str, text: str, value: object) -> None:
    assert Configs(BROKER_CONFIGS, {name: text})[name] == value


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("segment.bytes", "1_048_576", "1048576"),
        ("segment.bytes", "\uff11\uff10\uff14\uff18\uff15\uff17\uff16", "1048576"),
        ("retention.ms", "\u00a05", "5"),
        ("min.cleanable.dirty.ratio", "NaN", "NaN"),
        ("min.cleanable.dirty.ratio", "0_0.5", "0.5"),
    ],
)
def test_a_number_that_an_older_version_stored_keeps_its_value(name: str, text: str, shown: str) -> None:
    assert config_text(Configs(TOPIC_CONFIGS, {name: text}, stored=True)[name]) == shown
    with pytest.raises(InvalidConfig, match=name):
        Configs(TOPIC_CONFIGS, {name: text})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (-0.0, "-0.0"),
        (5e-324, "5.0E-324"),
        (-12345678.5, "-1.23456785E7"),
    ],
)
def test_every_double_has_a_text(value: float, text: str) -> None:
    assert config_text(value) == text


def test_an_unknown_key_is_refused_with_known_names_that_are_like_it() -> None:
    with pytest.raises(InvalidConfig, match=r"group\.share\.max\.sise; did you mean group\.share\.max\.size"):
        Configs(BROKER_CONFIGS, {"group.share.max.sise": "1"})
    with pytest.raises(InvalidConfig, match=r"^Unknown configuration zzz$"):
        Configs(BROKER_CONFIGS, {"zzz": "1"})
