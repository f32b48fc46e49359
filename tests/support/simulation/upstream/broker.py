"""A broker of the simulated cluster as the node of a simulated host: its connections, and the APIs that it serves.

A connection's requests are handled one after the other, as Kafka does. What was received before a connection ended is
still handled, so a request may take effect after its sender has given it up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kshare_wire.api_versions import VersionRange
from kshare_wire.framing import FrameReader, RequestHeader, parse_header, peek_request
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.add_partitions_to_txn import AddPartitionsToTxnRequest
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.requests.create_partitions import CreatePartitionsRequest
from kshare_wire.generated.requests.create_topics import CreateTopicsRequest
from kshare_wire.generated.requests.delete_records import DeleteRecordsRequest
from kshare_wire.generated.requests.delete_topics import DeleteTopicsRequest
from kshare_wire.generated.requests.describe_cluster import DescribeClusterRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest
from kshare_wire.generated.requests.describe_groups import DescribeGroupsRequest
from kshare_wire.generated.requests.end_txn import EndTxnRequest
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.requests.incremental_alter_configs import IncrementalAlterConfigsRequest
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest
from kshare_wire.generated.requests.list_offsets import ListOffsetsRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.requests.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.responses.api_versions import ApiVersion, ApiVersionsResponse
from kshare_wire.messages import Request, Response, decode_request, encode_response, is_flexible
from support.simulation.upstream.admin_apis import AdminApis
from support.simulation.upstream.cluster import SimulatedUpstream
from support.simulation.upstream.log_apis import LogApis

MAXIMUM_REQUEST_BYTES = 100 * 1024 * 1024
WORK_LIMIT_S = 0.0005
"""The longest handling of a request that waits for nothing."""

Handler = Callable[[Any, RequestHeader], Awaitable[Response]]


class ServedApi(NamedTuple):
    """An API and its versions; those of Kafka 3.9.1, as far as requests name topics by name."""

    kind: type[Request[Any]]
    versions: VersionRange
    handler: Handler


class BrokerNode:
    """See the module's text."""

    def __init__(self, upstream: SimulatedUpstream, node_id: int) -> None:
        self._upstream = upstream
        self._node_id = node_id
        logs, admin = LogApis(upstream, node_id), AdminApis(upstream)
        self.apis: dict[int, ServedApi] = {
            kind.API_KEY: ServedApi(kind, VersionRange(lowest, highest), handler)
            for kind, lowest, highest, handler in (
                (ProduceRequest, 3, 11, logs.produce),
                (FetchRequest, 4, 16, logs.fetch),
                (ListOffsetsRequest, 1, 9, logs.list_offsets),
                (MetadataRequest, 0, 12, admin.metadata),
                (FindCoordinatorRequest, 0, 6, admin.find_coordinator),
                (ApiVersionsRequest, 0, 4, self._api_versions),
                (CreateTopicsRequest, 2, 7, admin.create_topics),
                (DeleteTopicsRequest, 1, 6, admin.delete_topics),
                (DeleteRecordsRequest, 0, 2, logs.delete_records),
                (InitProducerIdRequest, 0, 5, admin.init_producer_id),
                (OffsetForLeaderEpochRequest, 2, 4, logs.offset_for_leader_epoch),
                (AddPartitionsToTxnRequest, 0, 3, admin.add_partitions_to_txn),
                (EndTxnRequest, 0, 4, admin.end_txn),
                (DescribeConfigsRequest, 1, 4, admin.describe_configs),
                (CreatePartitionsRequest, 0, 3, admin.create_partitions),
                (IncrementalAlterConfigsRequest, 0, 1, admin.alter_configs),
                (DescribeClusterRequest, 0, 1, admin.describe_cluster),
                (DescribeGroupsRequest, 0, 5, admin.describe_groups),
                (HeartbeatRequest, 0, 4, admin.heartbeat),
            )
        }

    async def start(self) -> None:
        self._upstream.broker_started(self._node_id)

    async def stop(self, grace_ms: int) -> None:
        self._upstream.broker_stops(self._node_id)

    def problems(self) -> list[str]:
        return []

    def new_connection(self) -> asyncio.Protocol:
        return _BrokerConnection(self)

    async def answer(self, frame: memoryview) -> list[bytes | bytearray | memoryview]:
        """The whole response to a request."""
        api_key, version, correlation_id = peek_request(frame)
        served = self.apis.get(api_key)
        if served is None or not served.versions.minimum <= version <= served.versions.maximum:
            if api_key == ApiKey.API_VERSIONS:
                return encode_response(self._versions(error_code=35), 0, correlation_id)
            raise AssertionError(f"broker {self._node_id} serves no version {version} of API {api_key}")
        header = parse_header(frame, flexible=is_flexible(api_key, version))
        request = decode_request(served.kind, version, frame, header.body_offset)
        await asyncio.sleep(self._upstream.draw.random() * WORK_LIMIT_S)
        response = await served.handler(request, header)
        return encode_response(response, version, correlation_id)

    async def _api_versions(self, request: ApiVersionsRequest, header: RequestHeader) -> ApiVersionsResponse:
        return self._versions()

    def _versions(self, error_code: int = 0) -> ApiVersionsResponse:
        keys = [
            ApiVersion(api_key=key, min_version=api.versions.minimum, max_version=api.versions.maximum)
            for key, api in sorted(self.apis.items())
        ]
        return ApiVersionsResponse(error_code=error_code, api_keys=keys)


class _BrokerConnection(asyncio.Protocol):
    """Cuts what arrives into requests, and works them off one after the other."""

    def __init__(self, broker: BrokerNode) -> None:
        self._broker = broker
        self._frames = FrameReader(MAXIMUM_REQUEST_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[memoryview] = deque()
        self._work: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            self._waiting.append(frame)
        if self._waiting and (self._work is None or self._work.done()):
            self._work = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        assert self._transport is not None
        while self._waiting:
            parts = await self._broker.answer(self._waiting.popleft())
            if not self._transport.is_closing():
                self._transport.writelines(parts)
