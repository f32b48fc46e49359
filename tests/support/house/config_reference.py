"""docs/configs.md: all configs that have an effect, from their definitions in `kshare_core.configs`.

PYTHONPATH=tests .venv/bin/python -m support.house.config_reference [--check]

It writes the page; `--check` says whether the page is current, with exit code 1 if it is not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from kshare_core.configs import BROKER_CONFIGS, GROUP_CONFIGS, KSHARE_CONFIGS, TOPIC_CONFIGS, config_text
from kshare_core.configs.authorizer import AUTHORIZER_CONFIGS
from kshare_core.configs.definition import ConfigDefinition, ConfigType
from kshare_core.configs.dynamic import has_no_effect
from kshare_core.configs.listener_names import TLS_CONFIGS
from kshare_core.configs.rows import MAX_DOUBLE, MAX_INT, MAX_LONG
from kshare_core.configs.upstream import UPSTREAM_CONFIGS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configs.md"
COMMAND = "make configs"
_LIMITS = (MAX_INT, MAX_LONG, MAX_DOUBLE)
"""Maxima of types, which say nothing about a config."""
_MARKUP = re.compile(r"[*<|\[\]]|(?<!\w)_+")

_INTRODUCTION = """\
# Configs

All configs that have an effect, generated from their definitions (`make configs`). A process reads its own from the
file of `--config`, as `key=value`. [Operations](operations.md#configure) says which changes need a restart, and how to
alter the configs of topics, groups and running processes.

Kafka's names and defaults are those of Apache Kafka 4.3.1, with the dead letters of 4.4 (KIP-1191). Kafka's other
configs are accepted without effect, with a warning at the start. If one of them is a security setting, a process
refuses to start unless it has Kafka's default. An unknown name is refused.

*not set* means that no default applies: the text says what holds then. Sizes are in bytes, and the end of a name gives
the unit of a time.
"""
_ALTERED = "*altered*: the value can be altered while the processes run (`kshare brokers set`, `kafka-configs.sh`)."


def page() -> str:
    """The whole page, with a line break at its end."""
    chapters = [
        _chapter("kshare's own configs", "They are read when a process starts.", KSHARE_CONFIGS.values()),
        _chapter(
            "The connection to an existing cluster",
            "For `kshare attach`, `kshare.engine=kafka` and `kshare.metadata.store=kafka` "
            "([existing clusters](existing-clusters.md)). They are read when a process starts.",
            UPSTREAM_CONFIGS.values(),
        ),
        _chapter(
            "Kafka's broker configs",
            f"{_ALTERED} Configs of TLS and SASL can be given for one listener or mechanism, as "
            "`listener.name.NAME.ssl.keystore.location` ([secured listeners](secured-listeners.md)).",
            BROKER_CONFIGS.values(),
        ),
        _chapter("Configs of the authorizer", "With `authorizer.class.name`.", AUTHORIZER_CONFIGS.values()),
        _chapter(
            "Configs of a topic",
            "`kshare topics create --config`, `kafka-configs.sh --entity-type topics`. "
            "The value of the broker config in brackets, where it is set, is the default.",
            TOPIC_CONFIGS.values(),
        ),
        _chapter(
            "Configs of a group",
            "`kshare groups set`, `kafka-configs.sh --entity-type groups`. The value of the broker config in brackets, "
            "where it is set, is the default. Broker configs with `min` and `max` in their names bound the values.",
            GROUP_CONFIGS.values(),
        ),
    ]
    return "\n".join([_INTRODUCTION, *chapters])


def _chapter(heading: str, text: str, definitions: Iterable[ConfigDefinition]) -> str:
    rows = [row(each) for each in sorted(definitions, key=lambda each: each.name) if each.has_effect]
    header = "| config | type | default | allowed | what it does |\n|---|---|---|---|---|"
    return "\n".join([f"## {heading}", text, "", header, *rows, ""])


def row(definition: ConfigDefinition) -> str:
    """A config's line of its table."""
    name = f"`{definition.name}`"
    if definition.broker_synonym is not None:
        name += f" (`{definition.broker_synonym}`)"
    text = escaped(definition.documentation)
    if not definition.read_only and not has_no_effect(definition.name, config_text(definition.default) or ""):
        text += " *altered, with a listener's prefix*" if definition.name in TLS_CONFIGS else " *altered*"
    allowed = ", ".join(_allowed(definition))
    return f"| {name} | {definition.type.name.lower()} | {_default(definition)} | {allowed} | {text} |"


def _default(definition: ConfigDefinition) -> str:
    text = config_text(definition.default)
    if definition.default is None or "Not set: " in definition.documentation:
        return "not set"
    return f"`{text}`" if text else "empty"


def _allowed(definition: ConfigDefinition) -> Iterator[str]:
    if definition.type is ConfigType.BOOLEAN:
        yield from ("true", "false")
    yield from (choice or "empty" for choice in definition.choices)
    low = None if definition.minimum is None else f"{definition.minimum}"
    high = None if definition.maximum is None or definition.maximum in _LIMITS else f"{definition.maximum}"
    if low is not None and high is not None:
        yield f"{low} to {high}"
    elif low is not None:
        yield f"at least {low}"
    elif high is not None:
        yield f"at most {high}"


def escaped(text: str) -> str:
    """A text for a cell of a table; parts in backticks stay as they are."""
    parts = text.split("`")
    parts[::2] = [_MARKUP.sub(lambda found: "".join(f"\\{each}" for each in found[0]), part) for part in parts[::2]]
    return "`".join(parts)


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        sys.stderr.write(f"{PAGE.name} is not what the definitions of the configs say: {COMMAND}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
