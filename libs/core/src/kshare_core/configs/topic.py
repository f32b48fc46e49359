"""Definitions; see the package's text."""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition, ConfigTable

_DEFINITIONS: tuple[ConfigDefinition, ...] = ()

TOPIC_CONFIGS: ConfigTable = {definition.name: definition for definition in _DEFINITIONS}
