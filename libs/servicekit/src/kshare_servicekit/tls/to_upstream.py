"""TLS and SASL of the connections to an existing cluster, from `kshare.upstream.*`."""

from __future__ import annotations

import ssl

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.configs.jaas import parse_jaas
from kshare_core.configs.upstream import PREFIX
from kshare_upstream.connection import ClientSettings
from kshare_upstream.sasl import PLAIN, Credentials

PROTOCOL = "kshare.upstream.security.protocol"
MECHANISM = "kshare.upstream.sasl.mechanism"
JAAS = "kshare.upstream.sasl.jaas.config"
LOGIN_MODULES = {True: "PlainLoginModule", False: "ScramLoginModule"}
"""The end of the class name, by whether the mechanism is PLAIN."""
STORES = ("kshare.upstream.ssl.truststore.location", "kshare.upstream.ssl.keystore.location")


def client_settings(configs: Configs) -> ClientSettings:
    """The settings of all connections; InvalidConfig if a setting is wrong, missing or without effect."""
    protocol = configs.text(PROTOCOL)
    return ClientSettings(
        client_id=configs.text("kshare.upstream.client.id"),
        tls=_tls(configs, protocol),
        credentials=_credentials(configs, protocol),
        request_timeout_ms=configs.integer("kshare.upstream.request.timeout.ms"),
    )


def _tls(configs: Configs, protocol: str) -> ssl.SSLContext | None:
    if protocol not in ("SSL", "SASL_SSL"):
        given = [name for name in STORES if configs.is_set(name)]
        if given:
            raise InvalidConfig(f"{given[0]} is given, and {PROTOCOL} is {protocol}, which has no TLS")
        return None
    from kshare_servicekit.tls.contexts import client_context  # loads a library that is only needed with TLS
    from kshare_servicekit.tls.material import TlsConfigs

    checks_names = configs.text("kshare.upstream.ssl.endpoint.identification.algorithm") == "https"
    return client_context(TlsConfigs(configs, PREFIX, falls_back=False), checks_names=checks_names)


def _credentials(configs: Configs, protocol: str) -> Credentials | None:
    text = configs.text(JAAS)
    if protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
        if text:
            raise InvalidConfig(f"{JAAS} is given, and {PROTOCOL} is {protocol}, which has no SASL")
        return None
    if not text:
        raise InvalidConfig(f"{PROTOCOL} is {protocol}, and {JAAS} is missing: it has the user and the password")
    mechanism = configs.text(MECHANISM)
    module = parse_jaas(JAAS, text)
    expected = LOGIN_MODULES[mechanism == PLAIN]
    if module.class_name.rpartition(".")[2] != expected:
        raise InvalidConfig(f"{JAAS} must have a {expected} for {MECHANISM}={mechanism}, found {module.class_name}")
    missing = [name for name in ("username", "password") if name not in module.options]
    if missing:
        raise InvalidConfig(f"{JAAS} has no {' and no '.join(missing)}")
    return Credentials(mechanism, module.options["username"], module.options["password"])
