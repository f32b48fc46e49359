"""Principals of certificates: names as Java writes them, and the rules that change them."""

from __future__ import annotations

import datetime
import re

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.x509.name import _ASN1Type as Asn1
from cryptography.x509.oid import NameOID

from kshare_core.configs import InvalidConfig, process_configs
from kshare_gateway.connections.listeners import configured_listeners
from kshare_gateway.security.certificate_principals import CertificatePrincipals, distinguished_name
from kshare_gateway.security.configuration import certificate_principals
from support.environment.certificates import Authority

CN, ORGANIZATION, C = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.COUNTRY_NAME
EMAIL, UID = NameOID.EMAIL_ADDRESS, NameOID.USER_ID
KEY = generate_private_key(SECP256R1())


def name_of(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def certificate_of(subject: x509.Name) -> x509.Certificate:
    """As a client presents it: read from its DER."""
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(name_of((CN, "issuer")))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return x509.load_der_x509_certificate(_der(made))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (name_of((C, "SE"), (ORGANIZATION, "kshare"), (CN, "worker")), "CN=worker,O=kshare,C=SE"),
        (name_of((CN, 'a,b+c"d\\e;f<g>')), 'CN=a\\,b\\+c\\"d\\\\e\\;f\\<g\\>'),
        (name_of((CN, "#a ")), "CN=\\#a\\ "),
        (name_of((CN, "a"), (EMAIL, "a@b.se")), "1.2.840.113549.1.9.1=#1606614062 2e7365".replace(" ", "") + ",CN=a"),
        (
            x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(CN, "b"), x509.NameAttribute(UID, "a")])]),
            "CN=b+UID=a",
        ),
        (name_of((ORGANIZATION, "x"), (CN, "a=b")), "CN=a\\=b,O=x"),
        (name_of((ORGANIZATION, "x"), (CN, "a#b")), "CN=a\\#b,O=x"),
        (name_of((NameOID.STREET_ADDRESS, "x=1"), (UID, "us er")), "UID=us er,STREET=x\\=1"),
        (name_of((CN, "  two  ")), "CN=\\ \\ two\\ \\ "),
        (name_of((CN, " ")), "CN=\\ "),
        (name_of((CN, "   ")), "CN=\\ \\ \\ "),
        (name_of((CN, "a  b")), "CN=a  b"),
        (name_of((CN, "\\ ")), "CN=\\\\\\ "),
        (name_of((CN, " \n ")), "CN=\\ \n\\ "),
        (name_of((CN, "\r a\t")), "CN=\\\r\\ a\t"),
        (name_of((CN, "a\0b")), "CN=a\\00b"),
        (name_of((CN, "\u00a0é\u3000")), "CN=\u00a0é\u3000"),
        (x509.Name([x509.NameAttribute(CN, " 1", Asn1.T61String)]), "CN=\\ 1"),
        (x509.Name([x509.NameAttribute(CN, " 1", Asn1.PrintableString)]), "CN=\\ 1"),
        (x509.Name([x509.NameAttribute(CN, " 1", Asn1.IA5String)]), "CN=\\ 1"),
        (x509.Name([x509.NameAttribute(CN, " 1", Asn1.BMPString)]), "CN=\\00 \\001"),
        (x509.Name([x509.NameAttribute(CN, " 1", Asn1.UniversalString)]), "CN=#1c080000002000000031"),
        (x509.Name([x509.NameAttribute(CN, " 1", Asn1.NumericString)]), "CN=#12022031"),
        (x509.Name([x509.NameAttribute(CN, " 1", Asn1.VisibleString)]), "CN=#1a022031"),
        (x509.Name([x509.NameAttribute(EMAIL, "1", Asn1.BMPString)]), "1.2.840.113549.1.9.1=#1e020031"),
        (x509.Name([]), ""),
    ],
)
def test_a_name_is_written_as_java_writes_it(name: x509.Name, text: str) -> None:
    """The texts are those of X500Principal.getName() for the DER of these names."""
    assert distinguished_name(certificate_of(name).subject) == text


def test_a_client_whose_name_cannot_be_read_is_nobody() -> None:
    der = _der(certificate_of(x509.Name([x509.NameAttribute(CN, "aX", Asn1.T61String)])))
    written, not_utf_8 = b"\x14\x02aX", b"\x14\x02a\xe9"
    assert CertificatePrincipals("DEFAULT").principal(der) == "User:CN=aX"
    assert CertificatePrincipals("DEFAULT").principal(der.replace(written, not_utf_8)) is None


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "User:CN=Worker-1"),
        ("", "User:CN=Worker-1"),
        ("RULE:^CN=(.*?)$/$1/", "User:Worker-1"),
        ("RULE:^CN=(.*?)$/$1/L", "User:worker-1"),
        ("RULE:^CN=(.*?)-(.*)$/$2@$1/U , DEFAULT", "User:1@WORKER"),
        ("RULE:^OU=.*$/nobody/,RULE:^CN=(.*?)$/$1/", "User:Worker-1"),
        ("RULE:^OU=.*$/nobody/, DEFAULT", "User:CN=Worker-1"),
        ("RULE:^OU=.*$/nobody/", None),
        ("RULE:^CN=(.*?)-(.*)$/$1@$2$3/", "User:Worker@1$3"),
        ("RULE:^CN=(.*?)-(.*)$/$3@$1/", "User:$3@Worker"),
        ("RULE:^CN=(.*?)-(.*)$/$20/", "User:10"),
        (r"RULE:^CN=(.*?)$/\$1 is \\$1\//", "User:$1 is \\Worker-1/"),
        ("RULE:^CN=.*$/<$0>/", "User:<CN=Worker-1>"),
        ("RULE:^(C)(N)(=)(W)(o)(r)(k)(e)(r)(-)(1)$/$11$12/", "User:1C2"),
        ("RULE:^CN=(x)?.*$/[$1]/", "User:[]"),
        ("RULE:(.*)/<$1>/", "User:<CN=Worker-1><>"),
        ("RULE:CN=(.*?)/<$1>/", "User:<>Worker-1"),
        (r"RULE:^CN=[\[a-zA-Z&\]-]+(\d)$/$1/", "User:1"),
        (r"RULE:^CN=[]a-zA-Z\&&-]+(.)$/$1/", "User:1"),
    ],
)
def test_the_first_rule_that_matches_makes_the_principal(rules: str, principal: str | None) -> None:
    certificate = Authority("kshare").issue("Worker-1").certificate
    assert CertificatePrincipals(rules).principal(_der(certificate)) == principal


def test_a_listener_may_have_rules_of_its_own() -> None:
    name = "ssl.principal.mapping.rules"
    configs, _ = process_configs(
        {
            "listeners": "SSL://:1,OTHER://:2,PLAINTEXT://:3",
            "listener.security.protocol.map": "SSL:SSL,OTHER:SSL,PLAINTEXT:PLAINTEXT",
            name: "RULE:^CN=(.*?)$/$1/",
            f"listener.name.other.{name}": "RULE:^CN=(.*?)$/other-$1/",
        }
    )
    principals = certificate_principals(configs, configured_listeners(configs, lambda: "own.example"))
    certificate = _der(Authority("kshare").issue("a").certificate)
    found = {listener: each.principal(certificate) for listener, each in principals.items()}
    assert found == {"SSL": "User:a", "OTHER": "User:other-a"}


@pytest.mark.parametrize("engine", ["embedded", "kafka"])
def test_certificates_say_nothing_where_sasl_says_who_a_client_is(engine: str) -> None:
    texts = {
        "kshare.engine": engine,
        "kshare.upstream.bootstrap.servers": "kafka:9092",
        "kshare.upstream.security.protocol": "SASL_SSL",
        "listeners": "SSL://:1,SASL_SSL://:2",
        "ssl.principal.mapping.rules": "RULE:^OU=.*$/nobody/",
    }
    configs, _ = process_configs({name: text for name, text in texts.items() if engine == "kafka" or "up" not in name})
    principals = certificate_principals(configs, configured_listeners(configs, lambda: "own.example"))
    assert list(principals) == (["SSL"] if engine == "embedded" else [])


def test_a_client_without_a_certificate_is_anonymous() -> None:
    assert CertificatePrincipals("RULE:^CN=(.*?)$/$1/").principal(None) == "User:ANONYMOUS"


def test_classes_of_characters_are_ascii_as_in_java() -> None:
    certificate = _der(Authority("kshare").issue("W\u00f6rker").certificate)
    assert CertificatePrincipals(r"RULE:^CN=(\w+)$/$1/").principal(certificate) is None
    assert CertificatePrincipals(r"RULE:^CN=(\S+)$/$1/").principal(certificate) == "User:W\u00f6rker"


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("RULE:CN=(.*)", "a rule is DEFAULT or"),
        ("RULE:[/x/", "unterminated character set"),
        ("default", "a rule is DEFAULT or"),
        ("DEFAULT RULE:a/b/", "a rule is DEFAULT or"),
        ("RULE:(?u)CN=.*/x/", "incompatible"),
        ("RULE:CN=.*/$1/", "has the group 1, and the pattern has 0"),
        ("RULE:CN=(.*)/$2$3/", "has the group 3, and the pattern has 1"),
        (r"RULE:CN=(.*)/\$2/", "has the group 2, and the pattern has 1"),
        ("RULE:CN=(.*)/$/", "without the number of a group"),
        ("RULE:CN=(.*)/${name}/", "without the number of a group"),
        ("RULE:CN=([a-z&&[^x]]+)/$1/", "&& or a class within"),
        ("RULE:CN=([a-z&&b]+)/$1/", "&& or a class within"),
        (r"RULE:CN=([\]a&&b]+)/$1/", "&& or a class within"),
        ("RULE:CN=([a-f[m-p]]+)/$1/", "&& or a class within"),
    ],
)
def test_rules_that_cannot_be_read_are_refused_with_their_text(rules: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^ssl\.principal\.mapping\.rules:? .*{re.escape(why)}"):
        CertificatePrincipals(rules)


def _der(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)
