"""Topic configs (Kafka's LogConfig), and a topic's effective values with those of the broker."""

from __future__ import annotations

from collections.abc import Mapping

from kshare_core.configs.definition import Configs, ConfigTable, ConfigValue, InvalidConfig
from kshare_core.configs.topic_rows import TOPIC_ROWS

TOPIC_CONFIGS: ConfigTable = {
    definition.name: definition for definition in sorted(TOPIC_ROWS, key=lambda row: row.name)
}

_SYNONYMS_IN_LARGER_UNITS = {
    "retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "segment.ms": (("log.roll.hours", 3_600_000),),
    "segment.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "flush.ms": (("log.flush.scheduler.interval.ms", 1),),
}
"""Fallback broker configs for when the first synonym is not set, and their unit in milliseconds."""


def inherited_topic_configs(broker: Configs) -> dict[str, ConfigValue]:
    """The values that topics inherit from configs set at the broker."""
    inherited: dict[str, ConfigValue] = {}
    for name, definition in TOPIC_CONFIGS.items():
        if definition.broker_synonym is None:
            continue
        for synonym, factor in ((definition.broker_synonym, 1), *_SYNONYMS_IN_LARGER_UNITS.get(name, ())):
            value = broker[synonym] if broker.is_set(synonym) else None
            if value is not None:
                inherited[name] = value * factor if factor > 1 and isinstance(value, int) else value
                break
    if isinstance(kept := inherited.get("retention.ms"), int) and kept < 0:
        inherited["retention.ms"] = -1
    return inherited


def effective_topic_config(broker: Configs, texts: Mapping[str, str]) -> Configs:
    """A topic's values: its own stored `texts`, else those set at the broker, else the defaults; InvalidConfig."""
    return Configs(TOPIC_CONFIGS, texts, inherited=inherited_topic_configs(broker), stored=True)


def check_topic_configs(broker: Configs, texts: Mapping[str, str]) -> Configs:
    """The effective values of new `texts`; InvalidConfig also if two of them contradict each other."""
    configs = Configs(TOPIC_CONFIGS, texts, inherited=inherited_topic_configs(broker))
    for least, most in (("min.compaction.lag.ms", "max.compaction.lag.ms"),):
        if configs.integer(least) > configs.integer(most):
            raise InvalidConfig(f"{least} must not be above {most}; they are {configs[least]} and {configs[most]}")
    if configs.boolean("remote.storage.enable"):
        raise InvalidConfig("remote.storage.enable must be false: kshare has no tiered storage")
    return configs
