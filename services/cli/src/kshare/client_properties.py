"""`--command-config`: client properties for connections with TLS or SASL, under librdkafka's names.

security.protocol=sasl_ssl (or ssl, sasl_plaintext)
ssl.ca.location=/etc/ssl/company.pem
ssl.certificate.location and ssl.key.location, if the cluster requires a client certificate
sasl.mechanism=SCRAM-SHA-512 (or SCRAM-SHA-256, PLAIN), sasl.username and sasl.password

The file has the syntax of Java properties. All properties go to confluent-kafka. `KafkaConnection`, which the commands
use for requests without a librdkafka call, supports only those above.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from kshare.failure import BAD_USE, CommandFailed
from kshare_servicekit.properties import parse_properties
from kshare_upstream.sasl import MECHANISMS, Credentials

Properties = Mapping[str, str]
NO_PROPERTIES: Properties = {}
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "plaintext", "ssl", "sasl_plaintext", "sasl_ssl"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)


def read_properties(path: Path | None) -> Properties:
    """The file's properties, none without a file; CommandFailed if it cannot be read."""
    if path is None:
        return NO_PROPERTIES
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"--command-config {path}: {error}", BAD_USE) from None


def security_protocol(properties: Properties) -> str:
    """One of `PROTOCOLS`; CommandFailed for another value."""
    protocol = properties.get("security.protocol", PLAINTEXT).lower()
    if protocol not in PROTOCOLS:
        raise CommandFailed(f"security.protocol must be one of {', '.join(PROTOCOLS)}, found {protocol}", BAD_USE)
    return protocol


def credentials(properties: Properties) -> Credentials | None:
    """The SASL credentials of a `KafkaConnection`; None without SASL. CommandFailed."""
    if security_protocol(properties) not in (SASL_PLAINTEXT, SASL_SSL):
        return None
    mechanism = (
        properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    )  # librdkafka's default
    if mechanism not in MECHANISMS:
        raise CommandFailed(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, found {mechanism}", BAD_USE)
    missing = [name for name in ("sasl.username", "sasl.password") if name not in properties]
    if missing:
        raise CommandFailed(f"--command-config has no {' and no '.join(missing)}; {mechanism} needs both", BAD_USE)
    return Credentials(mechanism, properties["sasl.username"], properties["sasl.password"])


def tls_context(properties: Properties) -> ssl.SSLContext | None:
    """The TLS context of a `KafkaConnection`; None without TLS. CommandFailed."""
    if security_protocol(properties) not in (SSL, SASL_SSL):
        return None
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location") or None)
        certificate = properties.get("ssl.certificate.location")
        if certificate:
            password = properties.get("ssl.key.password", "")
            context.load_cert_chain(certificate, properties.get("ssl.key.location") or None, lambda: password)
    except OSError as error:
        raise CommandFailed(f"cannot load the certificates of --command-config: {error}", BAD_USE) from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    return context
