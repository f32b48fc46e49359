"""The configs that topics and groups inherit from the broker, and those that a group may set."""

from __future__ import annotations

import pytest

from kshare_core.configs import (
    BROKER_CONFIGS,
    Configs,
    InvalidConfig,
    check_broker_configs,
    check_group_config,
    check_group_configs,
    check_topic_configs,
    effective_group_config,
    effective_topic_config,
)
from kshare_core.configs.rows import duration_ms

DEFAULTS = Configs(BROKER_CONFIGS)


def broker(**texts: str) -> Configs:
    return Configs(BROKER_CONFIGS, {name.replace("_", "."): text for name, text in texts.items()})


@pytest.mark.parametrize(
    ("broker_texts", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_that_is_set_gives_the_retention(broker_texts: dict[str, str], retention_ms: int) -> None:
    configs = effective_topic_config(Configs(BROKER_CONFIGS, broker_texts), {})
    assert configs.integer("retention.ms") == retention_ms
    assert configs.is_inherited("retention.ms") == bool(broker_texts)


def test_a_topics_own_value_comes_first() -> None:
    configs = effective_topic_config(broker(message_max_bytes="5000"), {"max.message.bytes": "7000"})
    assert configs.integer("max.message.bytes") == 7000
    assert configs.is_set("max.message.bytes") and not configs.is_inherited("max.message.bytes")
    assert effective_topic_config(broker(message_max_bytes="5000"), {}).integer("max.message.bytes") == 5000


def test_topic_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms"):
        check_topic_configs(DEFAULTS, {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_tiered_storage_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"remote\.storage\.enable must be false"):
        check_topic_configs(DEFAULTS, {"remote.storage.enable": "true"})
    accepted = {"remote.storage.enable": "false", "remote.log.copy.disable": "true"}
    assert check_topic_configs(DEFAULTS, accepted).boolean("remote.log.copy.disable")
    assert effective_topic_config(DEFAULTS, {"remote.storage.enable": "true"}).boolean("remote.storage.enable")


def test_numbers_that_an_older_version_stored_are_in_force_and_cannot_be_set() -> None:
    lock = {"share.record.lock.duration.ms": "20_000"}
    assert effective_group_config(DEFAULTS, lock).integer("share.record.lock.duration.ms") == 20_000
    with pytest.raises(InvalidConfig, match="20_000"):
        check_group_configs(DEFAULTS, lock)
    segment = {"segment.bytes": "1_048_576"}
    assert effective_topic_config(DEFAULTS, segment).integer("segment.bytes") == 1_048_576
    with pytest.raises(InvalidConfig, match="1_048_576"):
        check_topic_configs(DEFAULTS, segment)


@pytest.mark.parametrize(
    ("name", "text", "bound"),
    [
        ("share.record.lock.duration.ms", "14999", "group.share.min.record.lock.duration.ms=15000"),
        ("share.record.lock.duration.ms", "60001", "group.share.max.record.lock.duration.ms=60000"),
        ("share.delivery.count.limit", "11", "group.share.max.delivery.count.limit=10"),
        ("share.partition.max.record.locks", "4001", "group.share.max.partition.max.record.locks=4000"),
        ("share.session.timeout.ms", "44999", "group.share.min.session.timeout.ms=45000"),
        ("share.heartbeat.interval.ms", "15001", "group.share.max.heartbeat.interval.ms=15000"),
        ("share.assignment.interval.ms", "15001", "group.share.max.assignment.interval.ms=15000"),
        ("consumer.session.timeout.ms", "60001", "group.consumer.max.session.timeout.ms=60000"),
        ("streams.num.standby.replicas", "3", "group.streams.max.standby.replicas=2"),
    ],
)
def test_a_group_value_outside_of_the_brokers_bounds_is_refused(name: str, text: str, bound: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        check_group_config(DEFAULTS, name, text)
    assert name in str(refused.value) and text in str(refused.value) and bound in str(refused.value)


def test_the_brokers_bounds_themselves_are_allowed() -> None:
    assert check_group_config(DEFAULTS, "share.record.lock.duration.ms", "15000") == 15000
    assert check_group_config(DEFAULTS, "share.record.lock.duration.ms", "60000") == 60000


def test_the_bounds_are_the_brokers_not_fixed() -> None:
    lower = broker(group_share_min_record_lock_duration_ms="1000")
    assert check_group_config(lower, "share.record.lock.duration.ms", "1000") == 1000


def test_values_stored_before_the_bounds_moved_are_moved_into_them() -> None:
    narrow = broker(group_share_max_record_lock_duration_ms="40000")
    assert (
        effective_group_config(narrow, {"share.record.lock.duration.ms": "55000"})["share.record.lock.duration.ms"]
        == 40000
    )


def test_a_group_takes_what_it_does_not_set_from_the_broker() -> None:
    configs = effective_group_config(
        broker(group_share_record_lock_duration_ms="20000"), {"share.isolation.level": "read_committed"}
    )
    assert configs.integer("share.record.lock.duration.ms") == 20000
    assert configs.text("share.isolation.level") == "read_committed"
    assert configs.text("share.auto.offset.reset") == "latest"


def test_a_session_must_be_longer_than_a_heartbeat() -> None:
    low = broker(group_share_min_session_timeout_ms="6000", group_share_max_heartbeat_interval_ms="15000")
    with pytest.raises(InvalidConfig, match=r"share\.session\.timeout\.ms must be greater"):
        check_group_configs(low, {"share.session.timeout.ms": "6000", "share.heartbeat.interval.ms": "6000"})
    assert check_group_configs(low, {"share.session.timeout.ms": "6001", "share.heartbeat.interval.ms": "6000"})


@pytest.mark.parametrize(
    "text", ["latest", "earliest", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S", "by_duration:PT0S"]
)
def test_where_a_share_partition_may_start(text: str) -> None:
    assert check_group_config(DEFAULTS, "share.auto.offset.reset", text) == text


@pytest.mark.parametrize(
    "text",
    ["", "none", "Latest", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1S", "by_duration:1h"],
)
def test_where_a_share_partition_may_not_start(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"share\.auto\.offset\.reset"):
        check_group_config(DEFAULTS, "share.auto.offset.reset", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1S", 1000),
        ("pt1.5s", 1500),
        ("PT-1.5S", -1500),
        ("P1D", 86_400_000),
        ("-PT1M", -60_000),
        ("PT1H-1M", 3_540_000),
    ],
)
def test_durations_are_read_as_java_reads_them(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    "texts",
    [
        {"group.share.record.lock.duration.ms": "10000"},
        {"group.share.record.lock.duration.ms": "70000"},
        {"group.share.heartbeat.interval.ms": "4000"},
        {"group.share.min.session.timeout.ms": "3000", "group.share.session.timeout.ms": "5000"},
        {"group.share.max.size": "1000", "group.share.max.share.sessions": "999"},
        {"socket.request.max.bytes": "1000", "queued.max.request.bytes": "999"},
    ],
)
def test_broker_values_that_contradict_each_other_are_refused(texts: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match=list(texts)[-1]):
        check_broker_configs(Configs(BROKER_CONFIGS, texts))


@pytest.mark.parametrize("queued", ["1000", "0", "-1"])
def test_one_request_fits_in_what_may_be_queued(queued: str) -> None:
    texts = {"socket.request.max.bytes": "1000", "queued.max.request.bytes": queued}
    check_broker_configs(Configs(BROKER_CONFIGS, texts))


def test_the_defaults_do_not_contradict_each_other() -> None:
    check_broker_configs(DEFAULTS)
