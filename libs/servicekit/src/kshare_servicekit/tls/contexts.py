"""TLS contexts from Kafka's `ssl.*` configs, and their renewal when certificates change.

A `TlsServer` has the context for new connections. `renew` makes the next context if files or configs changed; open
connections keep theirs. A store that cannot be used, such as a key that was written before its certificate, leaves the
former context in place, and is read again at the next change. After an error of the file system it is read again at the
next check: the error may pass without a change.

TLS 1.3 has three cipher suites here, and Python cannot select among them. A list that leaves one of them out is refused
while TLSv1.3 is enabled, rather than ignored.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kshare_core.configs import InvalidConfig
from kshare_servicekit.tls.material import (
    KeyStore,
    TlsConfigs,
    UnreadableStore,
    read_key_store,
    read_trust_store,
    store_files,
)

TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
VERSIONS = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
TLS_1_3_SUITES = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_Stamp = tuple[object, ...]


class HandshakeFailed(ssl.SSLError):
    """A failed handshake, with the SSLError as its cause; `alert` has the bytes of the TLS alert for the peer."""

    def __init__(self, error: ssl.SSLError, alert: bytes) -> None:
        super().__init__(*error.args)
        self.alert = alert


class _Engine(ssl.SSLObject):
    """One connection's TLS."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            raise HandshakeFailed(error, self.outgoing.read()) from error


class ServerContext(ssl.SSLContext):
    """A context whose handshakes fail with HandshakeFailed, because asyncio and uvloop would drop the alert."""

    sslobject_class = _Engine

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        engine = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(engine, _Engine)
        engine.outgoing = outgoing
        return engine


class _Renewed:
    """Contexts that are made from configs and files, and made again after a change of these."""

    def __init__(self, configs: TlsConfigs) -> None:
        self._configs = configs
        self._stamp: _Stamp | None = _stamp(configs)
        """None: the contexts are to be made at the next check, whether anything changed or not."""
        self._problem = ""
        self._make()

    def _make(self) -> None:
        """Makes all contexts, or none; InvalidConfig or OSError."""
        raise NotImplementedError

    def renew(self) -> bool:
        """Makes new contexts after a change; returns whether it did. InvalidConfig, once per problem, if it fails."""
        stamp = _stamp(self._configs)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._make()
        except (UnreadableStore, OSError) as error:
            self._stamp = None
            if str(error) == self._problem:
                return False
            self._problem = str(error)
            raise InvalidConfig(self._problem) from error
        self._problem = ""
        return True


class TlsServer(_Renewed):
    """The context of one listener; InvalidConfig if its configs cannot be used."""

    context: ssl.SSLContext
    """For new connections."""
    expires_at_s: float
    """The earliest expiry of its certificates, in seconds since 1970."""

    def _make(self) -> None:
        self.context, self.expires_at_s = server_context(self._configs)


class MutualTls(_Renewed):
    """The contexts of both sides of mutual TLS: TLS 1.3, with one keystore and one truststore.

    InvalidConfig if they cannot be used. If names are not checked, any certificate that the truststore accepts will do.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    expires_at_s: float

    def __init__(self, configs: TlsConfigs, *, checks_names: bool) -> None:
        self._checks_names = checks_names
        super().__init__(configs)

    def _make(self) -> None:
        store, trusted = read_key_store(self._configs), read_trust_store(self._configs)
        if trusted is None:
            name = self._configs.name("ssl.truststore.location")
            raise InvalidConfig(f"{name} is missing: it must name the authorities of the other side's certificates")
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = self._checks_names
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            _load_key_store(context, self._configs, store)
            context.load_verify_locations(cadata=trusted)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.verify_mode = ssl.CERT_REQUIRED
        self.server, self.client, self.expires_at_s = server, client, store.expires_at_s


def server_context(configs: TlsConfigs) -> tuple[ssl.SSLContext, float]:
    """A server's context, and the earliest expiry of its certificates, in seconds since 1970; InvalidConfig."""
    store = read_key_store(configs)
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _set_versions_and_suites(context, configs)
    _load_key_store(context, configs, store)
    _set_client_auth(context, configs)
    return context, store.expires_at_s


def client_context(configs: TlsConfigs, *, checks_names: bool) -> ssl.SSLContext:
    """A client's context; its certificate and its truststore may be left out. InvalidConfig.

    Without a truststore the authorities of the system are trusted. If names are not checked, any certificate that is
    trusted will do.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = checks_names
    trusted = read_trust_store(configs)
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(cadata=trusted)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if configs.text("ssl.keystore.location"):
        _load_key_store(context, configs, read_key_store(configs))
    return context


def _set_client_auth(context: ssl.SSLContext, configs: TlsConfigs) -> None:
    client_auth = configs.text("ssl.client.auth")
    trusted = read_trust_store(configs)
    if client_auth == "none":
        return
    if trusted is None:
        name = configs.name("ssl.client.auth")
        wanted = "ssl.truststore.location or ssl.truststore.certificates must name the authorities that it is about"
        raise InvalidConfig(f"{name} is {client_auth}, and {wanted}")
    context.load_verify_locations(cadata=trusted)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java, truststore certificates need no issuer
    context.verify_mode = CLIENT_AUTH[client_auth]


def _load_key_store(context: ssl.SSLContext, configs: TlsConfigs, store: KeyStore) -> None:
    try:
        with _as_file(store.certificates) as certificates, _as_file(store.key) as key:
            context.load_cert_chain(certificates, key)
    except ssl.SSLError as error:
        where = "ssl.keystore.location" if configs.text("ssl.keystore.location") else "ssl.keystore.key"
        raise InvalidConfig(f"{configs.name(where)}: OpenSSL refused the key or certificates: {error}") from None


def _set_versions_and_suites(context: ssl.SSLContext, configs: TlsConfigs) -> None:
    name = configs.name("ssl.enabled.protocols")
    enabled = [version for version in configs.texts("ssl.enabled.protocols") if version]
    unknown = [version for version in enabled if version not in VERSIONS]
    if unknown or not enabled:
        found = ",".join(enabled) or "empty"
        raise InvalidConfig(f"{name} is {found}; allowed are {TLS_1_2} and {TLS_1_3}, and one of them at least")
    suites = [suite for suite in configs.texts("ssl.cipher.suites") if suite]
    if suites:
        enabled = _choose_suites(context, configs, suites, enabled)
    context.minimum_version = min(VERSIONS[version] for version in enabled)
    context.maximum_version = max(VERSIONS[version] for version in enabled)


def _choose_suites(
    context: ssl.SSLContext, configs: TlsConfigs, suites: Sequence[str], enabled: Sequence[str]
) -> list[str]:
    """Sets the suites of TLS 1.2; returns the versions that have suites."""
    name, versions_name = configs.name("ssl.cipher.suites"), configs.name("ssl.enabled.protocols")
    newer = [suite for suite in suites if suite in TLS_1_3_SUITES]
    older = [suite for suite in suites if suite not in TLS_1_3_SUITES]
    if TLS_1_3 in enabled and len(newer) < len(TLS_1_3_SUITES):
        text = f"{name} must have all of {','.join(TLS_1_3_SUITES)} while {versions_name} has {TLS_1_3}"
        raise InvalidConfig(f"{text}: a choice among these cannot be made here; set {versions_name}={TLS_1_2} for it")
    known = _openssl_suites()
    unknown = [suite for suite in older if openssl_suite(suite) not in known]
    if unknown:
        raise InvalidConfig(f"{name} has {','.join(unknown)}, unknown to OpenSSL; known are {','.join(known)}")
    if older:
        context.set_ciphers(":".join(map(openssl_suite, older)))
    found = [version for version in enabled if (newer if version == TLS_1_3 else older)]
    if not found:
        raise InvalidConfig(f"{name} has no suite of {','.join(enabled)}, which {versions_name} enables")
    return found


def openssl_suite(name: str) -> str:
    """OpenSSL's name of a TLS 1.2 suite for its IANA name, which Java uses; any other name is returned as it is."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    for bits in ("128", "256"):
        cipher = cipher.replace(f"AES_{bits}", f"AES{bits}")
    cipher = cipher.replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    parts = [cipher] if exchange == "RSA" else [exchange, cipher]
    return "-".join(parts).replace("_", "-")


def _openssl_suites() -> list[str]:
    """The suites of TLS 1.2 that OpenSSL enables by default for servers with a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    names = [suite["name"] for suite in context.get_ciphers()]
    return [name for name in names if name not in TLS_1_3_SUITES]


def _stamp(configs: TlsConfigs) -> _Stamp:
    """A stamp that changes when the files or their configured locations change."""
    found: list[object] = [
        configs.text(name)
        for name in (
            *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.key"),
            *("ssl.keystore.certificate.chain", "ssl.key.password", "ssl.client.auth"),
            *("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password"),
            "ssl.truststore.certificates",
        )
    ]
    found += [configs.texts("ssl.enabled.protocols"), configs.texts("ssl.cipher.suites")]
    for path in store_files(configs):
        try:
            status = path.stat()
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            found.append((str(path), str(error)))
        else:
            found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path to this content in memory, never on a disk, for OpenSSL, which reads keys only from files."""
    descriptor = os.memfd_create("kshare-tls")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
