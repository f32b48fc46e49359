"""`--command-config`: client properties for connections with TLS or SASL, under librdkafka's names.

The file has the syntax of Java properties. All properties go to confluent-kafka, which checks their names in
each command. `KafkaConnection`, which the commands use for requests without a librdkafka call, supports only those of
`kshare_kafka_client.client_security`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from kshare.failure import BAD_USE, CommandFailed
from kshare_kafka_client import client_security
from kshare_kafka_client.client_security import InvalidSecurity
from kshare_servicekit.properties import parse_properties
from kshare_upstream.sasl import Credentials

Properties = Mapping[str, str]
NO_PROPERTIES: Properties = {}
BOOTSTRAP_SERVERS = "bootstrap.servers"
SECURITY_PROTOCOL = "security.protocol"


def read_properties(path: Path | None) -> Properties:
    """The file's properties, none without a file; CommandFailed if it cannot be read or a property does not exist.

    Without `bootstrap.servers`, which a profile has: a command connects to its `--bootstrap`.
    """
    if path is None:
        return NO_PROPERTIES
    try:
        found = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"--command-config {path}: {error}", BAD_USE) from None
    found.pop(BOOTSTRAP_SERVERS, None)
    _check_names(path, found)
    return found


def _check_names(path: Path, properties: Properties) -> None:
    """CommandFailed for a property that librdkafka does not know, also where a command has no use for librdkafka.

    A producer that connects nowhere checks them, within milliseconds. Without the protocol it loads no certificates.
    """
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({**{name: properties[name] for name in properties if name != SECURITY_PROTOCOL}, "log_level": 0})
    except KafkaException as error:
        raise CommandFailed(f"--command-config {path}: {error.args[0].str()}", BAD_USE) from None
    except (TypeError, ValueError) as error:
        raise CommandFailed(f"--command-config {path}: {error}", BAD_USE) from None


def security_protocol(properties: Properties) -> str:
    """As `client_security.security_protocol`; CommandFailed."""
    try:
        return client_security.security_protocol(properties)
    except InvalidSecurity as error:
        raise CommandFailed(f"--command-config: {error}", BAD_USE) from None


def credentials(properties: Properties) -> Credentials | None:
    """The SASL credentials of a `KafkaConnection`; None without SASL. CommandFailed."""
    try:
        return client_security.credentials(properties)
    except InvalidSecurity as error:
        raise CommandFailed(f"--command-config: {error}", BAD_USE) from None


def tls_context(properties: Properties) -> ssl.SSLContext | None:
    """The TLS context of a `KafkaConnection`; None without TLS. CommandFailed."""
    try:
        return client_security.tls_context(properties)
    except InvalidSecurity as error:
        raise CommandFailed(f"--command-config: {error}", BAD_USE) from None
