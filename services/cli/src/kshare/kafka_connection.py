"""A blocking Kafka connection for the requests that confluent-kafka has no call for, and for a first look at a cluster.

One request at a time; kio has the messages. Every wait ends after `timeout_s`.
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
from types import TracebackType
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i32

from kshare.addresses import Address
from kshare.client_properties import NO_PROPERTIES, Properties, tls_context
from kshare.failure import CommandFailed

MAX_RESPONSE_BYTES = 100 * 1024 * 1024
CLIENT_ID = "kshare-cli"

Response = TypeVar("Response")


class ConnectionFailed(CommandFailed):
    """The other side cannot be reached, or did not answer as Kafka does."""


class KafkaConnection:
    """One connection to one broker, with TLS where `properties` say so; a context manager."""

    def __init__(self, address: Address, *, timeout_s: float = 10, properties: Properties = NO_PROPERTIES) -> None:
        self._address = address
        self._correlation_id = 0
        tls = tls_context(properties)
        try:
            self._socket = socket.create_connection(address, timeout=timeout_s)
        except (OSError, UnicodeError) as error:
            raise ConnectionFailed(f"nothing answers at {address}: {error}") from None
        if tls is not None:
            self._encrypt(tls)

    def _encrypt(self, tls: ssl.SSLContext) -> None:
        plain = self._socket
        try:
            self._socket = tls.wrap_socket(plain, server_hostname=self._address.host)
        except OSError as error:
            plain.close()
            raise ConnectionFailed(f"no TLS with {self._address}: {error}") from None

    def __enter__(self) -> KafkaConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def call(self, request: Any, response_type: type[Response]) -> Response:
        """The response to one of kio's requests; ConnectionFailed when there is none that can be read."""
        self._correlation_id += 1
        header_type = request.__header_schema__
        header = header_type(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(self._correlation_id),
            client_id=CLIENT_ID,
        )
        buffer = io.BytesIO()
        entity_writer(header_type)(buffer, header)
        entity_writer(type(request))(buffer, request)
        message = buffer.getvalue()
        try:
            self._socket.sendall(struct.pack(">i", len(message)) + message)
            (length,) = struct.unpack(">i", self._receive(4))
            if not 4 <= length <= MAX_RESPONSE_BYTES:
                raise ConnectionFailed(
                    f"{self._address} does not speak the Kafka protocol: a response of {length} bytes"
                )
            response: Response = self._read(self._receive(length), response_type)
            return response
        except OSError as error:
            raise ConnectionFailed(f"{self._address} did not answer {type(request).__name__}: {error}") from None
        except (SerialError, ValueError) as error:
            raise ConnectionFailed(f"{self._address} sent no {response_type.__name__}: {error}") from None

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionFailed(f"{self._address} closed the connection before it answered")
            parts += part
        return bytes(parts)

    def _read(self, message: bytes, response_type: Any) -> Any:
        header, size = entity_reader(response_type.__header_schema__)(message, 0)
        if header.correlation_id != self._correlation_id:
            raise ConnectionFailed(f"{self._address} answered another request: correlation id {header.correlation_id}")
        response, _ = entity_reader(response_type)(message, size)
        return response


def read_metadata(
    address: Address, *, timeout_s: float = 5, properties: Properties = NO_PROPERTIES
) -> MetadataResponse:
    """Brokers and topics, as any client sees them."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    with KafkaConnection(address, timeout_s=timeout_s, properties=properties) as connection:
        return connection.call(request, MetadataResponse)


def refuse(code: ErrorCode, what: str, message: str | None = None) -> None:
    """CommandFailed where an answer carries an error."""
    if code is not ErrorCode.none:
        raise CommandFailed(f"{what} failed: {code.name.upper()}{': ' + message if message else ''}")
