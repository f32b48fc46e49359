"""The configs of a process: broker configs under Kafka's names and kshare's own, as its property file gives them."""

from __future__ import annotations

from collections.abc import Mapping

from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.definition import Configs, ConfigTable
from kshare_core.configs.kshare_own import KSHARE_CONFIGS

PROCESS_CONFIGS: ConfigTable = {**BROKER_CONFIGS, **KSHARE_CONFIGS}


def process_configs(texts: Mapping[str, str]) -> tuple[Configs, list[str]]:
    """The configs of a process, and a warning for each key that is set and has no effect here; InvalidConfig."""
    configs = Configs(PROCESS_CONFIGS, texts)
    check_broker_configs(configs)
    warnings = [
        f"{name} is known to Kafka and has no effect here" for name in texts if not PROCESS_CONFIGS[name].has_effect
    ]
    return configs, warnings
