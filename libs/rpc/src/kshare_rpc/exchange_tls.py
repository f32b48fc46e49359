"""TLS contexts of the streams between roles (mutual TLS), and the roles of a caller by its certificate.

The contexts are made in kshare_servicekit.tls.between_roles. With TLS, a role's operations address serves health
only: it is not encrypted, and all else requires a certificate.

A certificate may name roles, by URIs among its subject's alternative names: kshare://role/leader. It may have several,
as one for `kshare up` does. One without any stands for every role, unless `kshare.rpc.ssl.roles.required` is true: then
it stands for none.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

HANDSHAKE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 1.0
ROLE_URI = "kshare://role/"
EVERY_ROLE = frozenset({"coordinator", "share_coordinator", "leader", "gateway", "administrator"})


@dataclass(frozen=True, slots=True)
class ExchangeTls:
    """The contexts of a role's own server and of its connections to other roles."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    requires_roles: bool = False
    """Whether a certificate must name the roles of its holder."""


def roles_of(connection: ssl.SSLObject | None, *, is_required: bool) -> frozenset[str]:
    """The roles of a connection's peer; without TLS, all of them."""
    if connection is None:
        return EVERY_ROLE
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    uris = [str(name[1]) for name in names if name[0] == "URI" and str(name[1]).startswith(ROLE_URI)]
    if not uris:
        return frozenset() if is_required else EVERY_ROLE
    return frozenset(uri.removeprefix(ROLE_URI) for uri in uris) & EVERY_ROLE
