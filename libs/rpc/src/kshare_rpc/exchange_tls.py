"""TLS of the streams between roles: each end shows a certificate and checks the other's.

Contexts are made elsewhere (kshare_servicekit.rpc_tls). With them, the operations face of a role is health and
reflection only: it is not encrypted, and methods are for those who have a certificate.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

HANDSHAKE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ExchangeTls:
    """What a role's own server and its connections to others use."""

    server: ssl.SSLContext
    client: ssl.SSLContext
