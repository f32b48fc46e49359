"""Principals of certificates: names as Java writes them, and the rules that change them."""

from __future__ import annotations

import re

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from kshare_core.configs import InvalidConfig, process_configs
from kshare_gateway.connections.listeners import configured_listeners
from kshare_gateway.security.certificate_principals import CertificatePrincipals, distinguished_name
from kshare_gateway.security.configuration import certificate_principals
from support.environment.certificates import Authority

CN, ORGANIZATION, C = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.COUNTRY_NAME
EMAIL = NameOID.EMAIL_ADDRESS


def name_of(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (name_of((C, "SE"), (ORGANIZATION, "kshare"), (CN, "worker")), "CN=worker,O=kshare,C=SE"),
        (name_of((CN, 'a,b+c"d\\e;f<g>')), 'CN=a\\,b\\+c\\"d\\\\e\\;f\\<g\\>'),
        (name_of((CN, "#a ")), "CN=\\#a\\ "),
        (name_of((CN, "a"), (EMAIL, "a@b.se")), "1.2.840.113549.1.9.1=#1606614062 2e7365".replace(" ", "") + ",CN=a"),
        (
            x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(CN, "a")])]),
            "CN=a",
        ),
    ],
)
def test_a_name_is_written_as_java_writes_it(name: x509.Name, text: str) -> None:
    assert distinguished_name(name) == text


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
