"""The configs of a process, from its property file: broker configs under Kafka's names, and kshare's own.

As in Kafka, configs of TLS and SASL may be given for one listener: `listener.name.<name in small letters>.
ssl.client.auth`, and those of a mechanism with its name after that of the listener.

A security setting that kshare does not implement is an error, unless it has Kafka's default: a process that ignored it
would let in whom the setting keeps out. Other configs of Kafka without effect get a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kshare_core.configs.authorizer import AUTHORIZER_CONFIGS
from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.broker_security import BROKER_SECURITY
from kshare_core.configs.definition import (
    ConfigDefinition,
    Configs,
    ConfigTable,
    ConfigType,
    InvalidConfig,
    config_text,
)
from kshare_core.configs.dynamic import SECURITY_CONFIGS
from kshare_core.configs.kshare_own import KSHARE_CONFIGS
from kshare_core.configs.upstream import UPSTREAM_CONFIGS

LISTENER_PREFIX = "listener.name."
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SASL_CONFIGS_OF_LISTENERS = ("connections.max.reauth.ms", "sasl.enabled.mechanisms", "sasl.server.max.receive.size")
SASL_CONFIGS_OF_MECHANISMS = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.server.callback.handler.class",
)
PROCESS_CONFIGS: ConfigTable = {**BROKER_CONFIGS, **AUTHORIZER_CONFIGS, **KSHARE_CONFIGS, **UPSTREAM_CONFIGS}
_PROTECTING = frozenset(
    {
        *(row.name for row in BROKER_SECURITY),
        "alter.config.policy.class.name",
        "client.quota.callback.class",
        "create.topic.policy.class.name",
        "max.connection.creation.rate",
    }
)
"""Configs that protect a cluster from clients; those of them without effect are not implemented."""


def process_configs(texts: Mapping[str, str]) -> tuple[Configs, list[str]]:
    """The configs of a process, and a warning for each key that is set and has no effect here.

    InvalidConfig for an unknown config of kshare, an invalid value, and a security setting without effect.
    """
    configs = Configs({**PROCESS_CONFIGS, **_listener_configs(texts)}, texts)
    check_broker_configs(configs)
    for name, text in texts.items():
        _check_is_implemented(configs.table[name], text)
    warnings = [
        f"{name} is a Kafka config without effect in kshare" for name in texts if not configs.table[name].has_effect
    ]
    return configs, warnings


def _check_is_implemented(definition: ConfigDefinition, text: str) -> None:
    base_name = definition.name.split(".", 3)[-1] if definition.name.startswith(LISTENER_PREFIX) else definition.name
    if definition.name == "sasl.jaas.config":
        example = "listener.name.sasl_ssl.plain.sasl.jaas.config"
        raise InvalidConfig(f"sasl.jaas.config needs the names of a listener and a mechanism before it: {example}")
    if definition.has_effect or base_name not in _PROTECTING or definition.parse(text) == definition.default:
        return
    found = "" if definition.type is ConfigType.PASSWORD else f" to be {text.strip()!r}"
    raise InvalidConfig(
        f"{definition.name} is a security setting that kshare does not implement, and it was found{found}: remove it, "
        f"or set it to Kafka's default, {config_text(definition.default) or 'empty'}"
    )


def listener_config_name(listener: str, name: str) -> str:
    """The name of a config with a listener's prefix."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


def _listener_configs(texts: Mapping[str, str]) -> ConfigTable:
    """The table of configs that can be set per listener, for each listener in `listeners`.

    Without `listeners`, each listener may have configs: a role that has no clients reads the file of the gateways, and
    their listeners may be in a flag.
    """
    if "listeners" in texts:
        entries = [part.strip().partition("://") for part in texts["listeners"].split(",")]
        listeners = [name for name, has_address, _ in entries if has_address]
    else:
        listeners = [name.split(".")[2] for name in texts if name.startswith(LISTENER_PREFIX)]
    found = {}
    for listener in dict.fromkeys(listeners):
        for name, base_name in _names_of_a_listener():
            own_name = listener_config_name(listener, name)
            found[own_name] = replace(BROKER_CONFIGS[base_name], name=own_name)
    return found


def _names_of_a_listener() -> Iterator[tuple[str, str]]:
    """The configs that a listener, or one mechanism of it, can have for itself, and their names without a prefix."""
    bearer = [row.name for row in BROKER_SECURITY if row.name.startswith("sasl.oauthbearer.")]
    for name in sorted({*SECURITY_CONFIGS, *SASL_CONFIGS_OF_LISTENERS, *bearer}):
        yield name, name
    for mechanism in SASL_MECHANISMS:
        for name in (*SASL_CONFIGS_OF_MECHANISMS, *(bearer if mechanism == "OAUTHBEARER" else ())):
            yield f"{mechanism.lower()}.{name}", name
