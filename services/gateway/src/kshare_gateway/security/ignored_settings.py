"""Security settings that no listener of a gateway reads: the gateway does not start with them.

Their administrator believes that they protect something, such as `ssl.client.auth` at a listener without TLS.
A setting with Kafka's default is harmless. A setting without a prefix may be for the listeners of Kafka's controllers,
which a gateway does not open.

Only gateways check this: the other roles read the same file, and have no clients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.configs.listener_names import SASL_MECHANISMS
from kshare_gateway.connections.listeners import SSL, GatewayListener, has_sasl, has_tls, protocols_of_controllers
from kshare_gateway.upstream.identities import AUTHORIZER, CLIENT_AUTHENTICATION
from kshare_servicekit.existing_cluster import ENGINE, KAFKA

OF_AUTHORIZER = ("super.users",)
"""Without allow.everyone.if.no.acl.found, which opens: where nothing authorizes, all is open as it says."""
OF_TLS = (
    CLIENT_AUTHENTICATION,
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
)
"""Without types and passwords of stores, which say nothing alone.

Also without ssl.principal.mapping.rules: they name clients that have shown a certificate, and keep none out.
"""
OF_SASL = (
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.server.callback.handler.class",
)
FAILURE_DELAY = "connection.failed.authentication.delay.ms"


def check_none_is_ignored(configs: Configs, listeners: Sequence[GatewayListener]) -> None:
    """InvalidConfig for a security setting without effect at these listeners."""
    is_kafka = configs.text(ENGINE) == KAFKA
    if is_kafka or not configs.text(AUTHORIZER):
        why = f"with {ENGINE}={KAFKA} the cluster's own authorizer decides" if is_kafka else f"{AUTHORIZER} is not set"
        _refuse(configs, OF_AUTHORIZER, why)
    if is_kafka:
        _check_authentication_of_cluster(configs, listeners)
    _check_without_prefix(configs, listeners, is_kafka=is_kafka)
    for listener in listeners:
        _check_listener(configs, listener, is_kafka=is_kafka)


def _check_authentication_of_cluster(configs: Configs, listeners: Sequence[GatewayListener]) -> None:
    """In front of an existing cluster, it is what authenticates clients."""
    why = f"with {ENGINE}={KAFKA} the cluster authenticates clients"
    _refuse(configs, [*OF_SASL, FAILURE_DELAY], why)
    for listener in listeners:
        _refuse(configs, _names_of(configs, listener, OF_SASL), why)


def _check_without_prefix(configs: Configs, listeners: Sequence[GatewayListener], *, is_kafka: bool) -> None:
    protocols = {*(each.security_protocol for each in listeners), *protocols_of_controllers(configs)}
    if not any(map(has_tls, protocols)):
        _refuse(configs, OF_TLS, "no listener has TLS")
    elif SSL not in protocols:
        own = [f"{each.config_prefix}{CLIENT_AUTHENTICATION}" for each in listeners if each.is_tls]
        if not all(map(configs.is_set, own)):
            advice = f"it is for listeners of {SSL} only (KIP-684); set {', '.join(own)} to ask their clients"
            _refuse(configs, [CLIENT_AUTHENTICATION], f"all listeners with TLS have SASL: {advice}")
    if not is_kafka and not any(map(has_sasl, protocols)):
        _refuse(configs, OF_SASL, "no listener has SASL")


def _check_listener(configs: Configs, listener: GatewayListener, *, is_kafka: bool) -> None:
    where = f"listener {listener.name} is {listener.security_protocol}"
    if not listener.is_tls:
        _refuse(configs, _names_of(configs, listener, OF_TLS), where)
    if not listener.is_sasl and not is_kafka:
        _refuse(configs, _names_of(configs, listener, OF_SASL), where)


def _names_of(configs: Configs, listener: GatewayListener, names: Collection[str]) -> Iterator[str]:
    """The configs with the listener's prefix, also those of one mechanism of it."""
    for name in configs:
        if name.startswith(listener.config_prefix):
            mechanism, _, of_mechanism = name.removeprefix(listener.config_prefix).partition(".")
            is_of_mechanism = mechanism.upper() in SASL_MECHANISMS and of_mechanism in names
            if name.removeprefix(listener.config_prefix) in names or is_of_mechanism:
                yield name


def _refuse(configs: Configs, names: Collection[str] | Iterator[str], why: str) -> None:
    for name in names:
        if configs.is_set(name) and configs[name] != configs.table[name].default:
            raise InvalidConfig(f"{name} has no effect, since {why}: remove it, or what it is to protect is open")
