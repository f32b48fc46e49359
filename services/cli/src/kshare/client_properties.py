"""`--command-config`: how commands reach a cluster that takes TLS only, in librdkafka's names.

security.protocol=ssl
ssl.ca.location=/etc/ssl/company.pem
ssl.certificate.location and ssl.key.location, where the cluster wants a certificate

The file is in the syntax of Java's properties. All of it goes to confluent-kafka; the connections that the commands
open by themselves (groups) understand these names only.
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
    """The file's properties, none without a file; CommandFailed where it cannot be read."""
    if path is None:
        return NO_PROPERTIES
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"--command-config {path}: {error}", BAD_USE) from None


def tls_context(properties: Properties) -> ssl.SSLContext | None:
    """For a connection of our own; None where it is not encrypted. CommandFailed."""
    protocol = properties.get("security.protocol", PLAINTEXT).lower()
    if protocol == PLAINTEXT:
        return None
    if protocol != SSL:
        raise CommandFailed(f"security.protocol is {protocol}; allowed here are {PLAINTEXT} and {SSL}", BAD_USE)
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location") or None)
        certificate = properties.get("ssl.certificate.location")
        if certificate:
            password = properties.get("ssl.key.password", "")
            context.load_cert_chain(certificate, properties.get("ssl.key.location") or None, lambda: password)
    except OSError as error:
        raise CommandFailed(f"the certificates of --command-config cannot be used: {error}", BAD_USE) from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    return context
