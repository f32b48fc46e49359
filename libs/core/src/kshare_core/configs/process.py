"""The configs of a process, from its property file: broker configs under Kafka's names, and kshare's own.

As in Kafka, TLS configs may be given for one listener: `listener.name.<name in small letters>.ssl.client.auth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.definition import Configs, ConfigTable
from kshare_core.configs.dynamic import SECURITY_CONFIGS
from kshare_core.configs.kshare_own import KSHARE_CONFIGS

PROCESS_CONFIGS: ConfigTable = {**BROKER_CONFIGS, **KSHARE_CONFIGS}


def process_configs(texts: Mapping[str, str]) -> tuple[Configs, list[str]]:
    """The configs of a process, and a warning for each key that is set and has no effect here; InvalidConfig."""
    configs = Configs({**PROCESS_CONFIGS, **_listener_configs(texts)}, texts)
    check_broker_configs(configs)
    warnings = [
        f"{name} is a Kafka config without effect in kshare" for name in texts if not configs.table[name].has_effect
    ]
    return configs, warnings


def listener_config_name(listener: str, name: str) -> str:
    """The name of a config with a listener's prefix."""
    return f"listener.name.{listener.lower()}.{name}"


def _listener_configs(texts: Mapping[str, str]) -> ConfigTable:
    """The table of configs that can be set per listener, for each listener in `listeners`."""
    found = {}
    for part in texts.get("listeners", "").split(","):
        listener, has_name, _ = part.strip().partition("://")
        if has_name:
            for name in sorted(SECURITY_CONFIGS):
                own_name = listener_config_name(listener, name)
                found[own_name] = replace(BROKER_CONFIGS[name], name=own_name)
    return found
