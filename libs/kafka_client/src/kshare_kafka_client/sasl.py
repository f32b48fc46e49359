"""The client side of SASL PLAIN and SCRAM (RFC 5802, KIP-84), as generators of messages."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator

HASHES: dict[str, Callable[..., hashlib._Hash]] = {"SCRAM-SHA-256": hashlib.sha256, "SCRAM-SHA-512": hashlib.sha512}
MECHANISMS = ("PLAIN", *HASHES)
LEAST_ITERATIONS = 4096
"""The minimum of RFC 7677, which Kafka's client enforces as well."""

Exchange = Generator[bytes, bytes, None]
"""A generator that yields messages to the broker and receives the broker's responses; it ends with success."""


class AuthenticationFailed(Exception):
    """The broker refused the credentials, or failed to prove that it knows them (SCRAM)."""


def exchange(mechanism: str, username: str, password: str, *, nonce: str | None = None) -> Exchange:
    """The exchange of a mechanism. `nonce` is for tests; by default it is random."""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return _scram(HASHES[mechanism], username, password, nonce or secrets.token_urlsafe(24))


def _plain(username: str, password: str) -> Exchange:
    yield b"\0".join((b"", username.encode(), password.encode()))


def _scram(digest: Callable[..., hashlib._Hash], username: str, password: str, nonce: str) -> Exchange:
    name = username.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}"
    server_first = yield f"n,,{first_bare}".encode()
    fields = _fields(server_first)
    if not fields.get("r", "").startswith(nonce) or fields["r"] == nonce:
        raise AuthenticationFailed("the broker's SCRAM nonce does not continue ours")
    if not fields.keys() >= {"s", "i"} or not fields["i"].isdecimal():
        raise AuthenticationFailed("the broker's SCRAM message has no salt and number of iterations")
    if int(fields["i"]) < LEAST_ITERATIONS:
        raise AuthenticationFailed(
            f"the broker asks for {fields['i']} SCRAM iterations; {LEAST_ITERATIONS} are the least"
        )
    without_proof = f"c={base64.b64encode(b'n,,').decode()},r={fields['r']}"
    signed = f"{first_bare},{server_first.decode()},{without_proof}".encode()
    hash_name = digest().name
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(digest(client_key).digest(), signed, hash_name)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    server_final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(base64.b64decode(_fields(server_final).get("v", "")), expected):
        raise AuthenticationFailed("the broker does not know the password: its SCRAM signature is wrong")


def _fields(message: bytes) -> dict[str, str]:
    fields = dict(part.partition("=")[::2] for part in message.decode().split(","))
    if "e" in fields:
        raise AuthenticationFailed(f"the broker refuses the credentials: {fields['e']}")
    return fields
