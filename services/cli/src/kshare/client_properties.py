"""`--command-config`: client properties for connections with TLS, under librdkafka's names.

security.protocol=ssl
ssl.ca.location=/etc/ssl/company.pem
ssl.certificate.location and ssl.key.location, if the cluster requires a client certificate

The file has the syntax of Java properties. All properties go to confluent-kafka. `KafkaConnection`, which the commands
use for requests without a librdkafka call, supports only those above.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from kshare.failure import BAD_USE, CommandFailed
from kshare_servicekit.properties import parse_properties

Properties = Mapping[str, str]
NO_PROPERTIES: Properties = {}
PLAINTEXT, SSL = "plaintext", "ssl"


def read_properties(path: Path | None) -> Properties:
    """The file's properties, none without a file; CommandFailed if it cannot be read."""
    if path is None:
        return NO_PROPERTIES
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"--command-config {path}: {error}", BAD_USE) from None


def tls_context(properties: Properties) -> ssl.SSLContext | None:
    """The TLS context of a `KafkaConnection`; None for plaintext. CommandFailed."""
    protocol = properties.get("security.protocol", PLAINTEXT).lower()
    if protocol == PLAINTEXT:
        return None
    if protocol != SSL:
        raise CommandFailed(f"security.protocol must be {PLAINTEXT} or {SSL}, found {protocol}", BAD_USE)
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
