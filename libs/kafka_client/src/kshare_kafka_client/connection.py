"""A connection to one broker: Kafka's protocol over a blocking socket, with optional TLS and SASL.

Responses arrive in the order of requests. Several requests may be in flight (`send`, then `receive` for each); `ask`
does both. After ConnectionFailed a connection must not be used any more.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from types import TracebackType
from typing import Any, TypeVar

from kshare_core.errors import ErrorCode
from kshare_upstream.sasl import AuthenticationFailed, Credentials, exchange
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.requests.sasl_authenticate import SaslAuthenticateRequest
from kshare_wire.generated.requests.sasl_handshake import SaslHandshakeRequest
from kshare_wire.messages import MalformedRequest, Request, Response, decode_response, encode_request

MAXIMUM_RESPONSE_BYTES = 1 << 30
RECEIVE_BYTES = 1 << 20
"""The size of one read: a broker that announces a gigabyte and sends nothing costs no memory."""
API_VERSIONS_VERSION = 3
SASL_HANDSHAKE_VERSION = 1
SASL_AUTHENTICATE_VERSION = 2
SOFTWARE_VERSION = "0.1.0"

AResponse = TypeVar("AResponse", bound=Response)


class ConnectionFailed(OSError):
    """The broker cannot be reached, did not respond, or sent a malformed response; the text says which."""


class ConnectionClosed(ConnectionFailed):
    """The broker closed the connection before it responded, as it does when it asks for TLS or SASL."""


class Connection:
    """A connected socket; a context manager. `address` is host and port."""

    def __init__(
        self, address: tuple[str, int], *, client_id: str, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        """Raises ConnectionFailed. `timeout_s` is the limit of each wait: to connect, to send and to receive."""
        self.address = address
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._last_id = 0
        self._awaited: deque[int] = deque()
        self._socket = _connected(address, timeout_s, tls)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Request[AResponse], version: int) -> AResponse:
        """Sends a request and returns its response; ConnectionFailed if none arrives or it is malformed."""
        self.send(request, version)
        kind: type[AResponse] = request.RESPONSE  # type: ignore[assignment]  # Request[AResponse] says so
        return self.receive(kind, version)

    def send(self, request: Request[Any], version: int) -> None:
        """Sends a request; responses must be received in the same order."""
        self._last_id += 1
        data = b"".join(encode_request(request, version, self._last_id, self._client_id))
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionFailed(f"cannot send {type(request).__name__} to {self.name}: {error}") from error
        self._awaited.append(self._last_id)

    def receive(self, kind: type[AResponse], version: int, *, wait_ms: int = 0) -> AResponse:
        """The response to the oldest request; `wait_ms` is added to the timeout."""
        expected = self._awaited.popleft()
        try:
            self._socket.settimeout(self._timeout_s + wait_ms / 1000)
            (length,) = struct.unpack(">i", self._exactly(4))
            if not 4 <= length <= MAXIMUM_RESPONSE_BYTES:
                raise ConnectionFailed(
                    f"{self.name} does not speak the Kafka protocol: its response has a length of {length} bytes"
                )
            frame = self._exactly(length)
        except ConnectionFailed:
            raise
        except OSError as error:
            raise ConnectionFailed(f"cannot receive {kind.__name__} from {self.name}: {error}") from error
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id != expected:
            raise ConnectionFailed(f"{self.name} sent correlation id {correlation_id}, expected {expected}")
        try:
            return decode_response(kind, version, memoryview(frame))
        except MalformedRequest as error:
            raise ConnectionFailed(f"cannot decode {kind.__name__} from {self.name}: {error}") from None

    def ask_versions(self, software_name: str) -> dict[int, tuple[int, int]]:
        """The lowest and highest version of each API that the broker serves; ConnectionFailed."""
        request = ApiVersionsRequest(client_software_name=software_name, client_software_version=SOFTWARE_VERSION)
        answer = self.ask(request, API_VERSIONS_VERSION)
        if answer.error_code:
            raise ConnectionFailed(f"{self.name} refused ApiVersions: {error_text(answer.error_code)}")
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def authenticate(self, credentials: Credentials) -> None:
        """Authenticates with PLAIN or SCRAM; AuthenticationFailed or ConnectionFailed."""
        handshake = self.ask(SaslHandshakeRequest(mechanism=credentials.mechanism), SASL_HANDSHAKE_VERSION)
        if handshake.error_code:
            served = ", ".join(handshake.mechanisms) or "none"
            raise AuthenticationFailed(
                f"broker {self.name} does not support SASL mechanism {credentials.mechanism}; it supports {served}"
            )
        messages = exchange(credentials)
        message = next(messages)
        while True:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=message), SASL_AUTHENTICATE_VERSION)
            if answer.error_code:
                text = answer.error_message or "authentication failed"
                raise AuthenticationFailed(f"broker {self.name}, user {credentials.username}: {text}")
            try:
                message = messages.send(bytes(answer.auth_bytes))
            except StopIteration:
                return

    def _exactly(self, size: int) -> bytearray:
        found = bytearray()
        while len(found) < size:
            received = self._socket.recv(min(size - len(found), RECEIVE_BYTES))
            if not received:
                raise ConnectionClosed(f"{self.name} closed the connection before it responded")
            found += received
        return found


def _connected(address: tuple[str, int], timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    name = f"{address[0]}:{address[1]}"
    try:
        plain = socket.create_connection(address, timeout=timeout_s, all_errors=True)
    except ExceptionGroup as errors:
        # Of a name with several addresses the broker has the one that refuses, not the one that this host has no route
        # to, such as ::1 in a container.
        told = next((each for each in errors.exceptions if isinstance(each, ConnectionRefusedError)), None)
        error = told or errors.exceptions[-1]
        raise ConnectionFailed(f"cannot connect to {name}: {error}") from error
    except (OSError, UnicodeError) as error:
        raise ConnectionFailed(f"cannot connect to {name}: {error}") from error
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=address[0])
    except OSError as error:
        plain.close()
        raise ConnectionFailed(f"the TLS handshake with {name} failed: {error}") from error


def error_text(code: int, message: str | None = None) -> str:
    """A response's error code and message as text, such as "NOT_COORDINATOR: it moved"."""
    known = code in ErrorCode.__members__.values()
    name = ErrorCode(code).name if known else f"error {code}"
    return f"{name}: {message}" if message else name
