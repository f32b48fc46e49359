"""A private authority that signs the certificates of one installation's roles, each of which names its roles.

`kshare up` makes one at every start and keeps only its certificate; a Job of the Helm chart keeps its key in a Secret.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kshare_rpc.exchange.tls import ROLE_URI

LIFETIME = datetime.timedelta(days=3650)
CLOCK_DIFFERENCE = datetime.timedelta(hours=1)
"""How far the clocks of two machines may differ when a certificate is new."""


class KeyPair(NamedTuple):
    """A certificate and its private key (PKCS #8, not encrypted), both in PEM."""

    certificate_pem: str
    key_pem: str


class RoleAuthority:
    """An authority with its private key."""

    def __init__(self, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls) -> RoleAuthority:
        """A new authority with a key of its own."""
        key = generate_private_key(SECP256R1())
        name = _name("kshare roles")
        builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return cls(builder.sign(key, SHA256()), key)

    @classmethod
    def of(cls, pair: KeyPair) -> RoleAuthority:
        """The authority that was stored as `pair`; ValueError if it cannot be read."""
        key = load_pem_private_key(pair.key_pem.encode(), password=None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ValueError("the authority's key is not an elliptic curve key")
        return cls(x509.load_pem_x509_certificate(pair.certificate_pem.encode()), key)

    @property
    def pair(self) -> KeyPair:
        """The authority's own certificate and key."""
        return _pair(self._certificate, self._key)

    def issue(self, roles: Sequence[str], *, names: Sequence[str] = (), addresses: Sequence[str] = ()) -> KeyPair:
        """A certificate for a holder of `roles` (coordinator, share_coordinator, …) at DNS names and IP addresses."""
        key = generate_private_key(SECP256R1())
        alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(ROLE_URI + role) for role in roles]
        alternatives += [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(_name(roles[0]), self._certificate.subject, key)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        return _pair(builder.sign(self._key, SHA256()), key)


def _pair(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> KeyPair:
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(certificate.public_bytes(Encoding.PEM).decode(), key_pem.decode())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_DIFFERENCE)
        .not_valid_after(now + LIFETIME)
    )
