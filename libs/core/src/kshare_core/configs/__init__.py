"""Kafka's config names, types, defaults and ranges, for brokers, topics and groups, and kshare's own (`kshare.*`).

Read first: `definition` (what one config is, and how a text becomes a value), then the tables `broker`, `topic`,
`group` and `kshare_own`. `Configs` is a set of values over a table; ask it by name:
`configs.integer("num.partitions")`.
"""

from kshare_core.configs.definition import ConfigDefinition, Configs, ConfigTable, ConfigType, InvalidConfig

__all__ = ["ConfigDefinition", "ConfigTable", "ConfigType", "Configs", "InvalidConfig"]
