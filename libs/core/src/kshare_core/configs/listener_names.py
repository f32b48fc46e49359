"""The names of configs that are given for one listener, or one mechanism of it, and of those that protect a cluster.

As in Kafka, these are `listener.name.<listener in small letters>.ssl.client.auth`, and with a mechanism
`listener.name.<listener>.<mechanism>.sasl.jaas.config`. The name without such a prefix is the base name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kshare_core.configs.broker_security import BROKER_SECURITY
from kshare_core.configs.definition import ConfigType

LISTENER_PREFIX = "listener.name."
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TLS_CONFIGS = frozenset(
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
"""SslConfigs.RECONFIGURABLE_CONFIGS."""
LIMITS = frozenset({"max.connections", "max.connection.creation.rate"})
PROTECTING = frozenset(
    {
        *(row.name for row in BROKER_SECURITY),
        *LIMITS,
        "alter.config.policy.class.name",
        "client.quota.callback.class",
        "create.topic.policy.class.name",
    }
)
"""Configs that protect a cluster from clients; those of them without effect are not implemented."""
PASSWORDS = frozenset(row.name for row in BROKER_SECURITY if row.type is ConfigType.PASSWORD)
"""Passwords, private keys and login modules of listeners."""
_OF_LISTENERS = frozenset(
    {
        *TLS_CONFIGS,
        *LIMITS,
        "connections.max.reauth.ms",
        "num.network.threads",
        "principal.builder.class",
        "sasl.enabled.mechanisms",
        "sasl.server.max.receive.size",
        "ssl.principal.mapping.rules",
    }
)
_OF_MECHANISMS = frozenset(
    {
        "connections.max.reauth.ms",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.server.callback.handler.class",
    }
)
_OF_BOTH = ("sasl.kerberos.", "sasl.login.")
_BEARER, _BEARER_CONFIGS = "OAUTHBEARER", "sasl.oauthbearer."


def listener_config_name(listener: str, name: str) -> str:
    """The name of a config with a listener's prefix."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


def names_of_listeners(texts: Mapping[str, str]) -> dict[str, str]:
    """The base name of each config that can be set for a listener in `listeners`.

    Without `listeners`, each listener may have configs: a role that has no clients reads the file of the gateways, and
    their listeners may be in a flag.
    """
    if "listeners" in texts:
        entries = [part.strip().partition("://") for part in texts["listeners"].split(",")]
        listeners = [name for name, has_address, _ in entries if has_address]
    else:
        listeners = [name.split(".")[2] for name in texts if name.startswith(LISTENER_PREFIX)]
    return {
        listener_config_name(listener, name): base_name
        for listener in dict.fromkeys(listeners)
        for name, base_name in _names_of_a_listener()
    }


def protecting_name(name: str) -> str | None:
    """The base name of a config that protects a cluster, of any listener and mechanism; None for other configs."""
    if not name.startswith(LISTENER_PREFIX):
        return name if name in PROTECTING else None
    return next((base_name for base_name in PROTECTING if name.endswith(f".{base_name}")), None)


def is_password(name: str) -> bool:
    """Whether the value of a broker config is a secret, with or without the names of a listener and a mechanism."""
    is_prefixed = name.startswith(LISTENER_PREFIX)
    return name in PASSWORDS or (is_prefixed and any(name.endswith(f".{each}") for each in PASSWORDS))


def _names_of_a_listener() -> Iterator[tuple[str, str]]:
    """The configs that a listener, or one mechanism of it, can have for itself, and their names without a prefix."""
    rows = [row.name for row in BROKER_SECURITY]
    bearer = [name for name in rows if name.startswith(_BEARER_CONFIGS)]
    of_both = [name for name in rows if name.startswith(_OF_BOTH)]
    for name in sorted({*_OF_LISTENERS, *of_both, *bearer}):
        yield name, name
    for mechanism in SASL_MECHANISMS:
        for name in sorted({*_OF_MECHANISMS, *of_both, *(bearer if mechanism == _BEARER else ())}):
            yield f"{mechanism.lower()}.{name}", name
