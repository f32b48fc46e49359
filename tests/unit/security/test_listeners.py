"""Kafka's `listeners` and `advertised.listeners`: their meaning, and the error text for each refused value."""

from __future__ import annotations

import pytest

from kshare_core.configs import InvalidConfig, process_configs
from kshare_gateway.connections.listeners import configured_listeners, joined
from kshare_gateway.security.configuration import tls_configs, tls_warnings
from kshare_gateway.settings import GatewaySettings

MAP = "listener.security.protocol.map"
CLIENT_AUTH = "ssl.client.auth"


def found(**texts: str) -> list[tuple[str, str, str, int, str, int]]:
    configs, _ = process_configs({name.replace("_", "."): text for name, text in texts.items()})
    return [
        (each.name, each.security_protocol, each.host, each.port, each.advertised_host, each.advertised_port)
        for each in configured_listeners(configs, lambda: "own.example")
    ]


def test_without_listeners_there_are_none() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092"},
            [("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1", 9092)],
        ),
        ({"listeners": "ssl://:9093"}, [("SSL", "SSL", "", 9093, "own.example", 9093)]),
        (
            {"listeners": "SSL://[::1]:9093, PLAINTEXT://a-b.c_d:0"},
            [("SSL", "SSL", "::1", 9093, "::1", 9093), ("PLAINTEXT", "PLAINTEXT", "a-b.c_d", 0, "a-b.c_d", 0)],
        ),
        (
            {"listeners": "SSL://0.0.0.0:9093", "advertised.listeners": "SSL://gateway.example:443"},
            [("SSL", "SSL", "0.0.0.0", 9093, "gateway.example", 443)],
        ),
        (
            {
                "listeners": "IN://:1,OUT://:2",
                MAP: "in:plaintext,OUT:SSL",
                "advertised.listeners": "OUT://o:4,IN://i:3",
            },
            [("IN", "PLAINTEXT", "", 1, "i", 3), ("OUT", "SSL", "", 2, "o", 4)],
        ),
        (
            {"listeners": "A://127.0.0.1:1,B://[::1]:1", MAP: "A:SSL,B:SSL"},
            [("A", "SSL", "127.0.0.1", 1, "127.0.0.1", 1), ("B", "SSL", "::1", 1, "::1", 1)],
        ),
        (  # what the chart says of a pod with an IPv6 address, which Kubernetes fills in without brackets
            {
                "listeners": "PLAINTEXT://:9092,EXTERNAL://:9094",
                MAP: "PLAINTEXT:PLAINTEXT,EXTERNAL:SSL",
                "advertised.listeners": "PLAINTEXT://fd00::7:9092,EXTERNAL://[2001:db8::1]:443",
            },
            [("PLAINTEXT", "PLAINTEXT", "", 9092, "fd00::7", 9092), ("EXTERNAL", "SSL", "", 9094, "2001:db8::1", 443)],
        ),
        (
            {
                "listeners": "SASL_SSL://a:9092,CONTROLLER://a:9093,Other://a:9094",
                "controller.listener.names": "controller, other",
                "advertised.listeners": "SASL_SSL://b:9092",
            },
            [("SASL_SSL", "SASL_SSL", "a", 9092, "b", 9092)],
        ),
        (
            {
                "listeners": "CONTROLLER://:9093,PLAINTEXT://a:9092",
                "controller.listener.names": "CONTROLLER",
                "advertised.listeners": "PLAINTEXT://b:9092,CONTROLLER://b:9093",
            },
            [("PLAINTEXT", "PLAINTEXT", "a", 9092, "b", 9092)],
        ),
    ],
)
def test_what_listeners_say(texts: dict[str, str], expected: list[tuple[str, str, str, int, str, int]]) -> None:
    assert found(**texts) == expected


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"listeners": ""}, "listeners has 0 entries; 1 to 20 are allowed"),
        ({"listeners": "127.0.0.1:9092"}, r"'127.0.0.1:9092'; an entry must be NAME://HOST:PORT"),
        ({"listeners": "SSL://a:65536"}, "'SSL://a:65536'; an entry must be"),
        ({"listeners": "SSL://a b:1"}, "an entry must be"),
        ({"listeners": "SSL://a:1,ssl://b:2"}, "listeners has SSL more than once"),
        ({"listeners": "SSL://a:1,PLAINTEXT://b:1"}, "port 1 for SSL,PLAINTEXT; each needs a port of its own"),
        ({"listeners": "EXTERNAL://a:1"}, f"EXTERNAL, which is missing in {MAP}"),
        (
            {"listeners": "SSL://a:1", MAP: "SSL:KERBEROS"},
            "has KERBEROS for SSL; allowed are PLAINTEXT and SSL",
        ),
        ({"listeners": "SSL://a:1", MAP: "SSL"}, "'SSL'; it must be NAME:PROTOCOL"),
        ({"listeners": "SSL://a:1", MAP: "SSL:SSL,ssl:SSL"}, "each name once"),
        ({"listeners": "SSL://a:1", "advertised.listeners": "PLAINTEXT://a:1"}, "PLAINTEXT, which listeners does not"),
        (
            {"listeners": "SSL://a:1,PLAINTEXT://a:2", "advertised.listeners": "SSL://a:1"},
            "lacks PLAINTEXT, which listeners has",
        ),
        ({"listeners": "SSL://a:1", "advertised.listeners": "SSL://0.0.0.0:1"}, "SSL at 0.0.0.0, a wildcard address"),
        ({"listeners": "SSL://0.0.0.0:9093"}, "SSL at 0.0.0.0, a wildcard address; set advertised.listeners"),
        ({"listeners": "SSL://a:1", "advertised.listeners": "SSL://a:0"}, "port 0 for SSL"),
        ({"advertised.listeners": "SSL://a:1"}, "set without listeners"),
        ({"listener.name.ssl.ssl.client.auth": "none"}, "ssl.client.auth is set without listeners"),
        (
            {"listeners": "CONTROLLER://a:1", "controller.listener.names": "CONTROLLER"},
            "has only those of controller.listener.names; a gateway does not open these",
        ),
    ],
)
def test_what_is_refused(texts: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        found(**texts)


def test_tls_configs_of_one_listener_are_known_for_the_listeners_that_there_are() -> None:
    texts = {"listeners": "SSL://:1,Inner://:2", "listener.name.inner.ssl.client.auth": "required"}
    configs, warnings = process_configs(texts)
    assert configs["listener.name.inner.ssl.client.auth"] == "required" and warnings == []
    for name, value, problem in (
        ("listener.name.other.ssl.client.auth", "required", "Unknown configuration listener.name.other"),
        ("listener.name.inner.ssl.client.auth", "perhaps", "Invalid value perhaps"),
        ("listener.name.inner.num.partitions", "1", "Unknown configuration"),
    ):
        with pytest.raises(InvalidConfig, match=problem):
            process_configs({**texts, name: value})


def test_a_role_without_listeners_reads_the_file_of_the_gateways() -> None:
    configs, warnings = process_configs({"listener.name.external.ssl.client.auth": "required"})
    assert configs["listener.name.external.ssl.client.auth"] == "required" and warnings == []
    for name in ("listener.name.external.num.partitions", "listener.name.external"):
        with pytest.raises(InvalidConfig, match="Unknown configuration"):
            process_configs({name: "1"})


@pytest.mark.parametrize(
    ("protocol", "texts", "in_force", "warned"),
    [
        ("SSL", {}, "none", False),
        ("SSL", {CLIENT_AUTH: "required"}, "required", False),
        ("SSL", {CLIENT_AUTH: "required", f"listener.name.one.{CLIENT_AUTH}": "none"}, "none", False),
        ("SASL_SSL", {CLIENT_AUTH: "required"}, "none", True),
        ("SASL_SSL", {CLIENT_AUTH: "none"}, "none", False),
        ("SASL_SSL", {f"listener.name.one.{CLIENT_AUTH}": "required"}, "required", False),
        ("SASL_SSL", {CLIENT_AUTH: "required", f"listener.name.one.{CLIENT_AUTH}": "requested"}, "requested", False),
        ("SASL_PLAINTEXT", {CLIENT_AUTH: "required"}, "none", False),
    ],
)
def test_with_sasl_clients_need_a_certificate_only_if_the_listener_says_so(
    protocol: str, texts: dict[str, str], in_force: str, warned: bool
) -> None:
    configs, _ = process_configs({"listeners": "ONE://:1", MAP: f"ONE:{protocol}", **texts})
    (listener,) = configured_listeners(configs, lambda: "own.example")
    assert tls_configs(configs, listener).text(CLIENT_AUTH) == in_force
    warnings = tls_warnings(configs, listener)
    assert bool(warnings) is warned
    assert all("set listener.name.one.ssl.client.auth=required" in warning for warning in warnings)


def test_one_listener_where_the_flags_say_it() -> None:
    configs, _ = process_configs({})
    settings = GatewaySettings(
        node_id=1,
        client_listen="[::1]:9092",
        advertised_host="",
        advertised_port=7,
        coordinator_address="c:1",
        configs=configs,
    )
    (only,) = settings.all_listeners()
    assert (only.name, only.is_tls, only.host, only.port, only.advertised_port) == ("PLAINTEXT", False, "::1", 9092, 7)
    assert str(only) == "PLAINTEXT://[::1]:9092" and joined("a", 1) == "a:1"
