"""TLS and SASL of a client, by librdkafka's property names, for connections that are not librdkafka's.

security.protocol=sasl_ssl (or plaintext, ssl, sasl_plaintext)
ssl.ca.location=/etc/ssl/company.pem
ssl.certificate.location and ssl.key.location, if the cluster requires a client certificate
sasl.mechanism=SCRAM-SHA-512 (or SCRAM-SHA-256, PLAIN), sasl.username and sasl.password
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from kshare_upstream.sasl import MECHANISMS, Credentials

Properties = Mapping[str, str]
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "plaintext", "ssl", "sasl_plaintext", "sasl_ssl"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)


class InvalidSecurity(ValueError):
    """A property is missing or wrong; the text says which, and what is allowed."""


def security_protocol(properties: Properties) -> str:
    """One of `PROTOCOLS`; InvalidSecurity for another value."""
    protocol = properties.get("security.protocol", PLAINTEXT).lower()
    if protocol not in PROTOCOLS:
        raise InvalidSecurity(f"security.protocol must be one of {', '.join(PROTOCOLS)}, found {protocol}")
    return protocol


def uses_sasl(properties: Properties) -> bool:
    """Whether clients authenticate with user name and password; InvalidSecurity."""
    return security_protocol(properties) in (SASL_PLAINTEXT, SASL_SSL)


def sasl_mechanism(properties: Properties) -> str:
    """One of MECHANISMS; InvalidSecurity for another value, and for librdkafka's default GSSAPI."""
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    if mechanism not in MECHANISMS:
        raise InvalidSecurity(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, found {mechanism}")
    return mechanism


def credentials(properties: Properties) -> Credentials | None:
    """The SASL credentials; None without SASL. InvalidSecurity."""
    if not uses_sasl(properties):
        return None
    mechanism = sasl_mechanism(properties)
    missing = [name for name in ("sasl.username", "sasl.password") if name not in properties]
    if missing:
        raise InvalidSecurity(f"there is no {' and no '.join(missing)}; {mechanism} needs both")
    return Credentials(mechanism, properties["sasl.username"], properties["sasl.password"])


def tls_context(properties: Properties) -> ssl.SSLContext | None:
    """The TLS context; None without TLS. InvalidSecurity if certificates cannot be loaded."""
    if security_protocol(properties) not in (SSL, SASL_SSL):
        return None
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location") or None)
        certificate = properties.get("ssl.certificate.location")
        if certificate:
            password = properties.get("ssl.key.password", "")
            context.load_cert_chain(certificate, properties.get("ssl.key.location") or None, lambda: password)
    except OSError as error:
        raise InvalidSecurity(f"cannot load the certificates: {error}") from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    return context
