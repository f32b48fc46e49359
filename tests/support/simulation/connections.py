"""Kafka connections from clients to gateways and brokers: two byte pipes with seeded delays, pieces and cuts.

The gateway's side is a real `asyncio.Protocol` on a `SimulatedTransport`; the client's side is a `ClientConnection`
that speaks whole frames. A cut loses what is under way, in the middle of a frame if need be. `NodeConnection` has
another node's protocol at its client's side.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, TypeVar

from support.simulation.loop import Incarnation, current_incarnation
from support.simulation.network import SimulatedFabric, in_no_host, later

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
AConnection = TypeVar("AConnection", bound="ClientConnection")

READ_LIMIT = 65_536
PIECES_PROBABILITY = 0.1


class ConnectionLost(Exception):
    """The connection is gone; what became of the requests under way is unknown."""


class ClientListeners:
    """Which gateway or broker takes Kafka connections at which advertised address ("host:port")."""

    def __init__(self, fabric: SimulatedFabric) -> None:
        self.fabric = fabric
        self._listeners: dict[str, tuple[Incarnation, ProtocolFactory]] = {}
        self._connections: list[ClientConnection] = []
        self._count = 0

    def listen(self, address: str, incarnation: Incarnation, factory: ProtocolFactory) -> None:
        self._listeners[address] = (incarnation, factory)

    def host_died(self, incarnation: Incarnation, *, silent: bool) -> None:
        for address, (owner, _) in list(self._listeners.items()):
            if owner is incarnation:
                del self._listeners[address]
        for connection in list(self._connections):
            if connection.gateway is incarnation:
                connection.gateway_died(silent=silent)
            elif connection.source is incarnation:
                connection.source_died(silent=silent)

    def cut(self, first: str, second: str) -> None:
        """Breaks the connections between two hosts."""
        for connection in list(self._connections):
            if {connection.client_host, connection.gateway.host} == {first, second}:
                connection.cut()
                self.fabric.cut_count += 1

    def open(self, client_host: str) -> list[ClientConnection]:
        """The connections of a client host that are not lost, oldest first."""
        return [connection for connection in self._connections if connection.client_host == client_host]

    @property
    def all_open(self) -> list[ClientConnection]:
        return list(self._connections)

    async def connect(self, client_host: str, address: str) -> ClientConnection:
        """ConnectionLost where nobody listens or the way is blocked."""
        incarnation, factory = await self.reach(client_host, address)
        return self.opened(ClientConnection(self, self.next_number(), client_host, incarnation, factory))

    async def reach(self, client_host: str, address: str) -> tuple[Incarnation, ProtocolFactory]:
        """Who listens there; ConnectionLost as `connect`."""
        fabric, gateway_host = self.fabric, address.rsplit(":", 1)[0]
        await asyncio.sleep(fabric.delay(client_host, gateway_host) + fabric.delay(gateway_host, client_host))
        if fabric.is_blocked(client_host, gateway_host) or fabric.is_blocked(gateway_host, client_host):
            await asyncio.sleep(1.0)
            raise ConnectionLost(f"no way from {client_host} to {address}")
        if address not in self._listeners:
            raise ConnectionLost(f"nobody listens at {address}")
        return self._listeners[address]

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def opened(self, connection: AConnection) -> AConnection:
        self._connections.append(connection)
        return connection

    def forget(self, connection: ClientConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)


class Pipe:
    """One direction: bytes arrive in order, in pieces of any size."""

    def __init__(
        self, fabric: SimulatedFabric, source: str, target: str, deliver: Callable[[bytes], None], broken: Any
    ) -> None:
        self._fabric, self._source, self._target = fabric, source, target
        self._deliver = deliver
        self._broken = broken
        self._arrival = 0.0
        self.closed = False

    def send(self, data: bytes) -> None:
        if self.closed or not data:
            return
        fabric = self._fabric
        if fabric.is_lost(self._source, self._target):
            # TCP sends again until it gives up: nothing later gets past the lost bytes.
            self.closed = True
            in_no_host(fabric.loop, fabric.loop.time() + 1.0 + fabric.random.random() * 8, self._broken)
            return
        pieces = [data]
        if len(data) > 1 and fabric.random.random() < PIECES_PROBABILITY:
            middle = fabric.random.randrange(1, len(data))
            pieces = [data[:middle], data[middle:]]
        for piece in pieces:
            self.at_arrival(self._deliver, piece)

    def at_arrival(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls back after all that was sent before has arrived."""
        fabric = self._fabric
        self._arrival = later(self._arrival, fabric.loop.time() + fabric.delay(self._source, self._target))
        in_no_host(fabric.loop, self._arrival, callback, *arguments)


class ClientConnection:
    """The client's end: sends frames, gets frames; `lost` once it is cut."""

    def __init__(
        self,
        listeners: ClientListeners,
        number: int,
        client_host: str,
        gateway: Incarnation,
        factory: ProtocolFactory,
    ) -> None:
        self.listeners = listeners
        self.fabric = listeners.fabric
        self.number = number
        self.client_host = client_host
        self.gateway = gateway
        self.source: Incarnation | None = None
        """The life of the node that opened it; None for client machines, which do not die."""
        self.lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self._received = bytearray()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._next_correlation_id = 0
        fabric = self.fabric
        self._up = Pipe(fabric, client_host, gateway.host, self._gateway_receives, self.cut)
        self._down = Pipe(fabric, gateway.host, client_host, self._receive, self.cut)
        self._transport = SimulatedTransport(self._down, self.gateway_closes, (client_host, 40_000 + number))
        fabric.loop.run_in(gateway, self._accept, factory)

    # The client's side

    def next_correlation_id(self) -> int:
        self._next_correlation_id += 1
        return self._next_correlation_id

    def send(self, correlation_id: int, frame: bytes) -> asyncio.Future[bytes]:
        """The answer's frame (without its length) for this correlation id; ConnectionLost."""
        future: asyncio.Future[bytes] = self.fabric.loop.create_future()
        if self.lost:
            future.set_exception(ConnectionLost("the connection is closed"))
            return future
        self._waiting[correlation_id] = future
        self._up.send(struct.pack(">i", len(frame)) + frame)
        return future

    def close(self) -> None:
        """Closes in order: what was sent before still arrives."""
        if not self.lost:
            self._up.at_arrival(self._gateway_loses, None)
            self._end()

    def cut(self) -> None:
        """Both ends lose the connection, each in its own time; what is under way is lost."""
        if self.lost:
            return
        self._up.closed = self._down.closed = True
        fabric = self.fabric
        when = fabric.loop.time() + fabric.delay(self.client_host, self.gateway.host)
        in_no_host(fabric.loop, when, self._gateway_loses, ConnectionResetError("connection reset"))
        self._end()

    def gateway_died(self, *, silent: bool) -> None:
        """The other end is gone: noticed now, or (`silent`) only after a while."""
        self._up.closed = self._down.closed = True
        delay = 2.0 + 8.0 * self.fabric.random.random() if silent else 0.001
        in_no_host(self.fabric.loop, self.fabric.loop.time() + delay, self._end)

    def source_died(self, *, silent: bool) -> None:
        """The node that opened it is gone; what it sent before still arrives."""
        if silent:
            self._end()
        else:
            self.close()

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        self.listeners.forget(self)
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"connection {self.number} to {self.gateway} was lost"))
                future.exception()
        self.on_lost()

    def _receive(self, data: bytes) -> None:
        if self.lost or self._down.closed:
            return
        self._received += data
        while len(self._received) >= 4:
            (length,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + length:
                return
            frame = bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            (correlation_id,) = struct.unpack_from(">i", frame)
            future = self._waiting.pop(correlation_id, None)
            if future is None:
                self.fabric.bugs.append(f"{self.gateway} answered {correlation_id}, which nobody asked")
            elif not future.done():
                future.set_result(frame)

    # The gateway's side

    def _accept(self, factory: ProtocolFactory) -> None:
        self._transport.begin(factory())

    def _gateway_receives(self, data: bytes) -> None:
        if not self._up.closed:
            self.fabric.loop.run_in(self.gateway, self._transport.receive, data)

    def _gateway_loses(self, error: Exception | None) -> None:
        self.fabric.loop.run_in(self.gateway, self._transport.lose, error)

    def gateway_closes(self) -> None:
        """The gateway closed its end: the client sees that after what was sent before."""
        if not self._down.closed:
            self._down.at_arrival(self._end)


class NodeConnection(ClientConnection):
    """A connection that a node of a simulated host opened: both ends are protocols."""

    def __init__(
        self, listeners: ClientListeners, source: Incarnation, gateway: Incarnation, factory: ProtocolFactory
    ) -> None:
        super().__init__(listeners, listeners.next_number(), source.host, gateway, factory)
        self.source = source
        self.transport = SimulatedTransport(self._up, self.close, (gateway.host, 0), loses_what_is_under_way=False)

    def _receive(self, data: bytes) -> None:
        if not self.lost and not self._down.closed:
            assert self.source is not None
            self.fabric.loop.run_in(self.source, self.transport.receive, data)

    def _fail_waiting(self) -> None:
        """The connection is over: its node learns of it now."""
        assert self.source is not None
        self.fabric.loop.run_in(self.source, self.transport.lose, None)


def connect_nodes(listeners: ClientListeners) -> None:
    """Lets nodes open connections to what listens on other hosts, by the loop's `create_connection`."""

    async def connect(factory: ProtocolFactory, address: str) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        source = current_incarnation.get()
        assert source is not None, f"{address} is reached from no host"
        try:
            gateway, gateway_factory = await listeners.reach(source.host, address)
        except ConnectionLost as problem:
            raise ConnectionRefusedError(str(problem)) from None
        protocol = factory()
        connection = listeners.opened(NodeConnection(listeners, source, gateway, gateway_factory))
        connection.transport.begin(protocol)
        return connection.transport, protocol

    listeners.fabric.loop.connect = connect


class SimulatedTransport(asyncio.Transport):
    """The transport that a node's protocol writes to; `on_close` tells the other end."""

    def __init__(
        self,
        pipe: Pipe,
        on_close: Callable[[], None],
        peer_name: tuple[str, int],
        *,
        loses_what_is_under_way: bool = True,
    ) -> None:
        super().__init__({"peername": peer_name, "sockname": ("gateway", 0)})
        self._loses_what_is_under_way = loses_what_is_under_way
        self.protocol: asyncio.BaseProtocol | None = None
        self._pipe = pipe
        self._on_close = on_close
        self._closing = False
        self._lost = False
        self._paused = False
        self._unread: list[bytes] = []

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        """Bytes from the other end; in the context of the transport's host."""
        if self._lost or self._closing:
            return
        if self._paused:
            self._unread.append(data)
            return
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            _feed_buffered(protocol, data)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    def lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._pipe.closed |= self._loses_what_is_under_way
            if self.protocol is not None:
                self.protocol.connection_lost(error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._pipe.send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._on_close()
            asyncio.get_running_loop().call_soon(self.lose, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        unread, self._unread = self._unread, []
        for data in unread:
            self.receive(data)

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Writes never wait here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False


def _feed_buffered(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    while data:
        buffer = memoryview(protocol.get_buffer(min(len(data), READ_LIMIT)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
