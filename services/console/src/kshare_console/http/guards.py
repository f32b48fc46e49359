"""What every request passes: the check of its host and origin, limits, and the headers of every answer.

A page of another site must neither read the console nor act in it. DNS rebinding gives that page a name of its own for
the console's address, so a Host that is neither an address, nor localhost, nor a configured name is refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from kshare_console.refusal import Refusal

BODY_LIMIT_BYTES = 64 * 1024
CSRF_HEADER = "X-Kshare-Csrf"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "Server": "kshare",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOCAL_NAMES = ("localhost",)


def host_of(header: str) -> str:
    """The name or address of a Host header, without port and brackets; empty if it is malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_allowed_host(header: str, names: Collection[str]) -> bool:
    """Whether the Host is an address, localhost, or one of `names`."""
    host = host_of(header)
    if host in LOCAL_NAMES or host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_host(header: str, names: Collection[str]) -> None:
    """Refusal for a Host that a browser of the console would not send."""
    if not is_allowed_host(header, names):
        words = f"the host {host_of(header)[:100]!r} is not among --allowed-hosts"
        raise Refusal(421, "UNKNOWN_HOST", words)


def is_own_origin(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def check_origin(origin: str | None, host: str) -> None:
    """Refusal for a request that a page of another origin sent. Programs send no Origin."""
    if origin is not None and not is_own_origin(origin, host):
        raise Refusal(403, "FOREIGN_ORIGIN", "requests of other sites are refused")
