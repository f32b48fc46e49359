"""The command's Kafka connection, for requests that confluent-kafka does not offer and for the first metadata request.

One request at a time. Every wait ends after `timeout_s`; every failure is a CommandFailed.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from kshare.addresses import Address, parse_addresses
from kshare.client_properties import NO_PROPERTIES, Properties, credentials, tls_context
from kshare.failure import CommandFailed
from kshare_kafka_client import connection
from kshare_kafka_client.connection import Connection, ConnectionClosed, error_text
from kshare_upstream.sasl import AuthenticationFailed
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.responses.metadata import MetadataResponse
from kshare_wire.messages import Request, Response

CLIENT_ID = "kshare-cli"
METADATA_VERSION = 12
NEEDS_CREDENTIALS = (
    "; if this listener asks for TLS or SASL, say so in a file for --command-config"
    " (with --from and --to: --from-config and --to-config)"
)

AResponse = TypeVar("AResponse", bound=Response)


class ConnectionFailed(CommandFailed):
    """The broker cannot be reached, or its response is not one of the Kafka protocol."""


class Refused(CommandFailed):
    """A response with an error code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class KafkaConnection:
    """A connection to one broker, with TLS and SASL if `properties` ask for them; a context manager."""

    def __init__(self, address: Address, *, timeout_s: float = 10, properties: Properties = NO_PROPERTIES) -> None:
        tls, user = tls_context(properties), credentials(properties)
        self._closed_hint = "" if "security.protocol" in properties else NEEDS_CREDENTIALS
        try:
            self._connection = Connection(address, client_id=CLIENT_ID, timeout_s=timeout_s, tls=tls)
        except connection.ConnectionFailed as error:
            raise ConnectionFailed(str(error)) from None
        if user is None:
            return
        try:
            self._connection.authenticate(user)
        except (connection.ConnectionFailed, AuthenticationFailed) as error:
            self._connection.close()
            raise ConnectionFailed(str(error)) from None

    def __enter__(self) -> KafkaConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def versions(self) -> dict[int, tuple[int, int]]:
        """By API key, the versions that the broker serves; ConnectionFailed."""
        try:
            return self._connection.ask_versions(CLIENT_ID)
        except connection.ConnectionFailed as error:
            raise ConnectionFailed(str(error)) from None

    def call(self, request: Request[AResponse], version: int) -> AResponse:
        """Sends a request and returns the response; ConnectionFailed if none arrives or it is malformed."""
        try:
            return self._connection.ask(request, version)
        except ConnectionClosed as error:
            raise ConnectionFailed(f"{error}{self._closed_hint}") from None
        except connection.ConnectionFailed as error:
            raise ConnectionFailed(str(error)) from None


def connect_to_any(
    bootstrap: str, *, what: str = "--bootstrap", timeout_s: float = 10, properties: Properties = NO_PROPERTIES
) -> KafkaConnection:
    """A connection to the first of the addresses `HOST:PORT[,…]` that can be reached; ConnectionFailed of the last."""
    *others, last = parse_addresses(bootstrap, what=what)
    for address in others:
        with suppress(ConnectionFailed):
            return KafkaConnection(address, timeout_s=timeout_s, properties=properties)
    return KafkaConnection(last, timeout_s=timeout_s, properties=properties)


def read_metadata(
    address: Address, *, timeout_s: float = 5, properties: Properties = NO_PROPERTIES
) -> MetadataResponse:
    """The cluster's brokers and topics (Metadata v12)."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    with KafkaConnection(address, timeout_s=timeout_s, properties=properties) as found:
        return found.call(request, METADATA_VERSION)


def refuse(code: int, what: str, message: str | None = None) -> None:
    """Raises Refused if `code` is an error."""
    if code:
        raise Refused(code, f"{what} failed: {error_text(code, message)}")
