"""A TLS listener: it accepts TCP connections and does the handshake; then they are ordinary client connections.

A handshake counts against max.connections from its accept on, and has HANDSHAKE_TIMEOUT_MS. Each handshake uses the
newest certificates: the files are checked every CERTIFICATE_CHECK_INTERVAL_MS, and open connections keep their
certificates. A connection without TLS, or without a required client certificate, is closed with a log line. A client
that only connects and disconnects, as probes do, is not logged.

Connections are accepted here, and not by `loop.create_server`: this makes the start and failure of a handshake visible,
and gives each connection its own context. (`loop.start_tls` would do as well, except that uvloop goes on reading before
it.)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.security.addresses import address_text
from kshare_core.security.bounded_lines import BoundedLog
from kshare_gateway.connections.connection import ClientConnection
from kshare_gateway.connections.listeners import GatewayListener
from kshare_gateway.connections.listening_sockets import BACKLOG, bound_sockets
from kshare_gateway.gateway import log
from kshare_gateway.metrics import GatewayMetrics
from kshare_gateway.security.configuration import tls_configs, tls_warnings
from kshare_servicekit.tls.contexts import HandshakeFailed, TlsServer

HANDSHAKE_TIMEOUT_MS = 10_000
SHUTDOWN_TIMEOUT_MS = 5_000
"""How long a closing connection waits for the client's TLS close."""
CERTIFICATE_CHECK_INTERVAL_MS = 1_000
ALERT_TIMEOUT_MS = 1_000
"""How long a rejected client may take to read the alert."""
ACCEPT_RETRY_MS = 1_000
"""Back-off after a failed accept, as without a free file descriptor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsListenerEnvironment:
    """The callbacks of a TLS listener; `refusal` returns why a connection of "/ip" is refused now, or None."""

    refusal: Callable[[str], str | None]
    new_connection: Callable[[], ClientConnection]
    metrics: GatewayMetrics
    lines: BoundedLog = field(default_factory=lambda: BoundedLog(log))
    """The log lines that clients cause."""


class TlsListener:
    """One TLS listener; InvalidConfig if its certificates cannot be used."""

    def __init__(self, listener: GatewayListener, configs: Configs, environment: TlsListenerEnvironment) -> None:
        self.name = listener.name
        self._tls = TlsServer(tls_configs(configs, listener))
        for warning in tls_warnings(configs, listener):
            log.warning("%s", warning)
        self._environment = environment
        self._sockets: Sequence[socket.socket] = ()
        self._accepting: dict[asyncio.Task[None], None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._not_clients_yet: dict[int, str] = {}
        """The host of each connection in its handshake."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expires_at_s(self) -> float:
        """When the first of its certificates expires, in seconds since 1970."""
        return self._tls.expires_at_s

    @property
    def handshakes(self) -> int:
        """Number of connections in their handshake."""
        return len(self._not_clients_yet)

    def handshakes_of(self, client_host: str) -> int:
        """Number of a host's connections in their handshake."""
        return sum(host == client_host for host in self._not_clients_yet.values())

    def became_client(self, connection_id: int) -> None:
        """Notes that a connection completed its handshake and is counted elsewhere."""
        self._not_clients_yet.pop(connection_id, None)

    def use(self, sockets: Sequence[socket.socket]) -> None:
        """Gives it the sockets, which are bound; it accepts no connections yet."""
        self._sockets = sockets

    def start(self) -> None:
        """Starts accepting connections and checking for renewed certificates."""
        for each in self._sockets:
            self._start_accepting(each, self._environment.new_connection)
        self._look()  # an administrator may have altered the configs of the file

    async def open_port(
        self, host: str, port: int, new_connection: Callable[[], ClientConnection]
    ) -> tuple[int, Callable[[], Awaitable[None]]]:
        """Accepts connections at a further port at once; the port, and what closes it. OSError."""
        sockets = await bound_sockets(host, port)
        tasks = [self._start_accepting(each, new_connection) for each in sockets]

        async def close() -> None:
            await self._stop_accepting(tasks)
            for each in sockets:
                each.close()

        return int(sockets[0].getsockname()[1]), close

    def _start_accepting(
        self, listening: socket.socket, new_connection: Callable[[], ClientConnection]
    ) -> asyncio.Task[None]:
        listening.listen(BACKLOG)
        work = self._accept(listening, new_connection)
        task = asyncio.get_running_loop().create_task(work, name=f"accept of listener {self.name}")
        self._accepting[task] = None
        return task

    async def _stop_accepting(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            self._accepting.pop(task, None)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Closes the listener and its handshakes; client connections stay."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._accepting, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CERTIFICATE_CHECK_INTERVAL_MS / 1000, self._look)

    def _look(self) -> None:
        try:
            if self._tls.renew():
                log.info("listener %s loaded new certificates for new connections", self.name)
        except InvalidConfig as problem:
            log.error("listener %s keeps its former certificates, the new ones are invalid: %s", self.name, problem)
        finally:
            self._look_later()

    async def _accept(self, listening: socket.socket, new_connection: Callable[[], ClientConnection]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                log.error("listener %s failed to accept a connection: %s", self.name, error)
                await asyncio.sleep(ACCEPT_RETRY_MS / 1000)
                continue
            self._begin(accepted, f"/{address_text(address[0])}", new_connection)

    def _begin(self, accepted: socket.socket, client_host: str, new_connection: Callable[[], ClientConnection]) -> None:
        refusal = self._environment.refusal(client_host)
        if refusal is not None:
            self._environment.metrics.connections_refused += 1
            text = "refusing a connection of %s to listener %s: %s"
            self._environment.lines.warning("not admitted", text, client_host, self.name, refusal)
            accepted.close()
            return
        try:
            spare = accepted.dup()
        except OSError as error:
            log.error("listener %s failed to accept a connection: %s", self.name, error)
            accepted.close()
            return
        connection = new_connection()
        self._not_clients_yet[connection.connection_id] = client_host
        work = self._shake_hands(accepted, spare, client_host, connection)
        task = asyncio.get_running_loop().create_task(work, name="TLS handshake")
        self._tasks[task] = None
        task.add_done_callback(self._handshake_done)

    def _handshake_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "a TLS handshake at listener %s failed with an unexpected error: %s", self.name, error, exc_info=error
            )

    async def _shake_hands(
        self, accepted: socket.socket, spare: socket.socket, client_host: str, connection: ClientConnection
    ) -> None:
        """Does the handshake; afterwards the connection lives on its own.

        `spare` is a duplicate of the socket: a failed handshake closes its own before the client is sent the alert.
        """
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls.context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_MS / 1000,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_MS / 1000,
            )
        except OSError as error:
            self._environment.metrics.handshakes_failed += 1
            if isinstance(error, HandshakeFailed) and error.alert:
                await _tell(spare, error.alert)
            if not isinstance(error, ConnectionResetError | BrokenPipeError):  # the client did not just go away
                text = "the TLS handshake with %s at listener %s failed: %s"
                # Kinds by OpenSSL's reason: clients that do not speak TLS must not hide a refused certificate.
                kind = f"handshake {getattr(error.__cause__ or error, 'reason', None)}"
                self._environment.lines.warning(kind, text, client_host, self.name, _reason(error))
        finally:
            spare.close()
            self.became_client(connection.connection_id)


async def _tell(connection: socket.socket, alert: bytes) -> None:
    """Sends the alert and waits until the client has read it; an earlier close would discard it."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ALERT_TIMEOUT_MS / 1000):
            await loop.sock_sendall(connection, alert)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 65_536):
                pass
    except OSError:  # the time is over, or the client has gone
        return


def _reason(error: OSError) -> str:
    if isinstance(error, HandshakeFailed) and isinstance(error.__cause__, OSError):
        return _reason(error.__cause__)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)
