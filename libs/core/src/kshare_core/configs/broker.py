"""Broker configs under Kafka's names (org.apache.kafka.server.config and KafkaConfig of 4.3.1)."""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition, ConfigTable, ConfigType

_INT, _LONG = ConfigType.INT, ConfigType.LONG


def _share(name: str, default: int, low: int, high: int, text: str) -> ConfigDefinition:
    return ConfigDefinition(name=name, type=_INT, default=default, minimum=low, maximum=high, documentation=text)


_DEFINITIONS: tuple[ConfigDefinition, ...] = (
    _share("group.share.delivery.count.limit", 5, 2, 10, "How often a record is delivered before it is archived."),
    _share("group.share.partition.max.record.locks", 2000, 100, 10000, "Records in flight in one share-partition."),
    _share("group.share.record.lock.duration.ms", 30000, 1000, 3600000, "How long a member may hold a record."),
    _share("group.share.heartbeat.interval.ms", 5000, 1, 2**31 - 1, "How often members of share groups heartbeat."),
    _share("group.share.session.timeout.ms", 45000, 1, 2**31 - 1, "Silence after which a member is taken out."),
    _share("num.partitions", 1, 1, 2**31 - 1, "Partitions of a topic that is created without saying how many."),
)

BROKER_CONFIGS: ConfigTable = {definition.name: definition for definition in _DEFINITIONS}
