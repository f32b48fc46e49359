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


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"authorizer.class.name": "example.OwnAuthorizer"}, "example.OwnAuthorizer"),
        ({"sasl.kerberos.service.name": "kafka"}, "kafka"),
        ({"security.inter.broker.protocol": "SASL_SSL"}, "SASL_SSL"),
        ({"delegation.token.max.lifetime.ms": "60000"}, "60000"),
        ({"max.connection.creation.rate": "10"}, "10"),
        ({"create.topic.policy.class.name": "example.OnlyReplicated"}, "example.OnlyReplicated"),
        (
            {"listeners": "TLS://:9093", "listener.name.tls.ssl.engine.factory.class": "example.Factory"},
            "example.Factory",
        ),
    ],
    ids=lambda value: list(value)[-1] if isinstance(value, dict) else "",
)
def test_a_security_setting_that_is_not_implemented_is_refused_by_name(texts: dict[str, str], named: str) -> None:
    name = list(texts)[-1]
    with pytest.raises(InvalidConfig) as refused:
        process_configs(texts)
    assert name in str(refused.value) and named in str(refused.value)


def test_the_refusal_of_a_secret_does_not_show_it() -> None:
    with pytest.raises(InvalidConfig, match=r"delegation\.token\.secret\.key is a security setting") as refused:
        process_configs({"delegation.token.secret.key": "planted"})
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    "texts",
    [
        {"sasl.kerberos.kinit.cmd": " /usr/bin/kinit "},
        {"security.inter.broker.protocol": "PLAINTEXT", "max.connection.creation.rate": "2147483647"},
    ],
)
def test_a_security_setting_with_kafkas_default_asks_for_nothing(texts: dict[str, str]) -> None:
    _, warnings = process_configs(texts)
    assert [name for name in texts if any(name in warning for warning in warnings)] == list(texts)
