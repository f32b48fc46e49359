"""Kafka's config names, types, defaults and ranges, for brokers, topics and groups, and kshare's own (`kshare.*`).

Read first: `definition` (the type of one config and its parsing), then `broker`, `topic`, `group` and `kshare_own` (the
tables; their rows are in `broker_*`, `topic_rows` and `group_rows`), `process` (all configs of a process, with those of
one listener: `listener_names`), `dynamic` (broker configs that administrators alter at run time). `Configs` is a set of
values over a table, read by name: `configs.integer("num.partitions")`.
"""

from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.definition import (
    ConfigDefinition,
    Configs,
    ConfigTable,
    ConfigType,
    ConfigValue,
    InvalidConfig,
    config_text,
    find_config,
)
from kshare_core.configs.dynamic import (
    DynamicConfigs,
    base_name,
    check_dynamic_configs,
    check_own_configs_are_not_altered,
)
from kshare_core.configs.group import (
    GROUP_CONFIGS,
    check_group_config,
    check_group_configs,
    effective_group_config,
    known_group_texts,
)
from kshare_core.configs.kshare_own import DEFAULT_QUEUED_BYTES, KSHARE_CONFIGS
from kshare_core.configs.listener_names import listener_config_name
from kshare_core.configs.process import PROCESS_CONFIGS, process_configs
from kshare_core.configs.topic import TOPIC_CONFIGS, check_topic_configs, effective_topic_config

__all__ = [
    "BROKER_CONFIGS",
    "DEFAULT_QUEUED_BYTES",
    "GROUP_CONFIGS",
    "KSHARE_CONFIGS",
    "PROCESS_CONFIGS",
    "TOPIC_CONFIGS",
    "ConfigDefinition",
    "ConfigTable",
    "ConfigType",
    "ConfigValue",
    "Configs",
    "DynamicConfigs",
    "InvalidConfig",
    "base_name",
    "check_broker_configs",
    "check_dynamic_configs",
    "check_group_config",
    "check_group_configs",
    "check_own_configs_are_not_altered",
    "check_topic_configs",
    "config_text",
    "effective_group_config",
    "effective_topic_config",
    "find_config",
    "known_group_texts",
    "listener_config_name",
    "process_configs",
]
