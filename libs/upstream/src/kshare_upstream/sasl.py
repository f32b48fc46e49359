"""The client side of SASL PLAIN and SCRAM (RFC 5802 by the library scramp, KIP-84), as generators of messages."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

PLAIN = "PLAIN"
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (PLAIN, *SCRAM_MECHANISMS)

Exchange = Generator[bytes, bytes, None]
"""A generator that yields messages to the broker and receives the broker's responses; it ends with success."""


class AuthenticationFailed(Exception):
    """The broker refused the credentials, or failed to prove that it knows them (SCRAM)."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A SASL mechanism, one of MECHANISMS, with user name and password."""

    mechanism: str
    username: str
    password: str = field(repr=False)


def exchange(credentials: Credentials, *, nonce: str | None = None) -> Exchange:
    """The exchange of a mechanism. `nonce` is for tests; by default it is random."""
    if credentials.mechanism == PLAIN:
        return _plain(credentials)
    return _scram(credentials, nonce)


def _plain(credentials: Credentials) -> Exchange:
    yield b"\0".join((b"", credentials.username.encode(), credentials.password.encode()))


def _scram(credentials: Credentials, nonce: str | None) -> Exchange:
    from scramp import ScramClient, ScramException  # slow to import, and only needed with SCRAM

    try:
        client = ScramClient([credentials.mechanism], credentials.username, credentials.password, c_nonce=nonce)
        server_first = yield client.get_client_first().encode()
        client.set_server_first(server_first.decode())
        server_final = yield client.get_client_final().encode()
        client.set_server_final(server_final.decode())
    except (ScramException, UnicodeDecodeError) as error:
        raise AuthenticationFailed(f"the SCRAM exchange failed: {error}") from None
