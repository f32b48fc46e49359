"""docs/configs.md: what a line says of a config; `make check` compares the page with the definitions."""

from __future__ import annotations

from kshare_core.configs import BROKER_CONFIGS, GROUP_CONFIGS, PROCESS_CONFIGS, TOPIC_CONFIGS
from kshare_core.configs.rows import double, integer, listing, string
from support.house.config_reference import escaped, page, row


def test_every_config_with_an_effect_has_a_line_and_no_other_has_one() -> None:
    names = {line.split("`")[1] for line in page().splitlines() if line.startswith("| `")}
    tables = (PROCESS_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS)
    assert names == {each.name for table in tables for each in table.values() if each.has_effect}


def test_a_line_has_the_range_the_choices_and_the_broker_config() -> None:
    assert row(integer("a", 2, low=1, high=3, text="A.")) == "| `a` | int | `2` | 1 to 3 | A. |"
    assert row(integer("a", 2, low=1, high=2**31 - 1, text="A.")) == "| `a` | int | `2` | at least 1 | A. |"
    assert row(double("a", 0.5, high=1, text="A.")) == "| `a` | double | `0.5` | at most 1 | A. |"
    assert row(string("a", "", choices=("x", ""), text="A.")) == "| `a` | string | empty | x, empty | A. |"
    assert (
        row(listing("a", ("x", "y"), text="A.", broker_synonym="log.a")) == "| `a` (`log.a`) | list | `x,y` |  | A. |"
    )
    assert row(integer("a", 2, text="A. Not set: derived.")) == "| `a` | int | not set |  | A. Not set: derived. |"


def test_a_line_says_what_can_be_altered() -> None:
    assert row(BROKER_CONFIGS["message.max.bytes"]).endswith(" *altered* |")
    assert row(BROKER_CONFIGS["ssl.keystore.location"]).endswith(" *altered, with a listener's prefix* |")
    assert "altered" not in row(BROKER_CONFIGS["listeners"]), "gateways read it when they start"
    assert "altered" not in row(BROKER_CONFIGS["num.partitions"])


def test_markup_of_a_text_is_escaped_outside_of_code() -> None:
    assert escaped("a_b kshare.* __x <y> `__z|*` [w] a|b") == (r"a_b kshare.\* \_\_x \<y> `__z|*` \[w\] a\|b")
