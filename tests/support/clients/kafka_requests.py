"""Single requests of any API and version to a running cluster, kshare or Kafka; also those that no client sends.

with KafkaRequests(bootstrap) as kafka:
    kafka.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=2).error_code

Requests are built as in `support.gateway.harness`; answers are what kio reads.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from kshare_wire.messages import is_flexible
from support.clients.raw_kafka import read_frame
from support.gateway.harness import build, request_frame

TIMEOUT_S = 60.0


class KafkaRequests:
    """One connection; asks one request at a time."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._last_id = 0

    def __enter__(self) -> KafkaRequests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        self._last_id += 1
        self._connection.sendall(request_frame(api_key, version, self._last_id, build(api_key, version, values)))
        frame = read_frame(self._connection)
        assert frame is not None, f"the connection was closed instead of an answer to API {api_key}"
        (correlation_id,) = struct.unpack_from(">i", frame)
        assert correlation_id == self._last_id
        start = 5 if api_key != 18 and is_flexible(api_key, version) else 4
        answer, size = entity_reader(load_response_schema(api_key, version))(frame, start)
        assert start + size == len(frame), f"{len(frame) - start - size} bytes left of the answer of API {api_key}"
        return answer
