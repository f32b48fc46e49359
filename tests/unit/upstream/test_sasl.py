"""The client's side of PLAIN and SCRAM, against the broker's side from the formulas of RFC 5802."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kshare_upstream.sasl import AuthenticationFailed, Credentials, exchange


class ScramServer:
    """The broker's side of RFC 5802, from the RFC's formulas."""

    def __init__(self, password: str, iterations: int = 4096) -> None:
        self.salt, self.iterations = b"salt-of-16-bytes", iterations
        self.salted = hashlib.pbkdf2_hmac("sha256", password.encode(), self.salt, iterations)
        self.accepted = False

    def first(self, message: bytes) -> bytes:
        self.bare = message.decode().split(",", 2)[2]
        nonce = self.bare.split("r=")[1] + "server"
        self.answer = f"r={nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        return self.answer.encode()

    def final(self, message: bytes) -> bytes:
        without_proof, _, proof = message.decode().rpartition(",p=")
        signed = f"{self.bare},{self.answer},{without_proof}".encode()
        stored = hashlib.sha256(hmac.digest(self.salted, b"Client Key", "sha256")).digest()
        signature = hmac.digest(stored, signed, "sha256")
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        self.accepted = hashlib.sha256(key).digest() == stored
        server_key = hmac.digest(self.salted, b"Server Key", "sha256")
        return b"v=" + base64.b64encode(hmac.digest(server_key, signed, "sha256"))


def test_scram_with_the_right_password() -> None:
    server, client = ScramServer("pencil"), exchange(Credentials("SCRAM-SHA-256", "us,er", "pencil"))
    first = next(client)
    assert b"n=us=2Cer," in first
    final = client.send(server.first(first))
    with pytest.raises(StopIteration):
        client.send(server.final(final))
    assert server.accepted


def test_scram_refuses_a_broker_that_does_not_know_the_password() -> None:
    server, client = ScramServer("guessed"), exchange(Credentials("SCRAM-SHA-256", "user", "pencil"))
    final = client.send(server.first(next(client)))
    with pytest.raises(AuthenticationFailed, match="signature"):
        client.send(server.final(final))
    assert not server.accepted


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"e=unknown-user", "unknown-user"),
        (b"r=other,s=c2FsdC1vZi0xNi1ieXRlcw==,i=4096", "nonce"),
        (b"", "SCRAM"),
        (b"\xff", "decode"),
    ],
)
def test_scram_refuses_wrong_answers(answer: bytes, told: str) -> None:
    client = exchange(Credentials("SCRAM-SHA-512", "user", "pencil"))
    next(client)
    with pytest.raises(AuthenticationFailed, match=told):
        client.send(answer)


@pytest.mark.parametrize(
    ("username", "password"), [("a\x07", "pencil"), ("a\ud800", "pencil"), ("\xad", "pencil"), ("user", "p\x00")]
)
def test_scram_refuses_names_and_passwords_that_no_broker_can_know(username: str, password: str) -> None:
    server, client = ScramServer("pencil"), exchange(Credentials("SCRAM-SHA-256", username, password))
    with pytest.raises(AuthenticationFailed, match="SCRAM"):
        client.send(server.first(next(client)))


def test_scram_refuses_few_iterations() -> None:
    server, client = ScramServer("pencil", iterations=100), exchange(Credentials("SCRAM-SHA-256", "user", "pencil"))
    with pytest.raises(AuthenticationFailed, match="4096"):
        client.send(server.first(next(client)))


def test_plain() -> None:
    client = exchange(Credentials("PLAIN", "user", "pencil"))
    assert next(client) == b"\0user\0pencil"
    with pytest.raises(StopIteration):
        client.send(b"")


def test_a_password_is_not_in_the_text_of_credentials() -> None:
    assert "pencil" not in repr(Credentials("PLAIN", "user", "pencil"))
