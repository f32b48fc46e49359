"""Broker configs under Kafka's names: those of Apache Kafka 4.3.1, and those of 4.4's dead letter queue (KIP-1191).

The rows are in `broker_groups`, `broker_logs`, `broker_cluster` and `broker_security`. `check_broker_configs` makes the
checks that concern several configs at once (Kafka's ShareGroupConfig and GroupCoordinatorConfig).
"""

from __future__ import annotations

from kshare_core.configs.broker_cluster import BROKER_CLUSTER
from kshare_core.configs.broker_groups import BROKER_GROUPS
from kshare_core.configs.broker_logs import BROKER_LOGS
from kshare_core.configs.broker_security import BROKER_SECURITY
from kshare_core.configs.definition import Configs, ConfigTable, InvalidConfig

BROKER_CONFIGS: ConfigTable = {
    definition.name: definition
    for definition in sorted(
        (*BROKER_CLUSTER, *BROKER_GROUPS, *BROKER_LOGS, *BROKER_SECURITY), key=lambda row: row.name
    )
}


def bound_names(name: str) -> tuple[str, str]:
    """The names that broker configs with a minimum and a maximum for `name` have: group.<type>.min.… and .max.…"""
    group, kind, rest = name.split(".", 2)
    return f"{group}.{kind}.min.{rest}", f"{group}.{kind}.max.{rest}"


def _is_bounded(name: str) -> bool:
    return name.startswith("group.") and name.count(".") > 1 and BROKER_CONFIGS.keys() >= set(bound_names(name))


BOUNDED_GROUP_CONFIGS = tuple(name for name in BROKER_CONFIGS if _is_bounded(name))
"""Broker configs with companion `min` and `max` configs, which bound the values of a group."""


_AT_LEAST = (
    *((name, bound_names(name)[0]) for name in BOUNDED_GROUP_CONFIGS),
    *((bound_names(name)[1], name) for name in BOUNDED_GROUP_CONFIGS),
    ("group.share.max.share.sessions", "group.share.max.size"),
)

_LEAST_TIMES = (("log.roll.ms", 1), ("log.roll.jitter.ms", 0))

_GREATER = tuple(
    (f"group.{kind}.session.timeout.ms", f"group.{kind}.heartbeat.interval.ms")
    for kind in ("share", "consumer", "streams")
)


def check_broker_configs(broker: Configs) -> None:
    """Raises InvalidConfig if two values contradict each other, such as a default above its own maximum."""
    for name, least in _AT_LEAST:
        if broker.integer(name) < broker.integer(least):
            raise InvalidConfig(
                f"{name} must be greater than or equal to {least}; they are {broker[name]} and {broker[least]}"
            )
    for name, least_ms in _LEAST_TIMES:
        value = broker[name]
        if isinstance(value, int) and value < least_ms:
            raise InvalidConfig(f"{name} must be at least {least_ms}; it is {value}")
    if 0 in (broker["log.retention.ms"], broker["log.retention.minutes"], broker["log.retention.hours"]):
        raise InvalidConfig("The retention time of logs must be above 0, or negative for no limit; it is 0")
    for name, less in _GREATER:
        if broker.integer(name) <= broker.integer(less):
            raise InvalidConfig(f"{name} must be greater than {less}; they are {broker[name]} and {broker[less]}")
    if broker.integer("max.connections.per.ip") == 0 and not broker.text("max.connections.per.ip.overrides"):
        raise InvalidConfig("max.connections.per.ip can be 0 only if max.connections.per.ip.overrides is set")
    queued, largest = broker.integer("queued.max.request.bytes"), broker.integer("socket.request.max.bytes")
    if 0 < queued < largest:
        raise InvalidConfig(
            "queued.max.request.bytes must be greater than or equal to socket.request.max.bytes, or not above 0 for no "
            f"limit; they are {queued} and {largest}"
        )
