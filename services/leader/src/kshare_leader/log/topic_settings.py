"""The configs of a topic that its logs obey, under Kafka's names, with the broker's values as defaults.

`compression.type` is not among them: batches are kept as the producer sent them, whatever its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kshare_core.configs import Configs
from kshare_core.configs.definition import ConfigValue, InvalidConfig
from kshare_core.configs.topic import TOPIC_CONFIGS

LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What a log checks batches against; the defaults are Kafka's."""

    max_message_bytes: int = 1_048_588
    """max.message.bytes: the largest batch, with its header."""
    log_append_time: bool = False
    """message.timestamp.type is LogAppendTime."""
    timestamp_before_max_ms: int = (1 << 63) - 1
    """message.timestamp.before.max.ms"""
    timestamp_after_max_ms: int = 3_600_000
    """message.timestamp.after.max.ms"""


def topic_settings(entries: Mapping[str, str], broker: Configs) -> TopicSettings:
    """The settings of a topic whose own configs are `entries`; names and values that mean nothing here are passed over.

    The coordinator checked them when they were set.
    """

    def value(name: str) -> ConfigValue:
        definition = TOPIC_CONFIGS[name]
        if name in entries:
            try:
                return definition.parse(entries[name])
            except InvalidConfig:
                return definition.default
        synonym = definition.broker_synonym
        if synonym is not None and synonym in broker.table and broker.is_set(synonym):
            return broker[synonym]
        return definition.default

    def integer(name: str) -> int:
        found = value(name)
        assert isinstance(found, int), f"{name} is {found!r}, not an integer"
        return found

    return TopicSettings(
        max_message_bytes=integer("max.message.bytes"),
        log_append_time=value("message.timestamp.type") == LOG_APPEND_TIME,
        timestamp_before_max_ms=integer("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=integer("message.timestamp.after.max.ms"),
    )
