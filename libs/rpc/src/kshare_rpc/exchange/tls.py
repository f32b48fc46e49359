"""TLS contexts of the streams between roles (mutual TLS), and the roles of a caller by its certificate.

The contexts are made in kshare_servicekit.tls.between_roles. With TLS, a role's operations address serves health
only: it is not encrypted, and all else requires a certificate.

A certificate may name roles, by URIs among its subject's alternative names: kshare://role/leader. It may have several,
as one for `kshare up` does. One without any stands for every role, unless `kshare.rpc.ssl.roles.required` is true: then
it stands for none.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

HANDSHAKE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 1.0
ROLE_URI = "kshare://role/"
SHORT_NAMES = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}
EVERY_ROLE = frozenset({"coordinator", "share_coordinator", "leader", "gateway", "administrator"})


@dataclass(frozen=True, slots=True)
class ExchangeTls:
    """The contexts of a role's own server and of its connections to other roles."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    expires_at_s: Callable[[], float]
    """The earliest expiry of this role's own certificates, as they are now, in seconds since 1970."""
    requires_roles: bool = False
    """Whether a certificate must name the roles of its holder."""


class Caller(NamedTuple):
    """The other end of a connection, as far as it is known."""

    roles: frozenset[str]
    name: str
    """The subject of its certificate, such as CN=leader; ANONYMOUS without one."""
    host: str


ANYBODY = Caller(EVERY_ROLE, "ANONYMOUS", "")


def caller_of(connection: ssl.SSLObject | None, host: str, *, is_required: bool) -> Caller:
    """Who is at the other end; without TLS it may do what every role may."""
    if connection is None:
        return ANYBODY._replace(host=host)
    certificate = connection.getpeercert() or {}
    subject: Any = certificate.get("subject", ())
    name = ",".join(f"{SHORT_NAMES.get(key, key)}={value}" for part in subject for key, value in part)
    alternatives: Any = certificate.get("subjectAltName", ())
    uris = [str(found) for kind, found in alternatives if kind == "URI" and str(found).startswith(ROLE_URI)]
    if uris:
        return Caller(frozenset(uri.removeprefix(ROLE_URI) for uri in uris) & EVERY_ROLE, name, host)
    return Caller(frozenset() if is_required else EVERY_ROLE, name, host)
