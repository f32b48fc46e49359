"""Mutual TLS between roles from the configs `kshare.rpc.ssl.*`.

With a keystore every stream between roles is TLS 1.3, and each end must show a certificate that the other's truststore
accepts; peers without one are rejected. All roles, and the commands that call them, need the same configs. Files are
checked again at each new connection, so renewed certificates are used from then on.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kshare_core.configs import Configs, InvalidConfig, process_configs
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_servicekit.properties import parse_properties

CONFIG_VARIABLES = ("KSHARE_CONFIG", "KSHARE_CONFIG_SECRET")
"""Variables with the config files of commands in other processes, like the roles' own flags."""
_STORE_CONFIGS = (
    "kshare.rpc.ssl.keystore.location",
    "kshare.rpc.ssl.keystore.type",
    "kshare.rpc.ssl.keystore.password",
    "kshare.rpc.ssl.key.password",
    "kshare.rpc.ssl.truststore.location",
    "kshare.rpc.ssl.truststore.type",
    "kshare.rpc.ssl.truststore.password",
)
_PREFIX = "kshare.rpc."


class _NewestContext(ssl.SSLContext):
    """A proxy for the newest context at the start of a connection."""

    newest: Callable[[], ssl.SSLContext]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.newest().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def exchange_tls(configs: Configs) -> ExchangeTls | None:
    """The TLS contexts from the configs; None without a keystore. InvalidConfig if it cannot be used."""
    if not configs.text("kshare.rpc.ssl.keystore.location"):
        given = [name for name in _STORE_CONFIGS if configs.is_set(name)]
        if given:
            text = f"{given[0]} is given without kshare.rpc.ssl.keystore.location"
            raise InvalidConfig(f"{text}, which switches TLS between roles on")
        return None
    pair = _RenewedPair(configs)
    return ExchangeTls(
        _standing_for(ssl.PROTOCOL_TLS_SERVER, pair.server),
        _standing_for(ssl.PROTOCOL_TLS_CLIENT, pair.client),
        pair.expires_at_s,
        requires_roles=configs.boolean("kshare.rpc.ssl.roles.required"),
    )


def needs_known_roles(configs: Configs, *, has_users: bool = False) -> bool:
    """Whether clients authenticate or need permissions, and nothing keeps strangers from the roles' own ports.

    An authorizer gives permissions, and so may an existing cluster at which clients authenticate. `has_users`: clients
    authenticate at a listener of a gateway.
    """
    asks_clients = has_users or _has_authorizer(configs) or _has_users_of_cluster(configs)
    return (asks_clients or _requires_roles(configs)) and not _has_keystore(configs)


def check_roles_are_known(configs: Configs) -> None:
    """InvalidConfig if an authorizer or `kshare.rpc.ssl.roles.required` is set, and roles take calls from everybody."""
    if _requires_roles(configs) and not _has_keystore(configs):
        raise InvalidConfig(
            "kshare.rpc.ssl.roles.required is true without kshare.rpc.ssl.keystore.location: without TLS between roles "
            "no caller's role is known"
        )
    if _has_authorizer(configs) and not _has_keystore(configs):
        raise InvalidConfig(
            "authorizer.class.name is set without kshare.rpc.ssl.keystore.location: whoever reaches the roles' ports "
            "could do what ACLs deny; give each role a certificate (kshare.rpc.ssl.*)"
        )


def _requires_roles(configs: Configs) -> bool:
    return configs.boolean("kshare.rpc.ssl.roles.required")


def _has_authorizer(configs: Configs) -> bool:
    return bool(configs.text("authorizer.class.name"))


def _has_users_of_cluster(configs: Configs) -> bool:
    return configs.text("kshare.engine") == "kafka" and configs.text("kshare.upstream.security.protocol").startswith(
        "SASL"
    )


def _has_keystore(configs: Configs) -> bool:
    return bool(configs.text("kshare.rpc.ssl.keystore.location"))


def exchange_tls_of_variables(
    environment: Mapping[str, str] = os.environ, *, without_variables: Path | None = None
) -> ExchangeTls | None:
    """The TLS contexts from the files in CONFIG_VARIABLES, or from another file if none of them is set.

    OSError or ValueError (InvalidConfig is one).
    """
    paths = [Path(environment[name]) for name in CONFIG_VARIABLES if environment.get(name)]
    if not paths and without_variables is not None:
        paths = [without_variables]
    properties: dict[str, str] = {}
    for path in paths:
        properties |= parse_properties(path.read_text(encoding="utf-8"))
    return exchange_tls(process_configs(properties)[0])


def _standing_for(protocol: int, newest: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    context = _NewestContext(protocol)
    context.newest = newest
    return context


class _RenewedPair:
    """The contexts of both sides, renewed at use; InvalidConfig if they cannot be made the first time."""

    def __init__(self, configs: Configs) -> None:
        from kshare_servicekit.tls.contexts import MutualTls  # loads a library that is rarely needed
        from kshare_servicekit.tls.material import TlsConfigs

        checks_names = configs.text("kshare.rpc.ssl.endpoint.identification.algorithm") == "https"
        self._tls = MutualTls(TlsConfigs(configs, _PREFIX, falls_back=False), checks_names=checks_names)

    def server(self) -> ssl.SSLContext:
        self._renew()
        return self._tls.server

    def client(self) -> ssl.SSLContext:
        self._renew()
        return self._tls.client

    def expires_at_s(self) -> float:
        """Of renewed files before a connection uses them: streams between roles last for long."""
        self._renew()
        return self._tls.expires_at_s

    def _renew(self) -> None:
        try:
            if self._tls.renew():
                _logger().info("loaded new certificates for connections between roles")
        except InvalidConfig as problem:
            _logger().error(
                "keeping the former certificates for connections between roles, the new ones are invalid",
                reason=str(problem),
            )


def _logger() -> Any:
    from kshare_servicekit.logs import structlog  # commands that call roles log nothing

    return structlog.stdlib.get_logger("kshare")
