"""Dynamic broker configs: values that an administrator alters while brokers run, for all brokers or for one.

A value for one broker takes precedence over one for all brokers, and both over the process's own properties. Broker N
is every node with id N: its gateway, its leader, its coordinator. Code that reads a `DynamicConfigs` at the time of use
sees a change at once.

The rules for names and values are those of Kafka 4.3.1 (DynamicBrokerConfig): names that Kafka does not know are
accepted, and known ones must be dynamic; security configs need a listener's prefix; some can only be set for one broker
at a time; thread pools change by a factor of two at most. Configs of kshare's own (`kshare.*`) are never dynamic.

Narrower than Kafka: a config that protects a cluster from clients, or names its listeners, is refused where nothing
would apply it. Else it would be shown as in force, and let in whom it keeps out. An earlier kshare may have stored such
values: they stay in the catalog without effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.definition import Configs, ConfigTable, ConfigValue, InvalidConfig
from kshare_core.configs.listener_names import LISTENER_PREFIX, TLS_CONFIGS, protecting_name
from kshare_core.configs.rows import MAX_LONG, long

PER_BROKER_CONFIGS = frozenset(
    {
        *TLS_CONFIGS,
        "cordoned.log.dirs",
        "listener.security.protocol.map",
        "listeners",
        "principal.builder.class",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.mechanism.inter.broker.protocol",
    }
)
CLUSTER_LEVEL_LISTENER_CONFIGS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
THROTTLED_RATES: ConfigTable = {
    name: long(name, MAX_LONG, low=0)
    for name in (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
}
"""QuotaConfig.brokerQuotaConfigs: no configs of a property file, so a change is checked and has no effect."""
READ_AT_START = frozenset(
    {
        "config.providers",
        "listener.security.protocol.map",
        "listeners",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
    }
)
"""Configs that are dynamic in Kafka, and here those of the file for as long as a process runs."""
ALTERABLE_OF_LISTENERS = TLS_CONFIGS | {"max.connections"}
"""Configs that protect a cluster, and that gateways apply when they are altered for one of their listeners."""
THREAD_POOLS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
OWN_PREFIX = "kshare."
_OF_A_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")


class DynamicConfigs(Configs):
    """The configs of one broker with the dynamic values; see the module's text."""

    def __init__(self, static: Configs) -> None:
        super().__init__(static.table, static.texts(), inherited=static.inherited)
        self.static = static
        self.of_all_brokers: Mapping[str, str] = {}
        self.of_this_broker: Mapping[str, str] = {}

    def alter(self, of_all_brokers: Mapping[str, str], of_this_broker: Mapping[str, str]) -> bool:
        """Replaces the dynamic values; returns whether anything changed.

        Unknown or read-only names, and values that do not parse, are skipped: another broker may use them.
        """
        if (of_all_brokers, of_this_broker) == (self.of_all_brokers, self.of_this_broker):
            return False
        self.of_all_brokers, self.of_this_broker = dict(of_all_brokers), dict(of_this_broker)
        values = {name: self.static[name] for name in self.static if self.static.is_set(name)}
        for texts in (self.of_all_brokers, self.of_this_broker):
            values.update(self._readable(texts))
        self._set = values
        self.generation += 1
        return True

    def without_effect(self) -> list[str]:
        """The names of dynamic values that an earlier kshare accepted, and that have no effect on this broker."""
        texts = {**self.of_all_brokers, **self.of_this_broker}
        return sorted(name for name, text in texts.items() if self._is_without_effect(name, text))

    def _is_without_effect(self, name: str, text: str) -> bool:
        definition = self.table.get(name)
        if definition is None and name.startswith(LISTENER_PREFIX):
            return protecting_name(name) is not None
        return (definition is not None and definition.read_only) or has_no_effect(name, text)

    def _readable(self, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
        found = {}
        for name, text in texts.items():
            definition = self.table.get(name)
            if definition is None or definition.read_only:
                continue
            try:
                found[name] = definition.parse_stored(text)
            except InvalidConfig:
                continue
        return found


def has_no_effect(name: str, text: str) -> bool:
    """Whether a config protects a cluster, or names its listeners, and is not applied when it is altered."""
    if name in READ_AT_START:
        return True
    plain_name = protecting_name(name)
    if plain_name is None:
        return False
    definition = BROKER_CONFIGS[plain_name]
    if definition.has_effect:
        return name != plain_name and plain_name not in ALTERABLE_OF_LISTENERS
    try:
        return definition.parse(text) != definition.default
    except InvalidConfig:
        return True


def check_dynamic_configs(
    current: Configs,
    of_all_brokers: Mapping[str, str],
    of_this_broker: Mapping[str, str],
    *,
    per_broker: bool,
    before: Mapping[str, str] | None = None,
) -> None:
    """Raises InvalidConfig if these values cannot be set for one broker (`per_broker`), or for all.

    `current` has the values in force, `before` those that the broker, or all together, have already.
    """
    texts = of_this_broker if per_broker else of_all_brokers
    changed = {name: text for name, text in texts.items() if (before or {}).get(name) != text}
    fixed = sorted(name for name in changed if name in current.table and current.table[name].read_only)
    if fixed:
        raise InvalidConfig(f"These configs cannot be altered while a broker runs: {', '.join(fixed)}")
    bare = sorted(TLS_CONFIGS & changed.keys())
    if bare:
        prefix = "listener.name.<listener>."
        raise InvalidConfig(f"These configs can be altered with the prefix {prefix} only: {', '.join(bare)}")
    for name, text in texts.items():
        definition = BROKER_CONFIGS.get(base_name(name), THROTTLED_RATES.get(name))
        if definition is not None:
            definition.parse(text)
    of_one = sorted(name for name in texts if _is_per_broker(name))
    if of_one and not per_broker:
        raise InvalidConfig(f"These configs can be altered for one broker at a time only: {', '.join(of_one)}")
    useless = sorted(name for name, text in changed.items() if has_no_effect(name, text))
    if useless:
        advice = "set them in the files of the gateways, and restart these"
        raise InvalidConfig(f"These configs would have no effect while a broker runs: {', '.join(useless)}; {advice}")
    after = DynamicConfigs(current.static if isinstance(current, DynamicConfigs) else current)
    after.alter(of_all_brokers, of_this_broker)
    check_broker_configs(after)
    for name in THREAD_POOLS:
        _check_thread_pool(name, current.integer(name), after.integer(name))


def check_own_configs_are_not_altered(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises InvalidConfig if a config of kshare's own is set: roles read those when they start.

    Names that do not exist are refused too: Kafka leaves unknown names to plugins, but these are never a plugin's. One
    that an older version accepted stays until it is deleted, and does not stand in the way of other changes.
    """
    own = sorted(name for name, value in after.items() if name.startswith(OWN_PREFIX) and before.get(name) != value)
    if own:
        raise InvalidConfig(
            f"Configs of kshare's own cannot be altered while a broker runs; set them in the file of --config and "
            f"restart: {', '.join(own)[:300]}"
        )


def base_name(name: str) -> str:
    """The name of a config without the prefix of a listener."""
    match = _OF_A_LISTENER.fullmatch(name)
    return match[1] if match else name


def _is_per_broker(name: str) -> bool:
    match = _OF_A_LISTENER.fullmatch(name)
    return match[1] not in CLUSTER_LEVEL_LISTENER_CONFIGS if match else name in PER_BROKER_CONFIGS


def _check_thread_pool(name: str, before: int, after: int) -> None:
    least = max(1, before // 2)
    if after == before or least <= after <= before * 2:
        return
    raise InvalidConfig(f"{name} is {before} now; it can be set to {least} at least and {before * 2} at most")
