"""The way from the listener to the source, and SCRAM."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import stat
import threading
import uuid
from typing import Any

import pytest

from kshare_kafka_client.sasl import AuthenticationFailed, exchange
from kshare_spark.share_source.control import ControlServer, folder, tell
from kshare_spark.share_source.listener import share_offset
from kshare_spark.share_source.offset import ShareOffset


def test_a_message_arrives_and_is_answered_when_it_has_taken_effect() -> None:
    session = uuid.uuid4().hex
    found: list[dict[str, Any]] = []
    server = ControlServer(session, found.append)
    try:
        assert tell(session, {"finished": 7})
        assert tell(session, {"terminated": True})
        assert found == [{"finished": 7}, {"terminated": True}]
        assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    finally:
        server.close()
    assert not tell(session, {"finished": 8})
    assert not (folder() / session).exists()


def test_a_message_that_fails_is_not_confirmed_and_the_next_one_is_served() -> None:
    session = uuid.uuid4().hex
    served = threading.Event()

    def handle(message: dict[str, Any]) -> None:
        if message.get("finished") == 1:
            raise RuntimeError("cannot")
        served.set()

    server = ControlServer(session, handle)
    try:
        assert not tell(session, {"finished": 1})
        assert not tell(session, {"text": "x" * 10_000})
        assert tell(session, {"finished": 2})
        assert served.is_set()
    finally:
        server.close()


def test_only_our_offsets_are_told() -> None:
    ours = ShareOffset(4, "abc").to_json()
    assert share_offset(json.dumps(ours)) == ("abc", 4)
    assert share_offset(json.dumps(ShareOffset().to_json())) is None
    for other in (None, "", "no json", '{"orders":{"0":5}}', "[1]", "17"):
        assert share_offset(other) is None


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
    server, client = ScramServer("pencil"), exchange("SCRAM-SHA-256", "us,er", "pencil")
    first = next(client)
    assert b"n=us=2Cer," in first
    final = client.send(server.first(first))
    with pytest.raises(StopIteration):
        client.send(server.final(final))
    assert server.accepted


def test_scram_refuses_a_broker_that_does_not_know_the_password() -> None:
    server, client = ScramServer("guessed"), exchange("SCRAM-SHA-256", "user", "pencil")
    final = client.send(server.first(next(client)))
    with pytest.raises(AuthenticationFailed, match="signature"):
        client.send(server.final(final))
    assert not server.accepted


@pytest.mark.parametrize(
    ("answer", "told"),
    [(b"e=unknown-user", "unknown-user"), (b"r=other,s=c2FsdA==,i=4096", "nonce"), (b"", "nonce")],
)
def test_scram_refuses_wrong_answers(answer: bytes, told: str) -> None:
    client = exchange("SCRAM-SHA-512", "user", "pencil")
    next(client)
    with pytest.raises(AuthenticationFailed, match=told):
        client.send(answer)


def test_scram_refuses_few_iterations() -> None:
    server, client = ScramServer("pencil", iterations=100), exchange("SCRAM-SHA-256", "user", "pencil")
    with pytest.raises(AuthenticationFailed, match="4096"):
        client.send(server.first(next(client)))


def test_plain() -> None:
    client = exchange("PLAIN", "user", "pencil")
    assert next(client) == b"\0user\0pencil"
    with pytest.raises(StopIteration):
        client.send(b"")
