"""Broker configs that an administrator alters while brokers run: for all of them, or for one (Kafka's dynamic configs).

A value that was given to one broker counts before one that was given to all, and both before those of the process's own
properties. A broker of id N is everything that has node id N here: its gateway, its leader, its coordinator. Whoever
reads a `DynamicConfigs` at the time of use sees a change at once.

What may be altered, and with which values, is as in Kafka 4.3.1 (DynamicBrokerConfig): names that Kafka does not know
are accepted, those that it knows must be dynamic; security configs only with a listener's prefix; some only for one
broker at a time; pools of threads change by a factor of two at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.definition import Configs, ConfigValue, InvalidConfig

SECURITY_CONFIGS = frozenset(
    {
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.key.password",
        "ssl.keymanager.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""SslConfigs.RECONFIGURABLE_CONFIGS: only with `listener.name.<listener>.` before the name."""

PER_BROKER_CONFIGS = frozenset(
    {
        *SECURITY_CONFIGS,
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
THREAD_POOLS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
_OF_A_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)")


class DynamicConfigs(Configs):
    """The configs of one broker, of which an administrator may alter some; see the module's text."""

    def __init__(self, static: Configs) -> None:
        super().__init__(static.table, static.texts())
        self.static = static
        self.of_all_brokers: Mapping[str, str] = {}
        self.of_this_broker: Mapping[str, str] = {}

    def alter(self, of_all_brokers: Mapping[str, str], of_this_broker: Mapping[str, str]) -> bool:
        """Takes all values that administrators gave so far; whether that changed anything.

        What the table does not know, or cannot read, is passed over: it was accepted for somebody else.
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

    def _readable(self, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
        found = {}
        for name, text in texts.items():
            definition = self.table.get(name)
            if definition is None or definition.read_only:
                continue
            try:
                found[name] = definition.parse(text)
            except InvalidConfig:
                continue
        return found


def check_dynamic_configs(
    current: Configs, of_all_brokers: Mapping[str, str], of_this_broker: Mapping[str, str], *, per_broker: bool
) -> None:
    """InvalidConfig where these values cannot be given to one broker (`per_broker`), or to all.

    `current` has the values in force.
    """
    texts = of_this_broker if per_broker else of_all_brokers
    fixed = sorted(name for name in texts if name in BROKER_CONFIGS and BROKER_CONFIGS[name].read_only)
    if fixed:
        raise InvalidConfig(f"These configs cannot be altered while a broker runs: {', '.join(fixed)}")
    bare = sorted(SECURITY_CONFIGS & texts.keys())
    if bare:
        prefix = "listener.name.<listener>."
        raise InvalidConfig(f"These configs can be altered with the prefix {prefix} only: {', '.join(bare)}")
    for name, text in texts.items():
        definition = BROKER_CONFIGS.get(_base_name(name))
        if definition is not None:
            definition.parse(text)
    of_one = sorted(name for name in texts if _is_per_broker(name))
    if of_one and not per_broker:
        raise InvalidConfig(f"These configs can be altered for one broker at a time only: {', '.join(of_one)}")
    after = DynamicConfigs(current.static if isinstance(current, DynamicConfigs) else current)
    after.alter(of_all_brokers, of_this_broker)
    check_broker_configs(after)
    for name in THREAD_POOLS:
        _check_thread_pool(name, current.integer(name), after.integer(name))


def _base_name(name: str) -> str:
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
