"""TLS contexts of the streams between roles (mutual TLS).

The contexts are made in kshare_servicekit.rpc_tls. With TLS, a role's operations address serves health and reflection
only: it is not encrypted, and methods require a certificate.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

HANDSHAKE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ExchangeTls:
    """The contexts of a role's own server and of its connections to other roles."""

    server: ssl.SSLContext
    client: ssl.SSLContext
