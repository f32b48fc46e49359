"""The configs of topics, groups and all brokers that were set on them, and changes of these."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from kshare.endpoint import Endpoint
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import connect_to_any, refuse
from kshare_core.configs import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS, ConfigTable, base_name
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kshare_wire.generated.requests.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kshare_wire.generated.responses.describe_configs import DescribeConfigsResourceResult

TOPIC, BROKER, GROUP = 2, 4, 32
"""Kinds of resources."""
NAMES = {TOPIC: "topic", BROKER: "brokers", GROUP: "group"}
TABLES: Mapping[int, ConfigTable] = {TOPIC: TOPIC_CONFIGS, BROKER: BROKER_CONFIGS, GROUP: GROUP_CONFIGS}
SET, DELETE = 0, 1
DYNAMIC_TOPIC_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG, DYNAMIC_GROUP_CONFIG = 1, 3, 8
SOURCES = {TOPIC: DYNAMIC_TOPIC_CONFIG, BROKER: DYNAMIC_DEFAULT_BROKER_CONFIG, GROUP: DYNAMIC_GROUP_CONFIG}
"""The source of a value that was set on the resource itself."""
RESOURCES_PER_REQUEST = 100


def own_configs(
    cluster: Endpoint, kind: int, names: Sequence[str], *, hidden: str | None = None
) -> dict[str, dict[str, str]]:
    """By name of a topic or group, the configs that were set on it (DescribeConfigs v4); CommandFailed.

    A value that the cluster does not tell is `hidden`; None leaves the config out.
    """
    found: dict[str, dict[str, str]] = {}
    for name, entries in _described(cluster, kind, names).items():
        values = {entry.name: entry.value for entry in entries if entry.config_source == SOURCES[kind]}
        if hidden is not None:
            values = {config: hidden if value is None else value for config, value in values.items()}
        found[name] = {config: value for config, value in values.items() if value is not None}
    return found


def known_configs(cluster: Endpoint, kind: int, name: str) -> frozenset[str]:
    """The names of all configs that a topic or group has in this cluster; CommandFailed."""
    return frozenset(entry.name for entry in _described(cluster, kind, [name])[name])


def parse_changes(configs: Sequence[str], unset: Sequence[str]) -> dict[str, str | None]:
    """The changes of a command line: values by name, None for one that is taken back. CommandFailed."""
    changes: dict[str, str | None] = dict.fromkeys(unset, None)
    for text in configs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandFailed(f"configs must be NAME=VALUE, found {text!r}", BAD_USE)
        changes[name] = value
    if not changes:
        raise CommandFailed("give at least one NAME=VALUE or --unset NAME", BAD_USE)
    return changes


def check_unset(cluster: Endpoint, kind: int, name: str, changes: Mapping[str, str | None]) -> None:
    """CommandFailed for a config that is to be taken back and is neither known nor set."""
    unset = [config for config, value in changes.items() if value is None and base_name(config) not in TABLES[kind]]
    found = {entry.name for entry in _described(cluster, kind, [name])[name]} if unset else set()
    for config in unset:
        if config not in found:
            near = difflib.get_close_matches(config, [*TABLES[kind], *found], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise CommandFailed(f"{_resource_text(kind, name)} has no config {config}{hint}", BAD_USE)


def changes_text(changes: Mapping[str, str | None]) -> str:
    """`set a, b and unset c`."""
    words = {
        "set": [name for name, value in changes.items() if value is not None],
        "unset": [name for name, value in changes.items() if value is None],
    }
    return " and ".join(f"{verb} {', '.join(names)}" for verb, names in words.items() if names)


def _resource_text(kind: int, name: str) -> str:
    return f"{NAMES[kind]} {name}" if name else f"all {NAMES[kind]}"


def _described(
    cluster: Endpoint, kind: int, names: Sequence[str]
) -> dict[str, Sequence[DescribeConfigsResourceResult]]:
    found: dict[str, Sequence[DescribeConfigsResourceResult]] = {}
    for at in range(0, len(names), RESOURCES_PER_REQUEST):
        resources = [
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for name in names[at : at + RESOURCES_PER_REQUEST]
        ]
        with connect_to_any(cluster.bootstrap, properties=cluster.properties) as connection:
            answer = connection.call(DescribeConfigsRequest(resources=resources), version=4)
        for result in answer.results:
            what = f"describing the configs of {_resource_text(kind, result.resource_name)}"
            refuse(result.error_code, what, result.error_message)
            found[result.resource_name] = result.configs
    return found


def alter_configs(cluster: Endpoint, kind: int, name: str, changes: Mapping[str, str | None]) -> None:
    """Sets configs of a topic, a group or all brokers; None takes one back. CommandFailed."""
    configs = tuple(
        AlterableConfig(name=config, config_operation=DELETE if value is None else SET, value=value)
        for config, value in changes.items()
    )
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    with connect_to_any(cluster.bootstrap, properties=cluster.properties) as connection:
        (result,) = connection.call(request, version=1).responses
    refuse(result.error_code, f"setting configs of {_resource_text(kind, name)}", result.error_message)
