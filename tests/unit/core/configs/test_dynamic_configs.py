"""Configs that administrators alter while brokers run: which values are in force, and which are refused."""

from __future__ import annotations

import pytest

from kshare_core.configs import (
    PROCESS_CONFIGS,
    Configs,
    DynamicConfigs,
    InvalidConfig,
    check_dynamic_configs,
    check_own_configs_are_not_altered,
    effective_topic_config,
    process_configs,
)


def static(**texts: str) -> Configs:
    return Configs(PROCESS_CONFIGS, {name.replace("_", "."): text for name, text in texts.items()})


def test_the_nearest_value_counts() -> None:
    configs = DynamicConfigs(static(message_max_bytes="2000000"))
    assert configs.integer("message.max.bytes") == 2_000_000
    assert configs.alter({"message.max.bytes": "3000000"}, {})
    assert configs.integer("message.max.bytes") == 3_000_000
    assert configs.alter({"message.max.bytes": "3000000"}, {"message.max.bytes": "4000000"})
    assert configs.integer("message.max.bytes") == 4_000_000
    assert configs.alter({}, {})
    assert configs.integer("message.max.bytes") == 2_000_000
    assert configs.static.integer("message.max.bytes") == 2_000_000


def test_the_generation_grows_with_changes_only() -> None:
    configs = DynamicConfigs(static())
    before = configs.generation
    assert not configs.alter({}, {})
    assert configs.generation == before
    assert configs.alter({"max.connections": "5"}, {})
    assert not configs.alter({"max.connections": "5"}, {})
    assert configs.generation == before + 1


def test_topics_take_their_defaults_from_altered_values() -> None:
    """Also where the properties have the same in a larger unit."""
    configs = DynamicConfigs(static(log_retention_hours="1"))
    assert effective_topic_config(configs, {}).integer("retention.ms") == 3_600_000
    configs.alter({"log.retention.ms": "5000"}, {})
    assert effective_topic_config(configs, {}).integer("retention.ms") == 5_000
    assert effective_topic_config(configs, {"retention.ms": "7"}).integer("retention.ms") == 7


def test_what_cannot_be_read_or_altered_is_passed_over() -> None:
    configs = DynamicConfigs(static(num_partitions="3"))
    configs.alter({"num.partitions": "5", "max.connections": "many", "nobody.knows.this": "x"}, {})
    assert configs.integer("num.partitions") == 3
    assert not configs.is_set("max.connections")
    assert configs.of_all_brokers["nobody.knows.this"] == "x", "it can still be described"


def test_a_number_that_an_older_version_stored_stays_in_force() -> None:
    configs = DynamicConfigs(static())
    configs.alter({"log.retention.ms": "5_000"}, {})
    assert configs.integer("log.retention.ms") == 5_000
    with pytest.raises(InvalidConfig, match="5_000"):
        check_dynamic_configs(configs, configs.of_all_brokers, {}, per_broker=False)


@pytest.mark.parametrize(
    ("texts", "per_broker", "why"),
    [
        ({"num.partitions": "5"}, True, "cannot be altered"),
        ({"num.partitions": "5"}, False, "cannot be altered"),
        ({"ssl.keystore.type": "JKS"}, True, "prefix"),
        ({"max.connections": "many"}, False, "max.connections"),
        ({"listener.name.x.max.connections": "many"}, True, "max.connections"),
        ({"listeners": "PLAINTEXT://:1"}, False, "one broker"),
        ({"listener.name.x.ssl.keystore.type": "JKS"}, False, "one broker"),
        ({"num.io.threads": "17"}, False, "16"),
        ({"num.io.threads": "3"}, False, "4"),
        ({"group.share.assignment.interval.ms": "15001"}, False, "group.share.max.assignment.interval.ms"),
        ({"log.retention.ms": "0"}, False, "retention"),
        ({"log.cleaner.min.cleanable.ratio": "NaN"}, False, "finite"),
        ({"leader.replication.throttled.rate": "abc"}, True, "Not a number of type LONG"),
        ({"follower.replication.throttled.rate": "-1"}, False, "at least 0"),
        ({"replica.alter.log.dirs.io.max.bytes.per.second": ""}, False, "Not a number of type LONG"),
        ({"super.users": "User:evil"}, False, "cannot be altered"),
        ({"allow.everyone.if.no.acl.found": "true"}, False, "cannot be altered"),
        ({"kshare.max.groups": "5"}, False, "cannot be altered"),
        ({"listeners": "PLAINTEXT://:1"}, True, "no effect"),
        ({"listener.security.protocol.map": "PLAINTEXT:SSL"}, True, "no effect"),
        ({"config.providers": "file"}, False, "no effect"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, True, "no effect"),
        ({"listener.name.x.sasl.enabled.mechanisms": "PLAIN"}, True, "no effect"),
        ({"listener.name.x.plain.sasl.jaas.config": "a.Module required;"}, True, "no effect"),
        ({"listener.name.x.gssapi.sasl.jaas.config": "a.Module required;"}, True, "no effect"),
        ({"listener.name.x.plain.connections.max.reauth.ms": "1000"}, True, "no effect"),
        ({"listener.name.x.ssl.principal.mapping.rules": "DEFAULT"}, True, "no effect"),
        ({"listener.name.x.ssl.engine.factory.class": "a.Factory"}, True, "no effect"),
        ({"principal.builder.class": "a.Builder"}, True, "no effect"),
        ({"listener.name.x.principal.builder.class": "a.Builder"}, True, "no effect"),
        ({"max.connection.creation.rate": "1"}, False, "no effect"),
        ({"listener.name.x.max.connection.creation.rate": "1"}, False, "no effect"),
    ],
)
def test_refused_values(texts: dict[str, str], per_broker: bool, why: str) -> None:
    of_all, of_one = ({}, texts) if per_broker else (texts, {})
    with pytest.raises(InvalidConfig, match=why):
        check_dynamic_configs(DynamicConfigs(static()), of_all, of_one, per_broker=per_broker)


@pytest.mark.parametrize("name", ["kshare.max.groups", "kshare.upstream.mode", "kshare.no.such.config"])
def test_kshares_own_configs_are_not_altered(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"restart: {name}"):
        check_own_configs_are_not_altered({name: "1"}, {name: "2"})
    check_own_configs_are_not_altered({name: "1"}, {name: "1", "max.connections": "5"})  # accepted by an older version
    check_own_configs_are_not_altered({name: "1"}, {})


@pytest.mark.parametrize(
    ("texts", "per_broker"),
    [
        ({"nobody.knows.this": "x"}, False),
        ({"leader.replication.throttled.rate": "1000", "follower.replication.throttled.rate": "0"}, True),
        ({"listener.name.x.ssl.keystore.type": "JKS"}, True),
        ({"listener.name.x.max.connections": "5"}, False),
        ({"listener.name.x.ssl.client.auth": "required"}, True),
        ({"listener.name.x.num.network.threads": "3"}, False),
        ({"max.connection.creation.rate": "2147483647"}, False),
        ({"num.io.threads": "16", "log.retention.ms": "-1"}, False),
    ],
)
def test_accepted_values(texts: dict[str, str], per_broker: bool) -> None:
    of_all, of_one = ({}, texts) if per_broker else (texts, {})
    check_dynamic_configs(DynamicConfigs(static()), of_all, of_one, per_broker=per_broker)


def test_pools_change_by_half_of_what_is_in_force() -> None:
    configs = DynamicConfigs(static())
    configs.alter({"num.io.threads": "16"}, {})
    check_dynamic_configs(configs, {"num.io.threads": "32"}, {}, per_broker=False)
    with pytest.raises(InvalidConfig, match="32"):
        check_dynamic_configs(configs, {"num.io.threads": "33"}, {}, per_broker=False)


STORED = {
    "kshare.max.groups": "5",
    "listener.name.x.plain.sasl.jaas.config": "a.Module required;",
    "listener.name.x.ssl.client.auth": "required",
    "listeners": "PLAINTEXT://:1",
    "super.users": "User:evil",
}
"""Values that an earlier kshare accepted."""


def test_stored_values_without_effect_are_named_and_change_nothing() -> None:
    configs = DynamicConfigs(static())
    configs.alter({"max.connections": "5", "nobody.knows.this": "x"}, STORED)
    assert configs.without_effect() == sorted(STORED), "there is no listener x"
    assert configs.text("super.users") == "" and configs.integer("kshare.max.groups") != 5
    of_x, _ = process_configs({"listeners": "X://:1"})
    configs = DynamicConfigs(of_x)
    configs.alter({"listener.name.x.max.connections": "5"}, {"listener.name.x.ssl.client.auth": "required"})
    assert configs.without_effect() == []


def test_stored_values_without_effect_do_not_stand_in_the_way_of_others() -> None:
    after = {**STORED, "num.io.threads": "9"}
    check_dynamic_configs(DynamicConfigs(static()), {}, after, per_broker=True, before=STORED)
    with pytest.raises(InvalidConfig, match=r"no effect.*listeners"):
        changed = {**after, "listeners": "PLAINTEXT://:2"}
        check_dynamic_configs(DynamicConfigs(static()), {}, changed, per_broker=True, before=STORED)
