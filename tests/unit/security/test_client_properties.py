"""`--command-config`: the properties that kshare's own connections use, and the errors for wrong ones."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kshare.addresses import Address
from kshare.client_properties import read_properties, tls_context
from kshare.failure import CommandFailed
from kshare.kafka_connection import ConnectionFailed, read_metadata
from support.environment.certificates import Authority


def test_without_a_file_nothing_is_encrypted() -> None:
    assert read_properties(None) == {} and tls_context({}) is None
    assert tls_context({"security.protocol": "PLAINTEXT"}) is None


def test_names_are_checked_unless_that_is_switched_off(tmp_path: Path) -> None:
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(Authority("a").write(tmp_path / "ca.pem"))}
    context = tls_context(properties)
    assert context is not None and context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    context = tls_context({**properties, "ssl.endpoint.identification.algorithm": "none"})
    assert context is not None and not context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED


def test_a_key_with_a_password(tmp_path: Path) -> None:
    both = str(Authority("a").issue("client").write_combined(tmp_path / "client.pem", "open"))
    properties = {"security.protocol": "ssl", "ssl.certificate.location": both, "ssl.key.password": "open"}
    assert tls_context(properties) is not None
    with pytest.raises(CommandFailed, match="--command-config: cannot load the certificates"):
        tls_context({**properties, "ssl.key.password": "wrong"})


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        (
            {"security.protocol": "tls"},
            "security.protocol must be one of plaintext, ssl, sasl_plaintext, sasl_ssl, fou",
        ),
        (
            {"security.protocol": "sasl_ssl", "ssl.ca.location": "/nowhere"},
            "cannot load the certificates.*No such file",
        ),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere"}, "cannot load the certificates.*No such file"),
    ],
)
def test_what_is_refused(properties: dict[str, str], problem: str) -> None:
    with pytest.raises(CommandFailed, match=problem):
        tls_context(properties)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"--command-config .*/none: .*No such file"):
        read_properties(tmp_path / "none")


def test_no_server_there() -> None:
    with pytest.raises(ConnectionFailed, match=r"cannot connect to 127\.0\.0\.1:1"):
        read_metadata(Address("127.0.0.1", 1), properties={"security.protocol": "ssl"})
