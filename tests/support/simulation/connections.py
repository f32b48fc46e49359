"""Kafka connections from clients to gateways and brokers: two byte pipes with seeded delays, pieces and cuts.

The gateway's side is a real `asyncio.Protocol` on a `SimulatedTransport`; the client's side is a `ClientConnection`
that speaks whole frames. A cut loses what is under way, in the middle of a frame if need be. `NodeConnection` has
another node's protocol at its client's side.

TCP delivers bytes in order and at most once, in pieces of any size, or breaks. So a request arrives twice only if its
client sends it again on another connection. What else can happen to a connection, the simulation injects:

- `cut`: both ends learn of a reset; what was under way is lost.
- `vanish`: the client is gone without a word (its machine died, or a NAT forgot it): the other end believes in the
  connection until its own bytes stay unconfirmed for too long, and the client comes back on another one meanwhile.
- `close_half`: the client sends no more (FIN) and still reads.
- `stop_reading`: the client's buffers are full, then those of the gateway's host, and then its transport's
  (`pause_writing`); nothing is lost.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from support.simulation.loop import Incarnation, current_incarnation
from support.simulation.network import SimulatedFabric, in_no_host, later

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
AConnection = TypeVar("AConnection", bound="ClientConnection")

READ_LIMIT = 65_536
SOCKET_BUFFERS_BYTES = 500
"""What two hosts hold of a connection whose receiver does not read: little, as the records are small."""
WRITE_BUFFER_BYTES = 1_000
"""What a transport holds beyond that before it tells its protocol to write no more."""


class ConnectionLost(Exception):
    """The connection is gone; what became of the requests under way is unknown."""


class ClientListeners:
    """Which gateway or broker takes Kafka connections at which advertised address ("host:port")."""

    def __init__(self, fabric: SimulatedFabric) -> None:
        self.fabric = fabric
        self._listeners: dict[str, tuple[Incarnation, ProtocolFactory]] = {}
        self._connections: list[ClientConnection] = []
        self._count = 0
        self.effects: Counter[str] = Counter()
        """How often connections were hit, by the name of the kind of fault."""

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

    def heal(self) -> None:
        """Every client reads again."""
        for connection in self._connections:
            connection.read_again()

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
        self._waiting: list[tuple[Callable[..., object], tuple[object, ...]]] | None = None
        """What is to arrive once the other end reads again; None while it reads."""
        self._waiting_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """What has to wait in the sender's process, because the buffers behind it are full."""
        return max(0, self._waiting_bytes - SOCKET_BUFFERS_BYTES)

    def hold(self) -> None:
        """The other end reads no more."""
        if self._waiting is None:
            self._waiting = []

    def release(self) -> None:
        """The other end reads again, all that has waited."""
        waiting, self._waiting, self._waiting_bytes = self._waiting or [], None, 0
        for callback, arguments in waiting:
            self.at_arrival(callback, *arguments)

    def send(self, data: bytes) -> None:
        if self.closed or not data:
            return
        fabric = self._fabric
        if fabric.is_lost(self._source, self._target):
            # TCP sends again until it gives up: nothing later gets past the lost bytes.
            self.closed = True
            in_no_host(fabric.loop, fabric.loop.now_s + 1.0 + fabric.random.random() * 8, self._broken)
            return
        if self._waiting is not None:
            self._waiting_bytes += len(data)
        for piece in self._pieces(data):
            self.at_arrival(self._deliver, piece)

    def _pieces(self, data: bytes) -> list[bytes]:
        draw, (probability, most) = self._fabric.random, self._fabric.conditions.pieces
        if len(data) < 2 or draw.random() >= probability:
            return [data]
        if most > 2:
            self._fabric.delayed_count["small-pieces"] += 1
        cuts = sorted({draw.randrange(1, len(data)) for _ in range(most - 1)})
        return [data[first:last] for first, last in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def at_arrival(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls back after all that was sent before has arrived."""
        if self._waiting is not None:
            self._waiting.append((callback, arguments))
            return
        fabric = self._fabric
        self._arrival = later(self._arrival, fabric.loop.now_s + fabric.delay(self._source, self._target))
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
        self._is_half_closed = False
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
        if self.lost or self._is_half_closed:
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
        when = fabric.loop.now_s + fabric.delay(self.client_host, self.gateway.host)
        in_no_host(fabric.loop, when, self._gateway_loses, ConnectionResetError("connection reset"))
        self._end()

    def vanish(self, noticed_after_s: float) -> None:
        """The client is gone; its gateway notices only when what it sends stays unconfirmed for so long."""
        if self.lost:
            return
        self._up.closed = self._down.closed = True
        fabric = self.fabric
        timed_out = ConnectionResetError("connection timed out")
        in_no_host(fabric.loop, fabric.loop.now_s + noticed_after_s, self._gateway_loses, timed_out)
        self._end()

    def close_half(self) -> None:
        """The client sends no more, and still reads: the gateway gets all that was sent before, and then the end."""
        if not self.lost and not self._is_half_closed:
            self._is_half_closed = True
            self._up.at_arrival(self._gateway_reads_the_end)

    def stop_reading(self) -> None:
        """What the gateway sends stays on its way until `read_again`."""
        self._down.hold()

    def read_again(self) -> None:
        self._down.release()
        self.fabric.loop.run_in(self.gateway, self._transport.drained)

    def gateway_died(self, *, silent: bool) -> None:
        """The other end is gone: noticed now, or (`silent`) only after a while."""
        self._up.closed = self._down.closed = True
        delay = 2.0 + 8.0 * self.fabric.random.random() if silent else 0.001
        in_no_host(self.fabric.loop, self.fabric.loop.now_s + delay, self._end)

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

    def _gateway_reads_the_end(self) -> None:
        if not self._up.closed:
            self.fabric.loop.run_in(self.gateway, self._transport.end)

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
        self._is_full = False
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
        if self._closing:
            return
        self._pipe.send(bytes(data))
        if self._pipe.unsent_bytes > WRITE_BUFFER_BYTES and not self._is_full and self.protocol is not None:
            self._is_full = True
            self.protocol.pause_writing()

    def drained(self) -> None:
        """The other end has read what waited; in the context of the transport's host."""
        if self._is_full and not self._lost and self.protocol is not None:
            self._is_full = False
            self.protocol.resume_writing()

    def end(self) -> None:
        """The other end sends no more; as in asyncio's transports, the protocol may go on writing if it wants to."""
        if self._lost or self._closing:
            return
        assert isinstance(self.protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not self.protocol.eof_received():
            self._loses_what_is_under_way = False  # all that the client sent was read, so no reset follows the close
            self.close()

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
        """Those of the simulation hold (`WRITE_BUFFER_BYTES`): what is written here is small."""

    def get_write_buffer_size(self) -> int:
        return self._pipe.unsent_bytes

    def can_write_eof(self) -> bool:
        return False


def _feed_buffered(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    while data:
        buffer = memoryview(protocol.get_buffer(min(len(data), READ_LIMIT)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
