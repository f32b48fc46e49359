"""Takes TCP connections of a TLS listener through their handshake; then they are clients like all others.

A handshake counts against max.connections from its first byte on, and has HANDSHAKE_TIMEOUT_MS. Each one is made with
the newest certificates: a look at the files every CERTIFICATE_CHECK_INTERVAL_MS finds those that were renewed, and
connections that are open keep what they have. What speaks no TLS, or shows no certificate where one is required, is
closed with a log line; who only connects and goes away, as probes do, is not worth one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from kshare_core.configs import Configs, InvalidConfig
from kshare_gateway.connection import ClientConnection
from kshare_gateway.gateway import log
from kshare_gateway.listeners import GatewayListener
from kshare_gateway.measures import GatewayMeasures
from kshare_servicekit.tls import TlsServer
from kshare_servicekit.tls_material import TlsConfigs

HANDSHAKE_TIMEOUT_MS = 10_000
SHUTDOWN_TIMEOUT_MS = 5_000
"""How long the end of a connection waits for the client to agree to it."""
CERTIFICATE_CHECK_INTERVAL_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsListenerEnvironment:
    """What a TLS listener needs from its node; `refusal` says why there can be no further connection now, or None."""

    refusal: Callable[[], str | None]
    new_connection: Callable[[], ClientConnection]
    measures: GatewayMeasures


class TlsListener:
    """The factory of a TLS listener's connections; InvalidConfig where its certificates cannot be used."""

    def __init__(self, listener: GatewayListener, configs: Configs, environment: TlsListenerEnvironment) -> None:
        self.name = listener.name
        self._tls = TlsServer(TlsConfigs(configs, listener.config_prefix))
        self._environment = environment
        self._handshakes: dict[_Handshake, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expires_at_s(self) -> float:
        """When the first of its certificates expires, in seconds since 1970."""
        return self._tls.expires_at_s

    @property
    def handshakes(self) -> int:
        """Connections that are not clients yet."""
        return len(self._handshakes)

    def new_protocol(self) -> asyncio.Protocol:
        """For one TCP connection."""
        return _Handshake(self)

    def watch(self) -> None:
        """Looks for renewed certificates from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CERTIFICATE_CHECK_INTERVAL_MS / 1000, self._look)

    def close(self) -> None:
        """Ends what is not a client yet; clients stay."""
        if self._timer is not None:
            self._timer.cancel()
        for handshake in list(self._handshakes):
            handshake.abort()

    def _look(self) -> None:
        try:
            if self._tls.renew():
                log.info("listener %s has new certificates, for connections from now on", self.name)
        except InvalidConfig as problem:
            log.error("listener %s keeps its former certificates: %s", self.name, problem)
        self.watch()

    # For its handshakes

    def begin(self, handshake: _Handshake) -> str | None:
        """Counts a handshake, or says why there cannot be one."""
        refusal = self._environment.refusal()
        if refusal is None:
            self._handshakes[handshake] = None
        else:
            self._environment.measures.connections_refused += 1
        return refusal

    def end(self, handshake: _Handshake) -> None:
        """The handshake is over, well or not."""
        self._handshakes.pop(handshake, None)

    def failed(self) -> None:
        self._environment.measures.handshakes_failed += 1

    def new_connection(self) -> ClientConnection:
        return self._environment.new_connection()

    @property
    def context(self) -> ssl.SSLContext:
        return self._tls.context


class _Handshake(asyncio.Protocol):
    """One connection until its client can speak; `ClientConnection` takes its place then."""

    def __init__(self, listener: TlsListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._client_host = "/unknown"
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        peer = transport.get_extra_info("peername")
        if peer:
            self._client_host = f"/{peer[0]}"
        refusal = self._listener.begin(self)
        if refusal is not None:
            log.warning("a connection of %s to listener %s is refused: %s", self._client_host, self.name, refusal)
            self._transport.abort()
            return
        self._transport.pause_reading()  # what comes now is for the TLS engine
        self._task = asyncio.get_running_loop().create_task(self._run(), name="TLS handshake")

    def data_received(self, data: bytes) -> None:
        """A first request, in the moment between the handshake's end and the change of protocols."""
        self._early.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    @property
    def name(self) -> str:
        return self._listener.name

    async def _run(self) -> None:
        try:
            transport = await self._shake_hands()
        finally:
            self._listener.end(self)
        if transport is None:
            return
        connection = self._listener.new_connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            connection.data_received(data)

    async def _shake_hands(self) -> asyncio.Transport | None:
        """The connection with TLS; None where it failed or its client has gone."""
        raw = self._transport
        assert raw is not None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                raw,
                self,
                self._listener.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_MS / 1000,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_MS / 1000,
            )
        except OSError as error:
            self._note_failure(error)
            raw.abort()
            return None
        if transport is None or self._is_lost or raw.is_closing():
            raw.abort()
            return None
        return transport

    def _note_failure(self, error: OSError) -> None:
        self._listener.failed()
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return  # the client went away
        reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message
        log.warning("no TLS with %s at listener %s: %s", self._client_host, self.name, reason)
