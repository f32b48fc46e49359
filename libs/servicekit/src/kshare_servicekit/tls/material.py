"""Keystores and truststores from Kafka's `ssl.*` configs: their locations, private keys and certificates.

Types are PEM and PKCS12. A store in PEM is a text in a config (`ssl.keystore.key` with
`ssl.keystore.certificate.chain`; `ssl.truststore.certificates`), a file with key and certificates, or, beyond Kafka, a
directory with the files tls.crt and tls.key, as a Kubernetes Secret of type kubernetes.io/tls is mounted. Java's JKS is
refused.

A problem with a store is an InvalidConfig that names the config as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import Certificate, load_pem_x509_certificates

from kshare_core.configs import Configs, ConfigValue, InvalidConfig

PEM, PKCS12 = "PEM", "PKCS12"
DIRECTORY_CERTIFICATE, DIRECTORY_KEY = "tls.crt", "tls.key"
STORE_SIZE_LIMIT = 1 << 20
"""The maximum size of one file in bytes; no reasonable keystore is larger."""

Loaded = TypeVar("Loaded")


class UnreadableStore(InvalidConfig):
    """A file of a store cannot be read now; this may pass without a change of the file."""


class TlsConfigs:
    """The `ssl.*` configs of one listener: those with its prefix take precedence over the plain ones.

    `prefix` is "listener.name.<listener>.", or empty for none. With `falls_back` false, only configs with the prefix
    count, and those that the table does not have are empty. For the names in `with_prefix_only` a plain value does not
    count either.
    """

    def __init__(
        self, configs: Configs, prefix: str = "", *, falls_back: bool = True, with_prefix_only: Collection[str] = ()
    ) -> None:
        self._configs = configs
        self._prefix = prefix
        self._falls_back = falls_back
        self._with_prefix_only = with_prefix_only

    def name(self, name: str) -> str:
        """The full name of the config that is in effect."""
        own_name = self._prefix + name
        if not self._falls_back or name in self._with_prefix_only:
            return own_name
        return own_name if own_name in self._configs.table and self._configs.is_set(own_name) else name

    def text(self, name: str) -> str:
        """The value; empty if there is none."""
        value = self._value(name)
        return value if isinstance(value, str) else ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._value(name)
        return value if isinstance(value, tuple) else ()

    def _value(self, name: str) -> ConfigValue:
        found = self.name(name)
        return self._configs[found] if found in self._configs.table else None

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return Path(text) if text else None


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key, unencrypted in PEM, and its certificate chain in PEM, its own certificate first."""

    key: bytes
    certificates: bytes
    expires_at_s: float
    """The earliest expiry of the certificates, in seconds since 1970."""


def read_key_store(configs: TlsConfigs) -> KeyStore:
    """The keystore from `ssl.keystore.*`; InvalidConfig."""
    if configs.text("ssl.keystore.key") or configs.text("ssl.keystore.certificate.chain"):
        key, certificates = _inline_key(configs)
    else:
        key, certificates = _stored_key(configs)
    if _public(key.public_key()) != _public(certificates[0].public_key()):
        where = configs.name("ssl.keystore.location" if configs.text("ssl.keystore.location") else "ssl.keystore.key")
        raise InvalidConfig(f"{where}: the private key does not belong to the first certificate")
    return KeyStore(
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        certificates=b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates),
        expires_at_s=min(certificate.not_valid_after_utc.timestamp() for certificate in certificates),
    )


def read_trust_store(configs: TlsConfigs) -> str | None:
    """The certificates from `ssl.truststore.*`, in PEM; None if none are configured. InvalidConfig."""
    location = configs.path("ssl.truststore.location")
    inline = configs.text("ssl.truststore.certificates")
    if location is None and not inline:
        return None
    kind = _store_type(configs, "ssl.truststore.type")
    if inline:
        _only_one(configs, "ssl.truststore.certificates", "ssl.truststore.location")
        name, content = "ssl.truststore.certificates", inline.encode()
        _must_be_pem(configs, kind, "ssl.truststore.type", name)
    else:
        assert location is not None
        name, content = "ssl.truststore.location", _read(configs, "ssl.truststore.location", location)
    if kind == PEM:
        found = _certificates(configs, name, content)
    else:
        store = _pkcs12(configs, name, content, "ssl.truststore.password")
        found = [entry.certificate for entry in (store.cert, *store.additional_certs) if entry is not None]
        if not found:
            raise InvalidConfig(f"{configs.name(name)} contains no certificate")
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in found)


def store_files(configs: TlsConfigs) -> list[Path]:
    """The files that `read_key_store` and `read_trust_store` read."""
    found: list[Path] = []
    for name in ("ssl.keystore.location", "ssl.truststore.location"):
        path = configs.path(name)
        if path is None:
            continue
        found += [path / DIRECTORY_CERTIFICATE, path / DIRECTORY_KEY] if _is_directory(path) else [path]
    return found


def _is_directory(path: Path) -> bool:
    """False too where the file system does not tell, such as for a stale handle of NFS; reading the path says why."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _inline_key(configs: TlsConfigs) -> tuple[PrivateKeyTypes, list[Certificate]]:
    names = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
    for name in names:
        if not configs.text(name):
            other = names[name == names[0]]
            raise InvalidConfig(f"{configs.name(name)} is missing; {configs.name(other)} is given and needs it")
        _only_one(configs, name, "ssl.keystore.location")
    _must_be_pem(configs, _store_type(configs, "ssl.keystore.type"), "ssl.keystore.type", "ssl.keystore.key")
    key = _private_key(configs, names[0], configs.text(names[0]).encode())
    return key, _certificates(configs, names[1], configs.text(names[1]).encode())


def _stored_key(configs: TlsConfigs) -> tuple[PrivateKeyTypes, list[Certificate]]:
    name = "ssl.keystore.location"
    path = configs.path(name)
    if path is None:
        wanted = f"{configs.name(name)}, or ssl.keystore.key with ssl.keystore.certificate.chain,"
        raise InvalidConfig(f"TLS needs a certificate: {wanted} must be given")
    kind = _store_type(configs, "ssl.keystore.type")
    if _is_directory(path):
        _must_be_pem(configs, kind, "ssl.keystore.type", name)
        key = _private_key(configs, name, _read(configs, name, path / DIRECTORY_KEY))
        return key, _certificates(configs, name, _read(configs, name, path / DIRECTORY_CERTIFICATE))
    content = _read(configs, name, path)
    if kind == PEM:
        return _private_key(configs, name, content), _certificates(configs, name, content)
    store = _pkcs12(configs, name, content, "ssl.keystore.password")
    if store.key is None or store.cert is None:
        raise InvalidConfig(f"{configs.name(name)}: {path} contains no private key with a certificate")
    return store.key, [store.cert.certificate, *(entry.certificate for entry in store.additional_certs)]


def _store_type(configs: TlsConfigs, name: str) -> str:
    kind = configs.text(name)
    if kind.upper() not in (PEM, PKCS12):
        text = f"{configs.name(name)} is {kind}; allowed are {PEM} and {PKCS12}"
        raise InvalidConfig(f"{text} (keytool -importkeystore -deststoretype PKCS12 converts a JKS)")
    return kind.upper()


def _must_be_pem(configs: TlsConfigs, kind: str, type_name: str, name: str) -> None:
    if kind != PEM:
        raise InvalidConfig(f"{configs.name(type_name)} is {kind}; with this {configs.name(name)} it must be {PEM}")


def _only_one(configs: TlsConfigs, name: str, other: str) -> None:
    if configs.text(other):
        raise InvalidConfig(f"Only one of {configs.name(name)} and {configs.name(other)} can be given")


def _read(configs: TlsConfigs, name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(STORE_SIZE_LIMIT + 1)
    except OSError as error:
        raise UnreadableStore(f"{configs.name(name)}: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a path with a NUL
        raise InvalidConfig(f"{configs.name(name)}: {str(path)!r} cannot be read: {error}") from None
    if len(content) > STORE_SIZE_LIMIT:
        raise InvalidConfig(f"{configs.name(name)}: {path} is larger than {STORE_SIZE_LIMIT} bytes")
    return content


def _certificates(configs: TlsConfigs, name: str, content: bytes) -> list[Certificate]:
    text = f"{configs.name(name)} contains no valid PEM certificates"
    return _parsed(lambda: load_pem_x509_certificates(content), text)


def _private_key(configs: TlsConfigs, name: str, content: bytes) -> PrivateKeyTypes:
    password = configs.text("ssl.key.password").encode()
    is_encrypted = b"ENCRYPTED" in content
    if is_encrypted and not password:
        raise InvalidConfig(f"{configs.name(name)}: the private key is encrypted; ssl.key.password is missing")
    text = f"{configs.name(name)} contains no PEM private key that can be read"
    if is_encrypted:
        text += f" with {configs.name('ssl.key.password')}"
    return _parsed(lambda: load_pem_private_key(content, password if is_encrypted else None), text)


def _pkcs12(configs: TlsConfigs, name: str, content: bytes, password_name: str) -> pkcs12.PKCS12KeyAndCertificates:
    password = configs.text(password_name).encode() or None
    text = f"{configs.name(name)} is not a PKCS12 store that {configs.name(password_name)} can decrypt"
    return _parsed(lambda: pkcs12.load_pkcs12(content, password), text)


def _parsed(parse: Callable[[], Loaded], problem: str) -> Loaded:
    """The result of `parse`; InvalidConfig if the library fails. The library's messages never contain the content."""
    try:
        return parse()
    except (ValueError, TypeError) as error:
        raise InvalidConfig(f"{problem} ({type(error).__name__})") from None
    except Exception as error:  # the library's UnsupportedAlgorithm is no ValueError
        raise InvalidConfig(f"{problem}: {error}") from None


def _public(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
