"""A gateway on an in-process network between scripted roles and clients that speak real bytes.

The fake coordinator and leader are ordinary `Service`s that keep every request and answer from functions that a test
sets. The client writes requests and reads answers with kio, which is not what the gateway itself uses, so that each
side checks the other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import io
import random
import struct
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import classify_field, is_optional

from kshare_core.configs import Configs, process_configs
from kshare_core.tracing import Tracer
from kshare_gateway.connections.connection import ClientConnection
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2, security_pb2
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Method, Service
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_servicekit.memory.limit import queued_bytes
from kshare_upstream.port import OpenUpstream
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import is_flexible

COORDINATOR = "coordinator:1"
LEADERS = {1: "leader:1", 2: "leader:2"}
SHARE_COORDINATORS = {5: "share-coordinator:5", 6: "share-coordinator:6"}
TOPIC_ID = bytes(range(16))
OTHER_TOPIC_ID = bytes(range(16, 32))
MEMBER = "d1f2a3b4-0000-4000-8000-000000000001"

Answer = Callable[[Any, memoryview], Any]


def versions_of(api_key: ApiKey) -> range:
    versions = SERVED_APIS[api_key].versions
    return range(versions.minimum, versions.maximum + 1)


def unknown_id() -> uuid.UUID:
    return uuid.UUID(int=77)


class StillClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


def _no_store(name: str) -> KeyValueStore:
    raise AssertionError(f"a gateway has no store, it asked for {name}")


def environment(tracer: Tracer | None = None) -> Environment:
    return Environment(clock=StillClock(), random=random.Random(1), open_store=_no_store, tracer=tracer)


def topic(name: str, topic_id: bytes, leaders: list[int], **configs: str) -> coordinator_pb2.Topic:
    """A topic with one partition for each entry of `leaders`."""
    return coordinator_pb2.Topic(
        topic_id=topic_id,
        name=name,
        partitions=[
            coordinator_pb2.Topic.Partition(partition=index, leader_node_id=leader, leader_epoch=3)
            for index, leader in enumerate(leaders)
        ],
        configs=[coordinator_pb2.ConfigEntry(name=key, value=value) for key, value in configs.items()],
    )


class ScriptedRole:
    """A service whose answers a test sets by method name; it keeps each (method name, request, payload)."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.answers: dict[str, Answer] = {}
        self.calls: list[tuple[str, Any, bytes]] = []

    def requests(self, name: str) -> list[Any]:
        return [request for called, request, _ in self.calls if called == name]

    def as_service(self, all_methods: list[Any]) -> Service:
        return Service(self.service, {method: self._handler(method.name) for method in all_methods})

    def _handler(self, name: str) -> Callable[[Any, memoryview], Awaitable[Any]]:
        async def handle(request: Any, payload: memoryview) -> Any:
            self.calls.append((name, request, bytes(payload)))
            answer = self.answers[name](request, payload)
            return await answer if asyncio.iscoroutine(answer) else answer

        return handle


class FakeCatalog(ScriptedRole):
    """The coordinator: registers nodes, answers watches with the whole catalog, and the rest as scripted."""

    def __init__(self) -> None:
        super().__init__("Coordinator")
        self.version = 1
        self.topics: dict[str, coordinator_pb2.Topic] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.leaders = dict(LEADERS)
        self.share_coordinators = dict(SHARE_COORDINATORS)
        self.state_partition_owners: dict[int, int] = {}
        """Node id by state partition."""
        self.state_partition_count = 0
        self.extra_gateways: list[coordinator_pb2.Node] = []
        self.acls: list[security_pb2.Acl] = []
        self.gateway: coordinator_pb2.Node | None = None
        self._changed = asyncio.Event()
        self.answers["RegisterNode"] = self._register
        self.answers["WatchCatalog"] = self._watch
        self.answers["DeregisterNode"] = lambda request, payload: coordinator_pb2.DeregisterNodeResponse()

    def change(self) -> int:
        self.version += 1
        self._changed.set()
        return self.version

    def _register(self, request: Any, payload: memoryview) -> Any:
        self.gateway = request.node
        return coordinator_pb2.RegisterNodeResponse(node_epoch=1, lease_ms=10_000)

    async def _watch(self, request: Any, payload: memoryview) -> Any:
        while request.after_version >= self.version:
            self._changed.clear()
            await self._changed.wait()
        assert self.gateway is not None
        nodes = [self.gateway, *self.extra_gateways]
        for node_id, address in self.leaders.items():
            nodes.append(coordinator_pb2.Node(role=coordinator_pb2.ROLE_LEADER, node_id=node_id, rpc_address=address))
        for node_id, address in self.share_coordinators.items():
            role = coordinator_pb2.ROLE_SHARE_COORDINATOR
            nodes.append(coordinator_pb2.Node(role=role, node_id=node_id, rpc_address=address))
        return coordinator_pb2.WatchCatalogResponse(
            version=self.version,
            full=True,
            topics=list(self.topics.values()),
            group_configs=[
                coordinator_pb2.GroupConfig(
                    group_id=group,
                    configs=[coordinator_pb2.ConfigEntry(name=key, value=value) for key, value in configs.items()],
                )
                for group, configs in self.group_configs.items()
            ],
            broker_configs=[
                coordinator_pb2.BrokerConfig(
                    broker_id=broker,
                    configs=[coordinator_pb2.ConfigEntry(name=key, value=value) for key, value in configs.items()],
                )
                for broker, configs in self.broker_configs.items()
            ],
            nodes_changed=True,
            nodes=nodes,
            security=[
                security_pb2.SecurityEntry(key=security_pb2.SecurityKey(acl=acl), value=security_pb2.SecurityValue())
                for acl in self.acls
            ],
            cluster_id="test-cluster",
            state_partition_count=self.state_partition_count,
            state_partition_owners=[
                coordinator_pb2.StatePartitionOwner(state_partition=state_partition, node_id=node_id, owner_epoch=1)
                for state_partition, node_id in self.state_partition_owners.items()
            ],
        )


class FakeTransport(asyncio.Transport):
    """Collects what the gateway writes."""

    def __init__(self, client: GatewayClient, host: str) -> None:
        super().__init__()
        self._client = client
        self._host = host
        self.is_closed = False
        self.reading = True
        self.writes = 0
        self.unsent_bytes = 0
        """What this transport says that it has not sent."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._host, 40000) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.writes += 1
        self._client.received(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes += 1
        self._client.received(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self._client.connection.connection_lost, None)


def request_frame(api_key: int, version: int, correlation_id: int, request: Any, client_id: str = "tester") -> bytes:
    """A whole request with its length, written by kio."""
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    header = struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id.encode()
    if is_flexible(api_key, version):
        header += b"\0"
    frame = header + body.getvalue()
    return struct.pack(">i", len(frame)) + frame


def build(api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """A kio request from nested dicts and lists; fields left out get what is plainest."""
    return _entity(load_request_schema(api_key, version), values)


def _entity(kind: Any, values: Mapping[str, Any]) -> Any:
    arguments: dict[str, Any] = {}
    names = {field.name for field in dataclasses.fields(kind)}
    assert values.keys() <= names, f"{kind.__name__} has no {values.keys() - names}"
    for field in dataclasses.fields(kind):
        shape: Any = classify_field(field)
        if field.name not in values:
            if field.default is dataclasses.MISSING:
                arguments[field.name] = _plainest(field, shape, is_optional(field))
            continue
        value = values[field.name]
        if shape.is_array and value is not None:
            nested = dataclasses.is_dataclass(shape.type_)
            value = tuple(_entity(shape.type_, item) if nested else item for item in value)
        elif isinstance(value, Mapping):
            value = _entity(shape.type_, value)
        elif "timedelta" in str(field.metadata.get("kafka_type")):
            value = datetime.timedelta(milliseconds=value)
        elif field.metadata.get("kafka_type") == "uuid" and isinstance(value, bytes):
            value = uuid.UUID(bytes=value)
        arguments[field.name] = value
    return kind(**arguments)


def _plainest(field: Any, shape: Any, optional: bool) -> Any:
    if field.name in ("client_software_name", "client_software_version"):
        return "tester"  # ApiVersions refuses an empty one
    kind = str(field.metadata.get("kafka_type"))
    if shape.is_array:
        return ()
    if optional or kind == "None":
        return None
    if "timedelta" in kind:
        return datetime.timedelta()
    return {"string": "", "bytes": b"", "bool": False}.get(kind, 0)


class GatewayClient:
    """One connection to a gateway; answers are read with kio."""

    def __init__(self, node: GatewayNode, broker_id: int | None = None, *, host: str = "10.1.2.3") -> None:
        """`broker_id` is the broker of an existing cluster to whose port the client at `host` comes."""
        self.connection: ClientConnection = node.new_connection(broker_id=broker_id)
        self.transport = FakeTransport(self, host)
        self._buffer = b""
        self._next_id = 0
        self._expected: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self.answered: list[int] = []
        self.connection.connection_made(self.transport)

    def send(self, api_key: int, version: int, **values: Any) -> asyncio.Future[Any]:
        """Sends a request; the future gets the answer as kio reads it."""
        self._next_id += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._expected[self._next_id] = (api_key, version, future)
        frame = request_frame(api_key, version, self._next_id, build(api_key, version, values))
        self.connection.data_received(frame)
        return future

    async def ask(self, api_key: int, version: int, **values: Any) -> Any:
        return await asyncio.wait_for(self.send(api_key, version, **values), 5)

    def expect_raw(self, correlation_id: int) -> asyncio.Future[Any]:
        """The bytes after the correlation id of an answer to a request that was sent by hand."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._expected[correlation_id] = (-1, 0, future)
        return future

    def lose(self) -> None:
        """The connection breaks."""
        self.transport.is_closed = True
        self.connection.connection_lost(None)

    def received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < 4 + length:
                return
            frame, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        self.answered.append(correlation_id)
        api_key, version, future = self._expected.pop(correlation_id)
        if api_key < 0:
            future.set_result(frame[4:])
            return
        start = 5 if api_key != 18 and is_flexible(api_key, version) else 4
        answer, size = entity_reader(load_response_schema(api_key, version))(frame, start)
        assert start + size == len(frame), f"{len(frame) - start - size} bytes left of the answer of API {api_key}"
        future.set_result(answer)


class GatewayHarness:
    """A started gateway with its fakes. `leaders` by node id.

    `client_listen` opens a socket; `open_upstream` makes the client of an existing cluster.
    """

    def __init__(
        self,
        texts: Mapping[str, str] | None = None,
        *,
        client_listen: str = "",
        open_upstream: OpenUpstream | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._client_listen = client_listen
        self._tracer = tracer
        self._open_upstream = open_upstream
        self.configs: Configs = process_configs(texts or {})[0]
        self.network = InProcessNetwork()
        self.catalog = FakeCatalog()
        self.leaders = {node_id: ScriptedRole("Leader") for node_id in LEADERS}
        self.share_coordinators = {node_id: ScriptedRole("ShareCoordinator") for node_id in SHARE_COORDINATORS}
        self.node: GatewayNode

    async def __aenter__(self) -> GatewayHarness:
        await self.network.serve(COORDINATOR, [self.catalog.as_service(_methods("Coordinator"))])
        for node_id, leader in self.leaders.items():
            leader.answers.setdefault("ReleaseShareSession", lambda r, p: leader_pb2.ReleaseShareSessionResponse())
            await self.network.serve(LEADERS[node_id], [leader.as_service(_methods("Leader"))])
        for node_id, share_coordinator in self.share_coordinators.items():
            service = share_coordinator.as_service(_methods("ShareCoordinator"))
            await self.network.serve(SHARE_COORDINATORS[node_id], [service])
        settings = GatewaySettings(
            node_id=7,
            client_listen=self._client_listen,
            advertised_host="gateway.example",
            advertised_port=0 if self._client_listen else 9092,
            coordinator_address=COORDINATOR,
            configs=self.configs,
            queued_bytes=queued_bytes(self.configs, 1 << 40),
        )
        self.node = GatewayNode(
            environment=environment(self._tracer),
            network=self.network,
            settings=settings,
            open_upstream=self._open_upstream,
        )
        await self.node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.node.stop(100)
        for address in (COORDINATOR, *LEADERS.values(), *SHARE_COORDINATORS.values()):
            server = self.network.server(address)
            assert server is not None
            await server.stop(0)

    def client(self) -> GatewayClient:
        return GatewayClient(self.node)

    @property
    def requests_done(self) -> set[tuple[int, int]]:
        """(API key, version) of which a request is done, though its response may not be written yet."""
        return set(self.node._gateway.metrics.requests)

    async def settle(self) -> None:
        """Lets everything run that can run without anybody's answer."""
        for _ in range(30):
            await asyncio.sleep(0)


def _methods(service: str) -> list[Any]:
    return [method for method in vars(methods).values() if isinstance(method, Method) and method.service == service]


def run(
    scenario: Callable[[GatewayHarness], Awaitable[None]],
    texts: Mapping[str, str] | None = None,
    *,
    tracer: Tracer | None = None,
) -> None:
    """Runs a scenario with the topics "orders" (three partitions at leader 1) and "mixed" (one at each leader)."""

    async def whole() -> None:
        harness = GatewayHarness(texts, tracer=tracer)
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1, 1, 1])
        harness.catalog.topics["mixed"] = topic("mixed", OTHER_TOPIC_ID, [1, 2])
        async with harness:
            await scenario(harness)

    asyncio.run(whole())
