"""Group configs (Kafka's GroupConfig): the values of one group, within the bounds of the broker configs.

A value outside the bounds is refused when it is set. When the broker's bounds change later, stored values are moved to
the nearest bound (GroupConfig.evaluate).
"""

from __future__ import annotations

from collections.abc import Mapping

from kshare_core.configs.broker import BOUNDED_GROUP_CONFIGS, bound_names
from kshare_core.configs.definition import Configs, ConfigTable, ConfigValue, InvalidConfig, config_text, find_config
from kshare_core.configs.group_rows import GROUP_ROWS

GROUP_CONFIGS: ConfigTable = {
    definition.name: definition for definition in sorted(GROUP_ROWS, key=lambda row: row.name)
}

_MORE_BOUNDS = {"streams.num.standby.replicas": (None, "group.streams.max.standby.replicas")}


def _bounds(name: str) -> tuple[str | None, str | None]:
    """The broker configs with the minimum and the maximum of a group config; None for none."""
    synonym = GROUP_CONFIGS[name].broker_synonym
    if synonym in BOUNDED_GROUP_CONFIGS:
        return bound_names(synonym)
    return _MORE_BOUNDS.get(name, (None, None))


def check_group_config(broker: Configs, name: str, text: str) -> ConfigValue:
    """The value of a group config; InvalidConfig if it does not exist or the broker does not allow the value."""
    value = find_config(GROUP_CONFIGS, name).parse(text)
    least, most = _bounds(name)
    if isinstance(value, int):
        if least is not None and value < broker.integer(least):
            raise InvalidConfig(
                f"Invalid value {value} for configuration {name}: must be at least {least}={broker[least]}"
            )
        if most is not None and value > broker.integer(most):
            raise InvalidConfig(
                f"Invalid value {value} for configuration {name}: must be at most {most}={broker[most]}"
            )
    return value


def check_group_configs(broker: Configs, texts: Mapping[str, str]) -> Configs:
    """The checked configs of a group; InvalidConfig also if two of them contradict each other."""
    for name, text in texts.items():
        check_group_config(broker, name, text)
    configs = effective_group_config(broker, texts)
    for kind in ("share", "consumer", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if (configs.is_set(session) or configs.is_set(heartbeat)) and configs.integer(session) <= configs.integer(
            heartbeat
        ):
            raise InvalidConfig(
                f"{session} must be greater than {heartbeat}; they are {configs[session]} and {configs[heartbeat]}"
            )
    return configs


def effective_group_config(broker: Configs, texts: Mapping[str, str]) -> Configs:
    """A group's values: its own stored `texts`, moved into the broker's bounds, else the broker's; InvalidConfig."""
    inherited: dict[str, ConfigValue] = {}
    for name, definition in GROUP_CONFIGS.items():
        if definition.broker_synonym is not None and broker.is_set(definition.broker_synonym):
            inherited[name] = broker[definition.broker_synonym]
    bounded = {name: _into_bounds(broker, name, text) for name, text in texts.items()}
    return Configs(GROUP_CONFIGS, bounded, inherited=inherited)


def known_group_texts(broker: Configs, texts: Mapping[str, str]) -> tuple[dict[str, str], list[InvalidConfig]]:
    """Those of a group's stored texts that this version takes, and what is wrong with the others.

    The coordinator refuses such texts, so that one of another version has stored them.
    """
    known: dict[str, str] = {}
    problems: list[InvalidConfig] = []
    for name, text in texts.items():
        try:
            _into_bounds(broker, name, text)
        except InvalidConfig as problem:
            problems.append(problem)
        else:
            known[name] = text
    return known, problems


def _into_bounds(broker: Configs, name: str, text: str) -> str:
    value = find_config(GROUP_CONFIGS, name).parse_stored(text)
    least, most = _bounds(name)
    if isinstance(value, int) and not isinstance(value, bool):
        if least is not None:
            value = max(value, broker.integer(least))
        if most is not None:
            value = min(value, broker.integer(most))
    return config_text(value) or ""
