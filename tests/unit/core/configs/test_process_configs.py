"""Configs of a process: keys without effect, contradictions."""

from __future__ import annotations

import pytest

from kshare_core.configs import InvalidConfig, process_configs

TLS = {"listeners": "TLS://:9093"}
BEARER = "listener.name.tls.oauthbearer"
SECURITY = "org.apache.kafka.common.security"


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
        ({**TLS, "listener.name.tls.ssl.engine.factory.class": "example.Factory"}, "example.Factory"),
        ({**TLS, "listener.name.tls.principal.builder.class": "example.Builder"}, "example.Builder"),
        ({**TLS, "listener.name.tls.max.connection.creation.rate": "10"}, "10"),
        ({**TLS, "listener.name.tls.sasl.kerberos.service.name": "kafka"}, "kafka"),
        ({**TLS, "listener.name.tls.sasl.oauthbearer.jwt.validator.class": "example.Strict"}, "example.Strict"),
        ({**TLS, f"{BEARER}.sasl.oauthbearer.jwt.validator.class": "example.Strict"}, "example.Strict"),
        ({**TLS, f"{BEARER}.sasl.login.callback.handler.class": "example.Login"}, "example.Login"),
        ({**TLS, "listener.name.tls.scram-sha-512.sasl.login.class": "example.Login"}, "example.Login"),
        (
            {"listeners": "A.B://:1", "listener.name.a.b.plain.sasl.login.callback.handler.class": "example.Login"},
            "example.Login",
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
        {"listener.name.tls.principal.builder.class": f"{SECURITY}.authenticator.DefaultKafkaPrincipalBuilder"},
        {f"{BEARER}.sasl.oauthbearer.jwt.validator.class": f"{SECURITY}.oauthbearer.DefaultJwtValidator"},
    ],
)
def test_a_security_setting_with_kafkas_default_asks_for_nothing(texts: dict[str, str]) -> None:
    _, warnings = process_configs({**TLS, **texts})
    assert [name for name in texts if any(name in warning for warning in warnings)] == list(texts)


def test_configs_that_one_listener_may_have() -> None:
    texts = {
        **TLS,
        "listener.name.tls.ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
        "listener.name.tls.max.connections": "5",
        "listener.name.tls.num.network.threads": "2",
    }
    configs, warnings = process_configs(texts)
    assert configs["listener.name.tls.ssl.principal.mapping.rules"] == "RULE:^CN=(.*?)$/$1/"
    assert configs["listener.name.tls.max.connections"] == 5
    assert warnings == ["listener.name.tls.num.network.threads is a Kafka config without effect in kshare"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.providers", "vault"),
        ("config.providers.file.class", "org.apache.kafka.common.config.provider.FileConfigProvider"),
        ("ssl.keystore.password", "${file:/etc/secrets/server.properties:password}"),
        ("listener.name.tls.plain.sasl.jaas.config", 'org.example.Module required user_a="${env:PASSWORD}";'),
        ("num.partitions", "${directory:/etc/kafka:partitions}"),
    ],
)
def test_config_providers_are_refused_with_what_to_do_instead(name: str, text: str) -> None:
    """Taken as it is, a placeholder would be the password."""
    with pytest.raises(InvalidConfig, match="write the values themselves into the file") as refused:
        process_configs({**TLS, name: text})
    assert str(refused.value).startswith(name) and text not in str(refused.value)


def test_values_that_look_like_a_placeholder_only() -> None:
    configs, _ = process_configs({"config.providers": "", "broker.rack": "$a{b:c} ${d} ${}"})
    assert configs["broker.rack"] == "$a{b:c} ${d} ${}"
