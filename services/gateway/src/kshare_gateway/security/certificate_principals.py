"""Principals of clients with certificates: `ssl.principal.mapping.rules` as in SslPrincipalMapper of Kafka 4.3.1.

A rule is DEFAULT, which takes the subject's distinguished name as it is, or RULE:pattern/replacement/[LU]: a name that
the pattern matches as a whole becomes the replacement, in small (L) or capital (U) letters. The first rule that matches
counts. A name is written as Java writes it (X500Principal.getName, RFC 2253): attributes without a keyword there have
their number and their value in hexadecimal digits, and so have values that are no string to Java.
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
_UTF8_STRING, _PRINTABLE_STRING, _T61_STRING, _IA5_STRING = 0x0C, 0x13, 0x14, 0x16
_UNIVERSAL_STRING, _BMP_STRING = 0x1C, 0x1E
_STRINGS = frozenset({_UTF8_STRING, _PRINTABLE_STRING, _T61_STRING, _IA5_STRING, _BMP_STRING})
"""What Java writes as text. It reads the bytes of each as UTF-8, those of a BMPString too."""
_ENCODINGS = {_BMP_STRING: "utf-16-be", _UNIVERSAL_STRING: "utf-32-be"}
_ESCAPES = str.maketrans({**{sign: f"\\{sign}" for sign in ',=+<>#;"\\'}, "\0": "\\00"})
_OUTER_BLANKS = re.compile(r"\A[ \r]+|[ \r]+\Z")


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
        """The principal of a client certificate (DER), ANONYMOUS without one; None if no rule matches its name.

        None also for a name that cannot be read, such as a T61String with letters beyond ASCII.
        """
        if certificate is None:
            return ANONYMOUS
        try:
            name = distinguished_name(x509.load_der_x509_certificate(certificate).subject)
        except ValueError:
            return None
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
    tag = getattr(getattr(attribute, "_type", None), "value", _UTF8_STRING)
    content = value if isinstance(value, bytes) else value.encode(_ENCODINGS.get(tag, "utf-8"))
    if keyword is not None and tag in _STRINGS:
        return f"{keyword}={_escaped(content.decode(errors='replace'))}"
    length = len(content)
    longer = length.to_bytes((length.bit_length() + 7) // 8)
    header = bytes([length]) if length < 0x80 else bytes([0x80 | len(longer)]) + longer
    name = attribute.oid.dotted_string if keyword is None else keyword
    return f"{name}=#{(bytes([tag]) + header + content).hex()}"


def _escaped(value: str) -> str:
    return _OUTER_BLANKS.sub(lambda blanks: "".join(f"\\{blank}" for blank in blanks[0]), value.translate(_ESCAPES))
