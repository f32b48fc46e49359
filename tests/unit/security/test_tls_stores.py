"""Keystores, truststores, versions and cipher suites of TLS listeners, and the errors for wrong ones."""

from __future__ import annotations

import resource
import ssl
from pathlib import Path

import pytest

from kshare_core.configs import DynamicConfigs, InvalidConfig, process_configs
from kshare_servicekit.tls.contexts import TLS_1_3_SUITES, HandshakeFailed, TlsServer, openssl_suite, server_context
from kshare_servicekit.tls.material import TlsConfigs, read_key_store, read_trust_store
from support.environment.certificates import Authority, Issued

AUTHORITY = Authority("kshare")
SERVER = AUTHORITY.issue("localhost")
CLIENT = AUTHORITY.issue("client")
ALL_1_3 = ",".join(TLS_1_3_SUITES)
OLD_SUITE = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


def tls(**texts: str) -> TlsConfigs:
    return TlsConfigs(process_configs({f"ssl.{name.replace('_', '.')}": text for name, text in texts.items()})[0])


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a connection within this process; SSLError where either side refuses the other."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (client_end, server_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client_end


def client_context(certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def stores(folder: Path) -> dict[str, TlsConfigs]:
    (folder / "store.p12").write_bytes(SERVER.pkcs12("secret"))
    (folder / "reversed.pem").write_text(SERVER.key_pem() + SERVER.certificate_pem)
    return {
        "a file": tls(keystore_type="PEM", keystore_location=str(SERVER.write_combined(folder / "server.pem"))),
        "the key first": tls(keystore_type="pem", keystore_location=str(folder / "reversed.pem")),
        "encrypted": tls(
            keystore_type="PEM",
            keystore_location=str(SERVER.write_combined(folder / "encrypted.pem", "open")),
            key_password="open",
        ),
        "a Secret": tls(keystore_type="PEM", keystore_location=str(SERVER.write_directory(folder / "secret"))),
        "texts": tls(
            keystore_type="PEM", keystore_key=SERVER.key_pem(), keystore_certificate_chain=SERVER.certificate_pem
        ),
        "PKCS12": tls(keystore_type="PKCS12", keystore_location=str(folder / "store.p12"), keystore_password="secret"),
    }


@pytest.mark.parametrize("kind", ["a file", "the key first", "encrypted", "a Secret", "texts", "PKCS12"])
def test_every_kind_of_keystore_serves(tmp_path: Path, kind: str) -> None:
    context, expires_at_s = server_context(stores(tmp_path)[kind])
    client = shaken(context, client_context())
    assert client.getpeercert(binary_form=True) is not None and client.version() == "TLSv1.3"
    assert expires_at_s == SERVER.certificate.not_valid_after_utc.timestamp()


def wrong_stores(folder: Path) -> dict[str, tuple[TlsConfigs, str]]:
    good = str(SERVER.write_combined(folder / "good.pem"))
    encrypted = str(SERVER.write_combined(folder / "encrypted.pem", "open"))
    (folder / "mixed.pem").write_text(SERVER.certificate_pem + CLIENT.key_pem())
    (folder / "garbage.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (folder / "key.pem").write_text(SERVER.key_pem())
    (folder / "store.p12").write_bytes(SERVER.pkcs12("secret"))
    (folder / "empty").mkdir()
    pem, p12 = {"keystore_type": "PEM"}, {"keystore_type": "PKCS12", "keystore_location": str(folder / "store.p12")}
    return {
        "none": (tls(), "TLS needs a certificate: ssl.keystore.location, or ssl.keystore.key with"),
        "JKS by default": (tls(keystore_location=good), "ssl.keystore.type is JKS; allowed are PEM and PKCS12"),
        "missing file": (tls(**pem, keystore_location="/nowhere.pem"), "/nowhere.pem cannot be read: No such file"),
        "empty directory": (tls(**pem, keystore_location=str(folder / "empty")), "tls.key cannot be read"),
        "another key": (tls(**pem, keystore_location=str(folder / "mixed.pem")), "does not belong to the first"),
        "garbage": (tls(**pem, keystore_location=str(folder / "garbage.pem")), "no PEM private key"),
        "only a key": (tls(**pem, keystore_location=str(folder / "key.pem")), "no valid PEM certificates"),
        "no password": (tls(**pem, keystore_location=encrypted), "encrypted; ssl.key.password is missing"),
        "wrong password": (tls(**pem, keystore_location=encrypted, key_password="x"), "read with ssl.key.password"),
        "no chain": (tls(**pem, keystore_key=SERVER.key_pem()), "ssl.keystore.certificate.chain is missing"),
        "text and file": (
            tls(
                **pem,
                keystore_key=SERVER.key_pem(),
                keystore_certificate_chain=SERVER.certificate_pem,
                keystore_location=good,
            ),
            "Only one of ssl.keystore.key and ssl.keystore.location",
        ),
        "PKCS12 with a wrong password": (
            tls(**p12, keystore_password="x"),
            "not a PKCS12 store that ssl.keystore.pass",
        ),
        "PEM as PKCS12": (tls(keystore_type="PKCS12", keystore_location=good), "not a PKCS12 store"),
        "no truststore": (
            tls(**pem, keystore_location=good, client_auth="required"),
            "ssl.client.auth is required, and ssl.truststore.location or ssl.truststore.certificates must name",
        ),
        "wrong truststore": (
            tls(**pem, keystore_location=good, truststore_type="PEM", truststore_certificates="none"),
            "ssl.truststore.certificates contains no valid PEM certificates",
        ),
        "TLS 1.1": (tls(**pem, keystore_location=good, enabled_protocols="TLSv1.1"), "TLSv1.1; allowed are TLSv1.2"),
        "no version": (tls(**pem, keystore_location=good, enabled_protocols=""), "is empty; allowed are"),
        "a choice of 1.3": (
            tls(**pem, keystore_location=good, cipher_suites="TLS_AES_128_GCM_SHA256"),
            "must have all of .* while ssl.enabled.protocols has TLSv1.3",
        ),
        "unknown suite": (
            tls(**pem, keystore_location=good, cipher_suites="TLS_X", enabled_protocols="TLSv1.2"),
            "has TLS_X, unknown to OpenSSL",
        ),
        "no suite of the version": (
            tls(**pem, keystore_location=good, cipher_suites=ALL_1_3, enabled_protocols="TLSv1.2"),
            "has no suite of TLSv1.2",
        ),
    }


WRONG = (
    *("none", "JKS by default", "missing file", "empty directory", "another key", "garbage", "only a key"),
    *("no password", "wrong password", "no chain", "text and file", "PKCS12 with a wrong password", "PEM as PKCS12"),
    *("no truststore", "wrong truststore", "TLS 1.1", "no version", "a choice of 1.3", "unknown suite"),
    "no suite of the version",
)


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, kind: str) -> None:
    configs, problem = wrong_stores(tmp_path)[kind]
    with pytest.raises(InvalidConfig, match=problem) as refusal:
        server_context(configs)
    assert "PRIVATE KEY" not in str(refusal.value) and "secret" not in str(refusal.value)


def test_every_wrong_store_is_tried(tmp_path: Path) -> None:
    assert tuple(wrong_stores(tmp_path)) == WRONG


def test_a_config_of_the_listener_goes_before_the_plain_one(tmp_path: Path) -> None:
    texts = {
        "listeners": "SSL://:1,INNER://:2",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/nowhere",
        "listener.name.inner.ssl.keystore.location": str(SERVER.write_combined(tmp_path / "server.pem")),
    }
    configs, _ = process_configs(texts)
    read_key_store(TlsConfigs(configs, "listener.name.inner."))
    with pytest.raises(InvalidConfig, match=r"^ssl.keystore.location: /nowhere"):
        read_key_store(TlsConfigs(configs, "listener.name.ssl."))
    configs, _ = process_configs({**texts, "listener.name.inner.ssl.keystore.location": "/gone"})
    with pytest.raises(InvalidConfig, match=r"^listener.name.inner.ssl.keystore.location: /gone"):
        read_key_store(TlsConfigs(configs, "listener.name.inner."))


@pytest.mark.parametrize(
    ("client_auth", "shown", "accepted"),
    [
        ("none", None, True),
        ("requested", None, True),
        ("requested", "ours", True),
        ("requested", "foreign", False),
        ("required", "ours", True),
        ("required", None, False),
        ("required", "foreign", False),
    ],
)
def test_client_certificates(tmp_path: Path, client_auth: str, shown: str | None, accepted: bool) -> None:
    context, _ = server_context(
        tls(
            keystore_type="PEM",
            keystore_location=str(SERVER.write_combined(tmp_path / "server.pem")),
            client_auth=client_auth,
            truststore_type="PEM",
            truststore_location=str(AUTHORITY.write(tmp_path / "ca.pem")),
        )
    )
    issued: dict[str, Issued] = {"ours": CLIENT, "foreign": Authority("foreign").issue("client")}
    client = client_context(issued[shown].write_combined(tmp_path / "client.pem") if shown else None)
    if accepted:
        shaken(context, client)
    else:
        with pytest.raises(ssl.SSLError):
            shaken(context, client)


def test_a_truststore_in_pkcs12_and_as_text(tmp_path: Path) -> None:
    (tmp_path / "trust.p12").write_bytes(SERVER.pkcs12("secret"))
    location = str(tmp_path / "trust.p12")
    configs = tls(truststore_type="PKCS12", truststore_location=location, truststore_password="secret")
    assert read_trust_store(configs) == SERVER.certificate_pem
    assert read_trust_store(tls(truststore_type="PEM", truststore_certificates=AUTHORITY.pem)) == AUTHORITY.pem
    assert read_trust_store(tls()) is None


@pytest.mark.parametrize(
    ("texts", "version", "suites"),
    [
        ({"enabled_protocols": "TLSv1.2"}, "TLSv1.2", None),
        ({"enabled_protocols": "TLSv1.3"}, "TLSv1.3", None),
        ({}, "TLSv1.3", None),
        ({"enabled_protocols": "TLSv1.2", "cipher_suites": OLD_SUITE}, "TLSv1.2", {"ECDHE-ECDSA-AES128-GCM-SHA256"}),
        ({"cipher_suites": f"{ALL_1_3},{OLD_SUITE}"}, "TLSv1.3", None),
        ({"cipher_suites": ALL_1_3}, "TLSv1.3", None),
    ],
)
def test_versions_and_suites(tmp_path: Path, texts: dict[str, str], version: str, suites: set[str] | None) -> None:
    location = str(SERVER.write_combined(tmp_path / "server.pem"))
    context, _ = server_context(tls(keystore_type="PEM", keystore_location=location, **texts))
    client = shaken(context, client_context())
    assert client.version() == version
    cipher = client.cipher()
    assert cipher is not None and (suites is None or cipher[0] in suites)
    if texts.get("cipher_suites") == ALL_1_3:
        old = client_context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            shaken(context, old)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("DHE-RSA-AES128-GCM-SHA256", "DHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_names_of_suites(name: str, expected: str) -> None:
    assert openssl_suite(name) == expected
    assert expected in [suite["name"] for suite in _every_suite()]


def _every_suite() -> list[dict[str, object]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL")
    return [dict(suite) for suite in context.get_ciphers()]


def test_a_location_with_a_nul_is_refused() -> None:
    """Clients may alter it, and Python raises ValueError for such a path."""
    wrong = tls(keystore_type="PEM", keystore_location="/etc/a\0b")
    with pytest.raises(InvalidConfig, match=r"^ssl.keystore.location: '/etc/a\\x00b' cannot be read: embedded null"):
        read_key_store(wrong)
    with pytest.raises(InvalidConfig, match="embedded null"):
        TlsServer(wrong)


def test_a_renewed_store_gives_a_new_context_and_a_broken_one_keeps_the_former(tmp_path: Path) -> None:
    path = SERVER.write_combined(tmp_path / "server.pem")
    server = TlsServer(tls(keystore_type="PEM", keystore_location=str(path)))
    first = server.context
    assert not server.renew() and server.context is first
    path.write_text("nothing")
    with pytest.raises(InvalidConfig):
        server.renew()
    assert not server.renew() and server.context is first, "a problem is told once"
    path.unlink()
    with pytest.raises(InvalidConfig):
        server.renew()
    AUTHORITY.issue("localhost").write_combined(path)
    assert server.renew() and server.context is not first


def test_a_location_that_the_file_system_does_not_tell_of_is_read_again_at_each_check(tmp_path: Path) -> None:
    """A name that is too long stands for a stale handle of NFS or a failing disk: for these, too, stat fails."""
    path, link = SERVER.write_combined(tmp_path / "server.pem"), tmp_path / "link.pem"
    link.symlink_to(path)
    server = TlsServer(tls(keystore_type="PEM", keystore_location=str(link)))
    first = server.context
    link.unlink()
    link.symlink_to("a" * 300)
    with pytest.raises(InvalidConfig, match=r"link\.pem cannot be read: File name too long"):
        server.renew()
    assert not server.renew() and server.context is first, "a problem is told once"
    link.unlink()
    link.symlink_to(path)
    assert server.renew() and server.context is not first


def test_a_store_that_could_not_be_opened_is_read_again_without_a_change(tmp_path: Path) -> None:
    path = SERVER.write_combined(tmp_path / "server.pem")
    server = TlsServer(tls(keystore_type="PEM", keystore_location=str(path)))
    renewed = AUTHORITY.issue("localhost")
    renewed.write_combined(path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(InvalidConfig, match="Too many open files"):
            server.renew()
        assert not server.renew(), "a problem is told once"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert server.renew()
    shown = shaken(server.context, client_context()).getpeercert(binary_form=True)
    assert shown == ssl.PEM_cert_to_DER_cert(renewed.certificate_pem)


def test_a_secret_that_kubernetes_exchanges_is_seen(tmp_path: Path) -> None:
    """Its files are links through `..data`, which is replaced as a whole."""
    for number, issued in enumerate((SERVER, AUTHORITY.issue("localhost"))):
        issued.write_directory(tmp_path / f"..{number}")
    (tmp_path / "..data").symlink_to("..0")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    server = TlsServer(tls(keystore_type="PEM", keystore_location=str(tmp_path)))
    (tmp_path / "..draft").symlink_to("..1")
    (tmp_path / "..draft").replace(tmp_path / "..data")
    assert server.renew()


def test_a_store_that_an_administrator_names_while_the_gateway_runs(tmp_path: Path) -> None:
    name = "listener.name.ssl.ssl.keystore.location"
    texts = {"listeners": "SSL://:1", "ssl.keystore.type": "PEM", name: str(SERVER.write_combined(tmp_path / "1.pem"))}
    configs = DynamicConfigs(process_configs(texts)[0])
    server = TlsServer(TlsConfigs(configs, "listener.name.ssl."))
    configs.alter({}, {name: str(AUTHORITY.issue("localhost").write_combined(tmp_path / "2.pem"))})
    assert server.renew()
    client = shaken(server.context, client_context())
    assert client.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(SERVER.certificate_pem)


def test_a_refusal_has_the_alert_that_the_client_is_told(tmp_path: Path) -> None:
    location = str(SERVER.write_combined(tmp_path / "server.pem"))
    context, _ = server_context(tls(keystore_type="PEM", keystore_location=location, enabled_protocols="TLSv1.3"))
    old = client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(HandshakeFailed) as refusal:
        shaken(context, old)
    assert refusal.value.alert[0] == 21 and isinstance(refusal.value.__cause__, ssl.SSLError)
