"""The command's Kafka connection: requests that confluent-kafka has no call for, and a first look at a cluster.

One request at a time. Every wait ends after `timeout_s`; every failure is a CommandFailed.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from kshare.addresses import Address
from kshare.client_properties import NO_PROPERTIES, Properties, tls_context
from kshare.failure import CommandFailed
from kshare_kafka_client import connection
from kshare_kafka_client.connection import Connection, error_text
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.responses.metadata import MetadataResponse
from kshare_wire.messages import Request, Response

CLIENT_ID = "kshare-cli"
METADATA_VERSION = 12

AResponse = TypeVar("AResponse", bound=Response)


class ConnectionFailed(CommandFailed):
    """The other side cannot be reached, or did not answer as Kafka does."""


class KafkaConnection:
    """One connection to one broker, with TLS where `properties` say so; a context manager."""

    def __init__(self, address: Address, *, timeout_s: float = 10, properties: Properties = NO_PROPERTIES) -> None:
        tls = tls_context(properties)
        try:
            self._connection = Connection(address, client_id=CLIENT_ID, timeout_s=timeout_s, tls=tls)
        except connection.ConnectionFailed as error:
            raise ConnectionFailed(str(error)) from None

    def __enter__(self) -> KafkaConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def call(self, request: Request[AResponse], version: int) -> AResponse:
        """The response to a request of this version; ConnectionFailed when there is none that can be read."""
        try:
            return self._connection.ask(request, version)
        except connection.ConnectionFailed as error:
            raise ConnectionFailed(str(error)) from None


def read_metadata(
    address: Address, *, timeout_s: float = 5, properties: Properties = NO_PROPERTIES
) -> MetadataResponse:
    """Brokers and topics, as any client sees them."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    with KafkaConnection(address, timeout_s=timeout_s, properties=properties) as found:
        return found.call(request, METADATA_VERSION)


def refuse(code: int, what: str, message: str | None = None) -> None:
    """CommandFailed where a response carries an error."""
    if code:
        raise CommandFailed(f"{what} failed: {error_text(code, message)}")
