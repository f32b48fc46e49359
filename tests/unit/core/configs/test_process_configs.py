"""Configs of a process: keys without effect, contradictions."""

from __future__ import annotations

import pytest

from kshare_core.configs import InvalidConfig, process_configs


def test_keys_without_effect_are_taken_with_a_warning() -> None:
    configs, warnings = process_configs({"num.io.threads": "4", "num.partitions": "3", "kshare.node.lease.ms": "5000"})
    assert configs.integer("num.partitions") == 3 and configs.integer("kshare.node.lease.ms") == 5000
    assert len(warnings) == 1 and "num.io.threads" in warnings[0]


def test_values_of_keys_without_effect_are_checked_all_the_same() -> None:
    with pytest.raises(InvalidConfig, match=r"num\.io\.threads"):
        process_configs({"num.io.threads": "none"})


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"group\.share\.session\.timeout\.ms"):
        process_configs({"group.share.session.timeout.ms": "70000"})


@pytest.mark.parametrize("name", ["kshare.gateway.busy.poll.max.us", "kshare.no.such.config"])
def test_a_config_of_kshare_that_does_not_exist_is_refused_by_name(name: str) -> None:
    """kshare.gateway.busy.poll.max.us existed before the gateway's busy polling was removed."""
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        process_configs({name: "0"})
