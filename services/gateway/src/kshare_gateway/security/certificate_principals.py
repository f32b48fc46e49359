"""Principals of clients with certificates: `ssl.principal.mapping.rules` as in SslPrincipalMapper of Kafka 4.3.1.

A rule is DEFAULT, which takes the subject's distinguished name as it is, or RULE:pattern/replacement/[LU]: a name that
the pattern matches as a whole becomes the replacement, in small (L) or capital (U) letters. The first rule that matches
counts. A name is written as Java writes it (RFC 2253): attributes without a keyword there have their number and their
value in hexadecimal digits.
"""

from __future__ import annotations

import re

from cryptography import x509
from cryptography.x509.oid import NameOID

from kshare_core.configs import InvalidConfig
from kshare_core.security.principals import ANONYMOUS, user
from kshare_gateway.security.mapping_rules import MappingRule, mapping_rule

KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_UTF8_STRING = 0x0C
_SPECIAL = re.compile(r'([,+"\\<>;])')


class CertificatePrincipals:
    """The principals of certificates by the rules; InvalidConfig for rules that cannot be read."""

    def __init__(self, rules: str) -> None:
        self._rules: list[MappingRule | None] = []
        """None: DEFAULT."""
        position = 0
        while position < len(rules):
            match = _RULE.match(rules, position)
            if match is None or match.end() == position:
                raise InvalidConfig(
                    f"ssl.principal.mapping.rules has {rules[position:]!r}; a rule is DEFAULT or "
                    "RULE:pattern/replacement/ with an L or U at its end, and rules have commas between them"
                )
            self._rules.append(None if match[1] else mapping_rule(match[2], match[3], match[4]))
            position = match.end()

    def principal(self, certificate: bytes | None) -> str | None:
        """The principal of a client certificate (DER), ANONYMOUS without one; None if no rule matches its name."""
        if certificate is None:
            return ANONYMOUS
        name = distinguished_name(x509.load_der_x509_certificate(certificate).subject)
        for rule in self._rules or [None]:
            found = name if rule is None else rule.apply(name)
            if found is not None:
                return user(found)
        return None


def distinguished_name(subject: x509.Name) -> str:
    """The name as X500Principal.getName() writes it, the most specific part first."""
    return ",".join("+".join(_written(attribute) for attribute in rdn) for rdn in reversed(list(subject.rdns)))


def _written(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword, value = KEYWORDS.get(attribute.oid), attribute.value
    if keyword is not None and isinstance(value, str):
        return f"{keyword}={_escaped(value)}"
    content = value if isinstance(value, bytes) else value.encode()
    length = len(content)
    longer = length.to_bytes((length.bit_length() + 7) // 8)
    header = bytes([length]) if length < 0x80 else bytes([0x80 | len(longer)]) + longer
    tag = getattr(getattr(attribute, "_type", None), "value", _UTF8_STRING)
    return f"{attribute.oid.dotted_string}=#{(bytes([tag]) + header + content).hex()}"


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return text
