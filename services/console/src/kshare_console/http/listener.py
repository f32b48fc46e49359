"""The listening socket: aiohttp's server behind a limit of connections.

A connection beyond the limit is closed at once, so that browsers with many pages, or an attacker, cannot take all file
descriptors of the process.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from aiohttp import web

from kshare_rpc.local_sockets import every_address_socket


class _Refused(asyncio.Protocol):
    """Closes its connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Listener:
    """A running server of an application."""

    def __init__(self, application: web.Application, *, connections_limit: int) -> None:
        self._runner = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=30.0,
            handle_signals=False,
            auto_decompress=False,  # aiohttp writes a traceback for a body that cannot be decompressed
        )
        self._limit = connections_limit
        self._server: asyncio.Server | None = None
        self.refused = 0
        """Connections beyond the limit."""

    @property
    def connections(self) -> int:
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listens at the host, `[::]` for every address of IPv4 and IPv6; returns the bound port. OSError."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        make: Callable[[], asyncio.BaseProtocol] = server

        def connected() -> asyncio.BaseProtocol:
            if self.connections < self._limit:
                return make()
            self.refused += 1
            return _Refused()

        loop = asyncio.get_running_loop()
        every = every_address_socket(host, port)
        if every is not None:
            self._server = await loop.create_server(connected, sock=every, ssl=tls)
        else:
            self._server = await loop.create_server(connected, host.strip("[]"), port, ssl=tls)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_ms: int) -> None:
        """Takes no new connections, and ends those that are open."""
        if self._server is not None:
            self._server.close()
        server = self._runner.server
        if server is not None:
            await server.shutdown(grace_ms / 1000)
        await self._runner.cleanup()
