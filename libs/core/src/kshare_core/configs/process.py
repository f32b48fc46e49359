"""The configs of a process, from its property file: broker configs under Kafka's names, and kshare's own.

As in Kafka, configs of TLS and SASL may be given for one listener or mechanism (`listener_names`).

A security setting that kshare does not implement is an error, unless it has Kafka's default: a process that ignored it
would let in whom the setting keeps out. Other configs of Kafka without effect get a warning. Values are taken as they
are written: config providers and the placeholders of their values are an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from kshare_core.configs.authorizer import AUTHORIZER_CONFIGS
from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.definition import (
    ConfigDefinition,
    Configs,
    ConfigTable,
    ConfigType,
    InvalidConfig,
    config_text,
)
from kshare_core.configs.kshare_own import KSHARE_CONFIGS
from kshare_core.configs.listener_names import PROTECTING, names_of_listeners
from kshare_core.configs.upstream import UPSTREAM_CONFIGS

PROCESS_CONFIGS: ConfigTable = {**BROKER_CONFIGS, **AUTHORIZER_CONFIGS, **KSHARE_CONFIGS, **UPSTREAM_CONFIGS}
_PLACEHOLDER = re.compile(r"\$\{[^}:]+:[^}]*\}")
"""A value of a config provider, as in Kafka's ConfigTransformer: ${file:/etc/secrets:password}."""


def process_configs(texts: Mapping[str, str]) -> tuple[Configs, list[str]]:
    """The configs of a process, and a warning for each key that is set and has no effect here.

    InvalidConfig for an unknown config of kshare, an invalid value, and a security setting without effect.
    """
    _check_providers(texts)
    base_names = names_of_listeners(texts)
    of_listeners = {name: replace(BROKER_CONFIGS[base_name], name=name) for name, base_name in base_names.items()}
    configs = Configs({**PROCESS_CONFIGS, **of_listeners}, texts)
    check_broker_configs(configs)
    for name, text in texts.items():
        _check_is_implemented(configs.table[name], base_names.get(name, name), text)
    warnings = [
        f"{name} is a Kafka config without effect in kshare" for name in texts if not configs.table[name].has_effect
    ]
    of_cluster = next((name for name in texts if name.startswith("kshare.upstream.")), None)
    if of_cluster is not None and "kafka" not in (configs.text("kshare.engine"), configs.text("kshare.metadata.store")):
        warnings.append(f"{of_cluster} has no effect without kshare.engine=kafka or kshare.metadata.store=kafka")
    if configs.is_set("controller.listener.names"):
        names = texts["controller.listener.names"].strip()
        warnings.append(
            f"controller.listener.names is {names}: gateways do not listen there, kshare has no controllers"
        )
    return configs, warnings


def _check_providers(texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        is_provider = name == "config.providers" or name.startswith("config.providers.")
        if (is_provider and text.strip()) or _PLACEHOLDER.search(text):
            what = "is set" if is_provider else "has a placeholder of a config provider, ${PROVIDER:...}"
            advice = "write the values themselves into the file, or secrets into a role's second file (--config-secret)"
            raise InvalidConfig(f"{name} {what}, and kshare has no config providers: {advice}")


def _check_is_implemented(definition: ConfigDefinition, base_name: str, text: str) -> None:
    if definition.name == "sasl.jaas.config":
        example = "listener.name.sasl_ssl.plain.sasl.jaas.config"
        raise InvalidConfig(f"sasl.jaas.config needs the names of a listener and a mechanism before it: {example}")
    if definition.has_effect or base_name not in PROTECTING or definition.parse(text) == definition.default:
        return
    found = "" if definition.type is ConfigType.PASSWORD else f" to be {text.strip()!r}"
    raise InvalidConfig(
        f"{definition.name} is a security setting that kshare does not implement, and it was found{found}: remove it, "
        f"or set it to Kafka's default, {config_text(definition.default) or 'empty'}"
    )
