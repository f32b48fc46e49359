"""Authorities and certificates for tests, made in a moment.

authority = Authority("kshare")
server = authority.issue("localhost")
server.write_combined(path)      # key and certificates in one PEM file, as Kafka's PEM keystore
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Issued:
    """A key with its certificate."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def serial_number(self) -> int:
        return self.certificate.serial_number

    def key_pem(self, password: str = "") -> str:
        """PKCS #8, encrypted where there is a password."""
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def write_combined(self, path: Path, password: str = "") -> Path:
        """Certificate and key in one file."""
        draft = path.with_suffix(".draft")
        draft.write_text(self.certificate_pem + self.key_pem(password))
        draft.replace(path)
        return path

    def write_directory(self, path: Path) -> Path:
        """tls.crt and tls.key, as in a mounted Secret."""
        path.mkdir(exist_ok=True)
        (path / "tls.crt").write_text(self.certificate_pem)
        (path / "tls.key").write_text(self.key_pem())
        return path

    def pkcs12(self, password: str) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"kshare", self.key, self.certificate, None, encryption)


class Authority:
    """A certificate authority of its own."""

    def __init__(self, name: str) -> None:
        self._key = generate_private_key(SECP256R1())
        self._name = _name(name)
        usage = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write(self, path: Path) -> Path:
        path.write_text(self.pem)
        return path

    def issue(
        self,
        name: str,
        *addresses: str,
        names: Sequence[str] = (),
        uris: Sequence[str] = (),
        lifetime: datetime.timedelta = LIFETIME,
    ) -> Issued:
        """For a server on this machine, and at these IP addresses and names, or a client; `uris` are more names."""
        key = generate_private_key(SECP256R1())
        numbers = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", *addresses)]
        hosts = [*map(x509.DNSName, ("localhost", *names)), *numbers, *map(x509.UniformResourceIdentifier, uris)]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(_name(name), self._name, key, lifetime)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(key, certificate)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, lifetime: datetime.timedelta = LIFETIME
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + lifetime)
    )
