"""A broker of an existing cluster on a socket, whose answers a test sets; it keeps every frame that it received.

async with ScriptedBroker() as broker:
    broker.answers[ApiKey.PRODUCE] = lambda version, frame: b"the body of the response"
    broker.address    # "127.0.0.1:PORT"

ApiVersions, Metadata and Heartbeat have answers already: the broker serves what Apache Kafka 3.9 does, is the only one,
and knows no member of a group.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable

from kshare_core.errors import ErrorCode
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kshare_wire.generated.responses.heartbeat import HeartbeatResponse
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker
from kshare_wire.messages import Response, encode_response, is_flexible

NODE_ID = 41
RESPONSE_PREFIX = 8
"""Length and correlation id."""
SERVED: dict[int, VersionRange] = {
    ApiKey.PRODUCE: VersionRange(0, 11),
    ApiKey.FETCH: VersionRange(0, 17),
    ApiKey.LIST_OFFSETS: VersionRange(0, 9),
    ApiKey.METADATA: VersionRange(0, 12),
    ApiKey.VOTE: VersionRange(0, 1),
    ApiKey.OFFSET_COMMIT: VersionRange(0, 9),
    ApiKey.FIND_COORDINATOR: VersionRange(0, 5),
    ApiKey.HEARTBEAT: VersionRange(0, 4),
    ApiKey.DESCRIBE_GROUPS: VersionRange(0, 5),
    ApiKey.LIST_GROUPS: VersionRange(0, 5),
    ApiKey.SASL_HANDSHAKE: VersionRange(0, 1),
    ApiKey.SASL_AUTHENTICATE: VersionRange(0, 2),
    ApiKey.API_VERSIONS: VersionRange(0, 4),
    ApiKey.CREATE_TOPICS: VersionRange(0, 7),
    ApiKey.DELETE_TOPICS: VersionRange(0, 6),
    ApiKey.DESCRIBE_CONFIGS: VersionRange(0, 4),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    ApiKey.DELETE_GROUPS: VersionRange(0, 2),
    ApiKey.DESCRIBE_CLUSTER: VersionRange(0, 1),
}
Answer = Callable[[int, bytes], "bytes | Response | Awaitable[bytes | Response | None] | None"]
"""Gets the version and the frame; returns the bytes after the correlation id, a response, or None for no answer."""


class ScriptedBroker:
    """See the module docstring; `close_clients` ends all connections, as a broker that stops does."""

    def __init__(self) -> None:
        self.address = ""
        self.served = dict(SERVED)
        self.frames: list[bytes] = []
        """Every frame without its length."""
        self.answers: dict[int, Answer] = {
            int(ApiKey.API_VERSIONS): self._api_versions,
            int(ApiKey.METADATA): lambda version, frame: self.metadata(),
            int(ApiKey.HEARTBEAT): lambda version, frame: HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID),
        }
        self._writers: set[asyncio.StreamWriter] = set()
        self._reads = asyncio.Event()
        self._reads.set()
        self._server: asyncio.Server

    async def __aenter__(self) -> ScriptedBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.close_clients()
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._writers)

    def received(self, api_key: int) -> list[bytes]:
        """The frames of an API."""
        return [frame for frame in self.frames if struct.unpack_from(">h", frame)[0] == api_key]

    def close_clients(self) -> None:
        for writer in self._writers:
            writer.close()

    def metadata(self) -> MetadataResponse:
        broker = MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=self.port, rack="r1")
        return MetadataResponse(brokers=[broker], cluster_id="upstream", controller_id=NODE_ID)

    def stop_reading(self) -> None:
        self._reads.clear()

    def read_on(self) -> None:
        self._reads.set()

    def _api_versions(self, version: int, frame: bytes) -> Response:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=each.minimum, max_version=each.maximum)
                for key, each in self.served.items()
            ],
            supported_features=[SupportedFeatureKey(name="metadata.version", min_version=1, max_version=21)],
            finalized_features_epoch=9,
            finalized_features=[
                FinalizedFeatureKey(name="metadata.version", max_version_level=21, min_version_level=21),
                FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2),
            ],
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._reads.wait()
                    (length,) = struct.unpack(">i", await reader.readexactly(4))
                    frame = await reader.readexactly(length)
                    self.frames.append(frame)
                    await self._answer(frame, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
        answer = self.answers[api_key](version, frame)
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer is None:
            return
        if isinstance(answer, Response):
            answer = b"".join(map(bytes, encode_response(answer, version, correlation_id)))[RESPONSE_PREFIX:]
        writer.write(struct.pack(">ii", 4 + len(answer), correlation_id) + answer)
        await writer.drain()


def header(api_key: int, version: int, correlation_id: int, client_id: str = "tester") -> bytes:
    """The header of a request."""
    head = struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id.encode()
    return head + (b"\0" if is_flexible(api_key, version) else b"")


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame
