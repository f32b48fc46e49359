"""One connection to a broker: Kafka's protocol with blocking sockets, TLS and SASL.

Requests and answers are kio's classes of a version; `ask` takes the fields of the newest names as keyword arguments,
nested structs as dicts, times in milliseconds. Answers are whole frames of at most MAXIMUM_FRAME_BYTES.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import socket
import ssl
import struct
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import classify_field, is_optional  # no public way to ask a kio class for its fields' types

from kshare_core.errors import ErrorCode
from kshare_pipeline.share_source.authentication import AuthenticationFailed, exchange
from kshare_pipeline.share_source.options import ClientProperties
from kshare_wire.api_versions import ApiKey
from kshare_wire.messages import is_flexible

MAXIMUM_FRAME_BYTES = 1 << 30
SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36
API_VERSIONS_VERSION = 3
_HEADER = struct.Struct(">hhih")


class ConnectionFailed(OSError):
    """The broker cannot be reached, or the connection ended."""


class Connection:
    """A connection that is ready for requests: TLS and SASL are done, `versions` says what the broker serves."""

    def __init__(self, address: tuple[str, int], properties: ClientProperties) -> None:
        """Raises ConnectionFailed or AuthenticationFailed."""
        self.address = address
        self._client_id = properties.client_id.encode()
        self._last_id = 0
        self._timeout_s = properties.request_timeout_ms / 1000
        self._socket = _connected(address, properties, self._timeout_s)
        try:
            self.versions = self._ask_versions()
            if properties.sasl_mechanism is not None:
                self._authenticate(properties)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """The answer; ConnectionFailed where none comes, after which the connection is of no use."""
        self.send(api_key, version, **values)
        return self.receive(api_key, version)

    def send(self, api_key: int, version: int, **values: Any) -> None:
        """Sends a request; the answers are to be received in the same order."""
        self._last_id += 1
        body = io.BytesIO()
        kind = load_request_schema(api_key, version)
        entity_writer(kind)(body, build(kind, values))
        tags = b"\0" if is_flexible(api_key, version) else b""
        head = _HEADER.pack(api_key, version, self._last_id, len(self._client_id)) + self._client_id + tags
        payload = body.getvalue()
        try:
            self._socket.sendall(struct.pack(">i", len(head) + len(payload)) + head + payload)
        except OSError as error:
            raise ConnectionFailed(f"broker {self.name}: {error}") from error

    def receive(self, api_key: int, version: int, *, wait_ms: int = 0) -> Any:
        """The answer to the oldest request; `wait_ms` is added to the time that it may take."""
        try:
            self._socket.settimeout(self._timeout_s + wait_ms / 1000)
            (size,) = struct.unpack(">i", self._exactly(4))
            if not 4 <= size <= MAXIMUM_FRAME_BYTES:
                raise ConnectionFailed(f"broker {self.name} announced an answer of {size} bytes")
            frame = self._exactly(size)
        except OSError as error:
            raise ConnectionFailed(f"broker {self.name}: {error}") from error
        start = 5 if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version) else 4
        answer, _ = entity_reader(load_response_schema(api_key, version))(frame, start)
        return answer

    def serves(self, api_key: int, version: int) -> bool:
        lowest, highest = self.versions.get(api_key, (0, -1))
        return lowest <= version <= highest

    @property
    def name(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _exactly(self, size: int) -> bytes:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise ConnectionFailed(f"broker {self.name} closed the connection")
            view = view[received:]
        return bytes(found)

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.ask(
            ApiKey.API_VERSIONS,
            API_VERSIONS_VERSION,
            client_software_name="kshare-spark",
            client_software_version="0.1.0",
        )
        if answer.error_code:
            raise ConnectionFailed(f"broker {self.name} answers ApiVersions with error {int(answer.error_code)}")
        return {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in answer.api_keys}

    def _authenticate(self, properties: ClientProperties) -> None:
        mechanism = str(properties.sasl_mechanism)
        answer = self.ask(SASL_HANDSHAKE, 1, mechanism=mechanism)
        if answer.error_code:
            raise AuthenticationFailed(
                f"broker {self.name} does not serve SASL {mechanism}, but {', '.join(answer.mechanisms) or 'none'}"
            )
        messages = exchange(mechanism, properties.sasl_username, properties.sasl_password)
        message = next(messages)
        while True:
            answer = self.ask(SASL_AUTHENTICATE, 2, auth_bytes=message)
            if answer.error_code:
                text = answer.error_message or "authentication failed"
                raise AuthenticationFailed(f"broker {self.name}, user {properties.sasl_username}: {text}")
            try:
                message = messages.send(bytes(answer.auth_bytes))
            except StopIteration:
                return


def _connected(address: tuple[str, int], properties: ClientProperties, timeout_s: float) -> socket.socket:
    try:
        plain = socket.create_connection(address, timeout=timeout_s)
    except OSError as error:
        raise ConnectionFailed(f"broker {address[0]}:{address[1]} cannot be reached: {error}") from error
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not properties.tls:
        return plain
    try:
        return _tls(properties).wrap_socket(plain, server_hostname=address[0])
    except OSError as error:
        plain.close()
        raise ConnectionFailed(f"TLS with broker {address[0]}:{address[1]} failed: {error}") from error


def _tls(properties: ClientProperties) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=properties.ca_location)
    context.check_hostname = properties.check_host_name
    if properties.certificate_location:
        context.load_cert_chain(properties.certificate_location, properties.key_location, properties.key_password)
    return context


def error_text(code: int, message: str | None = None) -> str:
    """An error code of an answer as people read it."""
    number = int(code)
    name = ErrorCode(number).name if number in ErrorCode.__members__.values() else f"error {number}"
    return f"{name} ({message})" if message else name


@cache
def _fields(kind: Any) -> tuple[tuple[dataclasses.Field[Any], Any, bool], ...]:
    return tuple((field, classify_field(field), is_optional(field)) for field in dataclasses.fields(kind))


def build(kind: Any, values: Mapping[str, Any]) -> Any:
    """A kio struct from a dict; fields that are left out get their default, or what is plainest for their type."""
    arguments: dict[str, Any] = {}
    for field, shape, optional in _fields(kind):
        kafka_type = str(field.metadata.get("kafka_type"))
        if field.name not in values:
            if field.default is dataclasses.MISSING:
                arguments[field.name] = _plainest(kafka_type, shape, optional)
            continue
        value = values[field.name]
        if shape.is_array and value is not None:
            nested = dataclasses.is_dataclass(shape.type_)
            value = tuple(build(shape.type_, item) if nested else item for item in value)
        elif "timedelta" in kafka_type:
            value = datetime.timedelta(milliseconds=value)
        elif kafka_type == "uuid" and isinstance(value, str):
            value = uuid.UUID(value)
        arguments[field.name] = value
    return kind(**arguments)


def _plainest(kafka_type: str, shape: Any, optional: bool) -> Any:
    if shape.is_array:
        return ()
    if optional or kafka_type == "None":
        return None
    if "timedelta" in kafka_type:
        return datetime.timedelta()
    plain: dict[str, Any] = {"string": "", "bool": False}
    return plain.get(kafka_type, 0)
