"""Security settings that no listener reads are refused; harmless ones, and those of other listeners, are not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from kshare_core.configs import InvalidConfig, process_configs
from kshare_gateway.connections.listeners import configured_listeners
from kshare_gateway.process import build
from kshare_gateway.security.ignored_settings import check_none_is_ignored
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process_settings import GatewayProcessSettings, read_settings
from support.gateway.harness import environment

STANDARD = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
CLIENT_AUTH, RULES = "ssl.client.auth", "ssl.principal.mapping.rules"
OF_ONE = "listener.name.one"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
ENGINE = {"kshare.engine": "kafka", "kshare.upstream.bootstrap.servers": "kafka:9092"}
UPSTREAM = {**ENGINE, "kshare.upstream.security.protocol": "SASL_SSL"}
CONTROLLER = {
    "listeners": "ONE://:1,CONTROLLER://:2",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "ONE:PLAINTEXT,CONTROLLER:SASL_SSL",
}


def problem(protocol: str, texts: dict[str, str]) -> str:
    """What is refused with one listener of this protocol, which the texts may replace; empty if nothing is."""
    given = {"listeners": "ONE://:1", "listener.security.protocol.map": f"ONE:{protocol}"} if protocol else {}
    configs, _ = process_configs({**given, **texts})
    try:
        check_none_is_ignored(configs, configured_listeners(configs, lambda: "own.example"))
    except InvalidConfig as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    ("protocol", "texts", "named"),
    [
        ("SSL", {"super.users": "User:root"}, "super.users has no effect, since authorizer.class.name is not set"),
        ("", {"super.users": "User:root"}, "super.users has no effect"),
        ("PLAINTEXT", {CLIENT_AUTH: "required"}, "ssl.client.auth has no effect, since no listener has TLS"),
        ("", {CLIENT_AUTH: "required"}, "since no listener has TLS"),
        ("PLAINTEXT", {"ssl.keystore.location": "/k.pem"}, "ssl.keystore.location has no effect"),
        ("PLAINTEXT", {"ssl.truststore.location": "/t.pem"}, "ssl.truststore.location has no effect"),
        ("PLAINTEXT", {"ssl.cipher.suites": "x"}, "ssl.cipher.suites has no effect"),
        (
            "PLAINTEXT",
            {f"{OF_ONE}.{CLIENT_AUTH}": "required"},
            f"{OF_ONE}.{CLIENT_AUTH} has no effect, since listener ONE",
        ),
        ("SSL", {"sasl.enabled.mechanisms": "PLAIN"}, "sasl.enabled.mechanisms has no effect, since no listener has"),
        ("SSL", {"connections.max.reauth.ms": "1"}, "connections.max.reauth.ms has no effect"),
        ("SSL", {"sasl.oauthbearer.expected.audience": "a"}, "sasl.oauthbearer.expected.audience has no effect"),
        ("SSL", {f"{OF_ONE}.sasl.enabled.mechanisms": "PLAIN"}, "since listener ONE is SSL"),
        ("SSL", {f"{OF_ONE}.plain.connections.max.reauth.ms": "1"}, "since listener ONE is SSL"),
        ("SSL", {f"{OF_ONE}.scram-sha-256.sasl.jaas.config": JAAS}, "since listener ONE is SSL"),
        ("SASL_SSL", {CLIENT_AUTH: "required"}, f"set {OF_ONE}.{CLIENT_AUTH} to ask"),
        ("SSL", {**ENGINE, "super.users": "User:root"}, "the cluster's own authorizer decides"),
        ("SASL_SSL", {**UPSTREAM, "sasl.enabled.mechanisms": "PLAIN"}, "the cluster authenticates clients"),
        ("SASL_SSL", {**UPSTREAM, "connection.failed.authentication.delay.ms": "5"}, "the cluster authenticates"),
        ("SASL_SSL", {**UPSTREAM, f"{OF_ONE}.scram-sha-256.sasl.jaas.config": JAAS}, "the cluster authenticates"),
    ],
)
def test_a_setting_that_no_listener_reads_is_refused(protocol: str, texts: dict[str, str], named: str) -> None:
    assert named in problem(protocol, texts)


@pytest.mark.parametrize(
    ("protocol", "texts"),
    [
        ("PLAINTEXT", {"super.users": "", "allow.everyone.if.no.acl.found": "true", CLIENT_AUTH: "none"}),
        (
            "PLAINTEXT",
            {"sasl.enabled.mechanisms": "GSSAPI", "connections.max.reauth.ms": "0", RULES: "RULE:^CN=(.*)$/$1/"},
        ),
        ("PLAINTEXT", {f"{OF_ONE}.{CLIENT_AUTH}": "none", "ssl.keystore.type": "PEM", "ssl.cipher.suites": ""}),
        ("PLAINTEXT", {**STANDARD, "super.users": "User:root", "allow.everyone.if.no.acl.found": "true"}),
        ("SSL", {CLIENT_AUTH: "required", RULES: "RULE:^CN=(.*)$/$1/", "ssl.truststore.location": "/t.pem"}),
        ("SASL_SSL", {CLIENT_AUTH: "required", f"{OF_ONE}.{CLIENT_AUTH}": "none"}),
        ("SASL_PLAINTEXT", {"sasl.enabled.mechanisms": "PLAIN", f"{OF_ONE}.plain.connections.max.reauth.ms": "9"}),
        ("SASL_SSL", {**UPSTREAM, "sasl.server.max.receive.size": "9", "ssl.keystore.location": "/k.pem"}),
        ("", {**CONTROLLER, "ssl.keystore.location": "/k.pem", CLIENT_AUTH: "required"}),
        ("", {**CONTROLLER, "sasl.enabled.mechanisms": "PLAIN"}),
    ],
)
def test_a_harmless_setting_and_one_that_a_listener_reads_are_not(protocol: str, texts: dict[str, str]) -> None:
    assert problem(protocol, texts) == ""


@pytest.mark.parametrize("protects", [True, False])
def test_a_gateway_does_not_start_with_it(protects: bool, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("ssl.client.auth=" + ("required" if protects else "none") + "\n")
    flags = ["--node-id", "1", "--coordinator-address", "c:1", "--config", str(config)]
    settings = read_settings(GatewayProcessSettings, flags, program="x")
    refused = pytest.raises(SettingsError, match=r"server\.properties: ssl\.client\.auth has no effect")
    with refused if protects else nullcontext():
        build(environment(), InProcessNetwork(), settings)
