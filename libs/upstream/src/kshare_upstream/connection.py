"""One connection to one broker of an existing cluster, on asyncio: typed requests, many of them under way at once.

A broker answers the requests of a connection in order, so responses need no search, and a request that waits (a long
poll) delays those behind it: callers that long-poll have a connection of their own. A connection that failed, or whose
response is late, is closed, and every request under way fails with ConnectionLost: whether it took effect is unknown.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from kshare_upstream.sasl import AuthenticationFailed, Credentials, exchange
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.requests.sasl_authenticate import SaslAuthenticateRequest
from kshare_wire.generated.requests.sasl_handshake import SaslHandshakeRequest
from kshare_wire.messages import MalformedRequest, Request, Response, decode_response, encode_request

MAXIMUM_RESPONSE_BYTES = 1 << 30
RECEIVE_BYTES = 64 * 1024
"""Responses up to this length are cut from one buffer; longer ones are received into a buffer of their own."""
RECEIVE_AT_ONCE_BYTES = 1024 * 1024
"""How much of a longer response the kernel gathers before it wakes this process (SO_RCVLOWAT).

A broker sends it in pieces of its send buffer (socket.send.buffer.bytes, 100 KB), and each would wake the event loop.
"""
SOFTWARE_NAME, SOFTWARE_VERSION = "kshare", "0.1.0"
API_VERSIONS_VERSION = 3
SASL_HANDSHAKE_VERSION = 1
SASL_AUTHENTICATE = VersionRange(1, 2)
SESSION_SHARE = 0.85
"""A connection is used for this share of the session lifetime that the broker allows, as by Kafka's own clients."""

_LENGTH = struct.Struct(">i")

AResponse = TypeVar("AResponse", bound=Response)


class ConnectionLost(OSError):
    """The broker cannot be reached, the connection was lost, or a response is late or malformed."""


class NotServed(Exception):
    """The broker serves no version of an API that kshare can use."""


class BrokerAddress(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What all connections to a cluster have in common."""

    client_id: str = "kshare"
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    request_timeout_ms: int = 30_000
    """Kafka's request.timeout.ms: the limit of the wait for a response."""
    connect_timeout_ms: int = 10_000
    """The limit of connecting, with TLS and authentication (Kafka's socket.connection.setup.timeout.ms)."""
    silence_ms: int = 3_000
    """A broker that owes responses and has sent nothing for so long is looked up at another broker (`Cluster`)."""


class _Sent(NamedTuple):
    """A request under way."""

    correlation_id: int
    kind: type[Response]
    version: int
    response: asyncio.Future[Any]


class Connection:
    """An open connection, authenticated, with the versions that the broker serves. `open_connection` makes one."""

    def __init__(self, address: BrokerAddress, settings: ClientSettings) -> None:
        self.address = address
        self.versions: dict[int, VersionRange] = {}
        """The versions that the broker serves, by API key."""
        self.usable_until_s: float | None = None
        """The event loop's time at which a new connection is to be made, before the broker ends the session."""
        self._settings = settings
        self._stream = _Stream(self)
        self._last_id = 0
        self._sent: deque[_Sent] = deque()
        self._lost: ConnectionLost | None = None
        self._closes_when_idle = False
        self._silent_since_s = 0.0

    @property
    def silent_s(self) -> float:
        """For how long the broker has sent nothing while requests are under way, in seconds."""
        return asyncio.get_running_loop().time() - self._silent_since_s if self._sent else 0.0

    def heard(self) -> None:
        """Notes that the broker sent something."""
        self._silent_since_s = asyncio.get_running_loop().time()

    @property
    def is_open(self) -> bool:
        return self._lost is None

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._sent

    async def ask(self, request: Request[AResponse], served: VersionRange, *, wait_ms: int = 0) -> AResponse:
        """The response, in the highest version that both sides have.

        `wait_ms` is how long the broker may wait before it answers, beyond the request timeout. ConnectionLost;
        NotServed.
        """
        return await self.ask_version(request, self.version(request.API_KEY, served), wait_ms=wait_ms)

    def version(self, api_key: int, served: VersionRange) -> int:
        """The highest version of an API that the broker serves within `served`; NotServed."""
        theirs = self.versions.get(api_key, VersionRange(0, -1))
        highest = min(theirs.maximum, served.maximum)
        if highest < max(theirs.minimum, served.minimum):
            found = f"versions {theirs.minimum} to {theirs.maximum}" if theirs.maximum >= 0 else "none"
            raise NotServed(
                f"broker {self.address} does not serve API {api_key} in versions {served.minimum} to {served.maximum}; "
                f"it serves {found}"
            )
        return highest

    async def ask_version(self, request: Request[AResponse], version: int, *, wait_ms: int = 0) -> AResponse:
        """The response to a request in exactly this version; ConnectionLost."""
        kind: type[AResponse] = request.RESPONSE  # type: ignore[assignment]  # Request[AResponse] says so
        loop = asyncio.get_running_loop()
        response: asyncio.Future[AResponse] = loop.create_future()
        self._send(request, version, kind, response)
        limit_s = (self._settings.request_timeout_ms + wait_ms) / 1000
        # asyncio.timeout would do as well, at five times the price: each state write and each fetch comes by here.
        timer = loop.call_later(limit_s, self._is_late, type(request).__name__, response)
        try:
            return await response
        finally:
            timer.cancel()

    def _is_late(self, name: str, response: asyncio.Future[Any]) -> None:
        if not response.done():
            self.lose(ConnectionLost(f"broker {self.address} did not answer {name} in time"))

    def close(self) -> None:
        """Closes the connection; requests under way fail."""
        self.lose(ConnectionLost(f"the connection to broker {self.address} was closed"))

    def close_when_idle(self) -> None:
        """Closes the connection once no request is under way."""
        self._closes_when_idle = True
        if not self._sent:
            self.close()

    def lose(self, reason: ConnectionLost) -> None:
        """Closes the connection and fails what is under way, with the first reason."""
        if self._lost is not None:
            return
        self._lost = reason
        self._stream.close()
        while self._sent:
            response = self._sent.popleft().response
            if not response.done():
                response.set_exception(ConnectionLost(*reason.args))

    def receive(self, frame: memoryview) -> None:
        """Takes one response, which begins with its correlation id."""
        if len(frame) < 4 or not self._sent:
            self.lose(ConnectionLost(f"broker {self.address} does not speak the Kafka protocol"))
            return
        sent = self._sent.popleft()
        (correlation_id,) = _LENGTH.unpack_from(frame)
        if correlation_id != sent.correlation_id:
            self._sent.appendleft(sent)
            self.lose(
                ConnectionLost(f"broker {self.address} sent correlation id {correlation_id}, not the expected one")
            )
            return
        if not sent.response.done():  # else the caller was cancelled
            try:
                sent.response.set_result(decode_response(sent.kind, sent.version, frame))
            except MalformedRequest as error:
                self._sent.appendleft(sent)
                self.lose(ConnectionLost(f"cannot decode {sent.kind.__name__} from broker {self.address}: {error}"))
                return
        if self._closes_when_idle and not self._sent:
            self.close()

    async def start(self) -> None:
        """Connects, learns the versions and authenticates; ConnectionLost, AuthenticationFailed or NotServed."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                await self._connect()
                await self._learn_versions()
                if settings.credentials is not None:
                    await self._authenticate(settings.credentials)
        except TimeoutError:
            lost = ConnectionLost(f"broker {self.address} is not reached within {settings.connect_timeout_ms} ms")
            self.lose(lost)
            raise lost from None
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> None:
        host, tls = self.address.host, self._settings.tls
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self._stream, host, self.address.port, ssl=tls, server_hostname=host if tls else None
            )
        except (OSError, UnicodeError) as error:
            what = "the TLS handshake with" if isinstance(error, ssl.SSLError) else "connecting to"
            raise ConnectionLost(f"{what} broker {self.address} failed: {error}") from None

    async def _learn_versions(self) -> None:
        """Asks for the versions; a broker that does not know our version of ApiVersions answers in version 0."""
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        answer = await self.ask_version(request, API_VERSIONS_VERSION)
        if answer.error_code:
            raise ConnectionLost(
                f"broker {self.address} refused ApiVersions with error {answer.error_code}; is it older than Kafka 2.4?"
            )
        self.versions = {api.api_key: VersionRange(api.min_version, api.max_version) for api in answer.api_keys}

    async def _authenticate(self, credentials: Credentials) -> None:
        handshake = await self.ask_version(
            SaslHandshakeRequest(mechanism=credentials.mechanism), SASL_HANDSHAKE_VERSION
        )
        if handshake.error_code:
            offered = ", ".join(handshake.mechanisms) or "none"
            raise AuthenticationFailed(
                f"broker {self.address} does not support SASL mechanism {credentials.mechanism}; it supports {offered}"
            )
        messages = exchange(credentials)
        message = next(messages)
        while True:
            answer = await self.ask(SaslAuthenticateRequest(auth_bytes=message), SASL_AUTHENTICATE)
            if answer.error_code:
                text = answer.error_message or "authentication failed"
                raise AuthenticationFailed(f"broker {self.address}, user {credentials.username}: {text}")
            try:
                message = messages.send(bytes(answer.auth_bytes))
            except StopIteration:
                break
        if answer.session_lifetime_ms > 0:
            lifetime_s = answer.session_lifetime_ms * SESSION_SHARE / 1000
            self.usable_until_s = asyncio.get_running_loop().time() + lifetime_s

    def _send(
        self, request: Request[AResponse], version: int, kind: type[AResponse], response: asyncio.Future[AResponse]
    ) -> None:
        if self._lost is not None:
            raise ConnectionLost(*self._lost.args)
        self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        parts = encode_request(request, version, self._last_id, self._settings.client_id)
        if not self._sent:
            self.heard()
        self._sent.append(_Sent(self._last_id, kind, version, response))
        self._stream.write(parts)


async def open_connection(address: BrokerAddress, settings: ClientSettings) -> Connection:
    """A connection that is ready for requests; ConnectionLost, AuthenticationFailed or NotServed."""
    connection = Connection(address, settings)
    await connection.start()
    return connection


class _Stream(asyncio.BufferedProtocol):
    """Cuts the bytes of a connection into responses, without a copy of long ones.

    Bytes are received into `_buffer`. A response that does not fit into it gets a buffer of its length, into which the
    transport then receives directly, in parts of RECEIVE_AT_ONCE_BYTES where the connection is not encrypted: the
    kernel counts the bytes of TLS records, which are not those of the response.
    """

    def __init__(self, owner: Connection) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BYTES)
        self._filled = 0
        self._long: bytearray | None = None
        self._long_filled = 0
        self._socket: socket.socket | None = None
        """None where the kernel cannot be told to gather a long response."""
        self._gathered_bytes = 1

    def write(self, parts: list[bytes | bytearray | memoryview]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of asyncio's
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket")

    def connection_lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error else ""
        self._owner.lose(ConnectionLost(f"the connection to broker {self._owner.address} was lost{reason}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._long is not None:
            return memoryview(self._long)[self._long_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, received: int) -> None:
        self._owner.heard()
        if self._long is None:
            self._filled += received
            self._cut()
            return
        self._long_filled += received
        missing_bytes = len(self._long) - self._long_filled
        self._gather(missing_bytes)
        if not missing_bytes:
            whole, self._long = self._long, None
            self._owner.receive(memoryview(whole))

    def eof_received(self) -> bool:
        return False

    def _cut(self) -> None:
        """Hands on every whole response of the buffer, and keeps what is left over."""
        start = 0
        while self._filled - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if not 4 <= length <= MAXIMUM_RESPONSE_BYTES:
                text = f"broker {self._owner.address} does not speak the Kafka protocol: a response of {length} bytes"
                self._owner.lose(ConnectionLost(text))
                return
            begin, end = start + _LENGTH.size, start + _LENGTH.size + length
            if end > self._filled:
                if length > RECEIVE_BYTES - _LENGTH.size:
                    self._long = bytearray(length)
                    self._long_filled = self._filled - begin
                    self._long[: self._long_filled] = memoryview(self._buffer)[begin : self._filled]
                    self._gather(length - self._long_filled)
                    start = self._filled
                break
            self._owner.receive(memoryview(bytes(memoryview(self._buffer)[begin:end])))
            start = end
        self._filled -= start
        self._buffer[: self._filled] = self._buffer[start : start + self._filled]

    def _gather(self, missing_bytes: int) -> None:
        """Has the kernel wake this process for what is missing of a long response, in large parts; 0: for any byte."""
        wanted_bytes = max(1, min(missing_bytes, RECEIVE_AT_ONCE_BYTES))
        if self._socket is not None and wanted_bytes != self._gathered_bytes:
            self._gathered_bytes = wanted_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted_bytes)
