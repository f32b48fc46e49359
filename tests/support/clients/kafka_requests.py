"""Single requests of any API and version to a running cluster, kshare or Kafka; also those that no client sends.

with KafkaRequests(bootstrap) as kafka:
    kafka.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=2).error_code

Requests are built as in `support.gateway.harness`; answers are what kio reads.
"""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from kshare_wire.messages import is_flexible
from support.clients.raw_kafka import framed, read_frame
from support.gateway.harness import build, request_frame

TIMEOUT_S = 60.0


class KafkaRequests:
    """One connection; asks one request at a time, or several together."""

    def __init__(self, bootstrap: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        if tls is not None:
            self._connection = tls.wrap_socket(self._connection, server_hostname=host)
        self._last_id = 0

    def __enter__(self) -> KafkaRequests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        return _read(api_key, version, self.ask_raw(api_key, version, **values))

    def ask_together(self, *requests: tuple[int, int, dict[str, Any]]) -> list[Any]:
        """The answers to requests that are sent before any of them is answered."""
        first_id, self._last_id = self._last_id + 1, self._last_id + len(requests)
        frames = [
            request_frame(api_key, version, correlation_id, build(api_key, version, values))
            for correlation_id, (api_key, version, values) in enumerate(requests, first_id)
        ]
        self._connection.sendall(b"".join(frames))
        return [
            _read(api_key, version, self._receive(api_key, version, correlation_id))
            for correlation_id, (api_key, version, _) in enumerate(requests, first_id)
        ]

    def ask_plainest(self, api_key: int, version: int, **values: Any) -> bytes | None:
        """The whole answer to a request of which nothing is read; None where the connection was closed."""
        return self.ask_frame(request_frame(api_key, version, 1, build(api_key, version, values))[4:])

    def ask_length(self, length: int) -> bytes | None:
        """The answer to the length of a frame alone; None where the connection was closed."""
        self._connection.sendall(struct.pack(">i", length))
        return read_frame(self._connection)

    def ask_frame(self, content: bytes) -> bytes | None:
        """The answer to a frame that is no request; None where the connection was closed."""
        self._connection.sendall(framed(content))
        return read_frame(self._connection)

    def ask_raw(self, api_key: int, version: int, **values: Any) -> bytes:
        """The body of the answer."""
        self._last_id += 1
        self._connection.sendall(request_frame(api_key, version, self._last_id, build(api_key, version, values)))
        return self._receive(api_key, version, self._last_id)

    def _receive(self, api_key: int, version: int, correlation_id: int) -> bytes:
        frame = read_frame(self._connection)
        assert frame is not None, f"the connection was closed instead of an answer to API {api_key}"
        assert struct.unpack_from(">i", frame) == (correlation_id,)
        start = 5 if api_key != 18 and is_flexible(api_key, version) else 4
        return frame[start:]


def _read(api_key: int, version: int, body: bytes) -> Any:
    answer, size = entity_reader(load_response_schema(api_key, version))(body, 0)
    assert size == len(body), f"{len(body) - size} bytes left of the answer of API {api_key}"
    return answer
