"""A config that is documented as having an effect is read by code, and one that code reads is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kshare_core.configs.broker
from kshare_core.configs import BROKER_CONFIGS, GROUP_CONFIGS, KSHARE_CONFIGS, TOPIC_CONFIGS, ConfigTable
from kshare_core.configs.broker import BOUNDED_GROUP_CONFIGS, bound_names

ROOT = Path(__file__).parents[4]
OF_CLIENTS = ("kshare_pipeline", "kshare_spark", "kshare_kafka_client", "kshare_upstream")
"""Clients of the gateways, with names of clients' configs, and of clusters, which have configs of their own."""
GROUP_KINDS = ("share", "consumer")
"""What stands for `{self._kind}` in names of groups' configs."""
DESCRIPTIONS = "describe_configs.py"
"""Names configs to tell their synonyms; none has an effect by that."""
IN_LARGER_UNITS = {
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.hours",),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
}
WITHOUT_DOTS = re.compile(r"""configs(?:\[|\.is_set\()["']([a-z]+)["'][\])]""")
OF_A_KIND = re.compile(r"""f"\{self\._kind\}((?:\.[a-z]+)+)\"""")
NAME = re.compile(r"""["']([a-z]+(?:\.[a-z0-9]+)+)["']""")


def names_in_code() -> set[str]:
    """Texts that look like config names, in the code of roles and libraries and of `kshare up`, but for the tables."""
    tables = Path(kshare_core.configs.broker.__file__).parent
    found: set[str] = set()
    for folder in ("services", "libs"):
        for path in sorted((ROOT / folder).glob("*/src/**/*.py")):
            package = path.relative_to(ROOT / folder).parts[2:4]
            if (
                path.name != DESCRIPTIONS
                and package[0] not in OF_CLIENTS
                and tables not in path.parents
                and (package[0] != "kshare" or package[1] == "up")
            ):
                text = path.read_text(encoding="utf-8")
                found.update(NAME.findall(text), WITHOUT_DOTS.findall(text))
                found.update(kind + rest for rest in OF_A_KIND.findall(text) for kind in GROUP_KINDS)
    return found


def used_names() -> set[str]:
    """Names in the code, the broker configs that give those of topics and groups their defaults, and their bounds."""
    used = names_in_code()
    for table in (TOPIC_CONFIGS, GROUP_CONFIGS):
        for definition in table.values():
            if definition.name in used and definition.broker_synonym:
                used.add(definition.broker_synonym)
                if definition.broker_synonym in BOUNDED_GROUP_CONFIGS:
                    used.update(bound_names(definition.broker_synonym))
    for name, larger_units in IN_LARGER_UNITS.items():
        if name in used:
            used.update(larger_units)
    return used


@pytest.mark.parametrize(
    "table",
    [BROKER_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS, KSHARE_CONFIGS],
    ids=["broker", "topic", "group", "kshare"],
)
def test_a_config_has_an_effect_exactly_when_it_is_used(table: ConfigTable) -> None:
    """Else a user would not be warned of a key that does nothing, or be warned of one that works.

    A name is given an effect, or stripped of it, by its row's text.
    """
    used = used_names()
    assert [name for name in table if name in used] == [name for name in table if table[name].has_effect]
